"""How a loaded model is run on this machine: precision, threads and determinism, as the settings ask or as is best."""

__all__ = ["check_deterministic", "describe", "is_mixed", "set_threads"]

import logging

import numpy as np
import torch

from rllm.backends.local.loading import LoadedModel
from rllm.backends.local.machine import bf16_gain, fastest_threads
from rllm.backends.local.policy import Policy
from rllm.backends.local.settings import TinkerSettings
from rllm.errors import ConfigError
from rllm.update.packing import forest_of

log = logging.getLogger("rllm.backends")

WORTHWHILE = 1.5
"""bf16 is taken where it multiplies so many times as fast: by it, sampler and trainer differ by hundredths of nats."""


def is_mixed(loaded: LoadedModel, settings: TinkerSettings) -> bool:
    """Whether the linear layers multiply in bfloat16. Raises ConfigError where that contradicts ``deterministic``."""
    if settings.precision != "auto":
        return settings.precision == "bf16"
    if loaded.device.type != "cpu":
        return loaded.device.type == "cuda"
    gain = bf16_gain(loaded.network.get_output_embeddings().weight.shape[1])
    log.info("bf16 multiplies %.1f times as fast as fp32 here; it is taken from %.1f on", gain, WORTHWHILE)
    return gain >= WORTHWHILE


def set_threads(policy: Policy, settings: TinkerSettings) -> None:
    """For the calling thread's work, which is the engine's."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
        return
    forest = forest_of([np.arange(16, dtype=np.int32) % policy.head.weight.shape[0]])
    with torch.no_grad():
        # A tiny model loses more by handing work over than it gains.
        fastest_threads(lambda: policy.body.run_forest(forest))


def check_deterministic(policy: Policy, settings: TinkerSettings, name: str) -> None:
    """Raises ConfigError where ``deterministic`` is asked for and not to be had."""
    if policy.is_invariant and policy.device.type == "cpu":
        return
    if policy.device.type != "cpu":
        problem = (
            f"on {policy.device.type} a completion's bits depend on what else is in its batch. Set tinker.device=cpu"
        )
    else:
        problem = f"the layers of {name} give a token other bits in other company (experts, or no cache)"
    if settings.deterministic:
        raise ConfigError(f"tinker.deterministic=true, but {problem}. Leave the setting out to run without it")
    if settings.deterministic is None:
        log.info("not deterministic: %s", problem)


def describe(policy: Policy, is_mixed: bool) -> str:
    """One line for the log."""
    precision = "bf16 products, fp32 weights" if is_mixed else "fp32"
    threads = f", {torch.get_num_threads()} threads" if policy.device.type == "cpu" else ""
    bits = ", the same bits in any company" if policy.is_invariant and policy.device.type == "cpu" else ""
    return f"{policy.device.type}, {precision}{threads}{bits}"
