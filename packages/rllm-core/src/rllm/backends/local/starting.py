"""How a loaded model is run on this machine: precision, threads and determinism, as the settings ask or as is best."""

__all__ = ["check_deterministic", "describe", "has_onednn", "is_mixed", "set_threads", "threads_for"]

import logging

import torch

from rllm.backends.local.loading import LoadedModel
from rllm.backends.local.machine import bf16_gain, cores, is_even, onednn_gain
from rllm.backends.local.policy import Policy
from rllm.backends.local.products import by_onednn, by_torch
from rllm.backends.local.settings import TinkerSettings
from rllm.errors import ConfigError

log = logging.getLogger("rllm.backends")

WORTHWHILE = 1.5
"""bf16 is taken where it multiplies so many times as fast: by it, sampler and trainer differ by hundredths of nats."""

TINY_PARAMETERS = 5_000_000
"""Below this, one thread is faster than several (measured: 5,400 tokens a second against 23 on a busy machine)."""
SMALL_WIDTH = 256
"""Below this, products are so short that bf16 brings nothing and a measurement is noise."""


def has_onednn(loaded: LoadedModel, settings: TinkerSettings) -> bool:
    """Whether float32 products are oneDNN's. Raises ConfigError where they are asked for and not to be had."""
    if settings.products == "torch":
        return False
    is_cpu, width = loaded.device.type == "cpu", loaded.network.get_output_embeddings().weight.shape[1]
    if settings.products == "auto" and not is_cpu:
        return False
    gain = onednn_gain(width) if is_cpu else 0.0
    if settings.products == "onednn":
        if gain == 0:
            raise ConfigError(
                f"tinker.products=onednn, but there is no oneDNN for {loaded.device.type} in this torch. Leave it out"
            )
        return True
    if width >= SMALL_WIDTH:
        log.info("oneDNN multiplies fp32 %.1f times as fast as torch here; it is taken from %.1f on", gain, WORTHWHILE)
        if gain >= WORTHWHILE:
            return True
    if gain == 0 or settings.deterministic is False or is_even(by_torch, _weights_of(loaded)):
        return False
    log.info("oneDNN multiplies fp32: torch's own products give a row other bits in other company here")
    return True


def _weights_of(loaded: LoadedModel) -> list[torch.Tensor]:
    """One matrix of each shape that the model's linear layers have."""
    layers = (module for module in loaded.network.modules() if type(module) is torch.nn.Linear)
    return list({layer.weight.shape: layer.weight for layer in layers}.values())


def is_mixed(loaded: LoadedModel, settings: TinkerSettings, *, has_onednn: bool) -> bool:
    """Whether the linear layers multiply in bfloat16."""
    if settings.precision != "auto":
        return settings.precision == "bf16"
    if loaded.device.type != "cpu":
        return loaded.device.type == "cuda"
    if loaded.network.get_output_embeddings().weight.shape[1] < SMALL_WIDTH:
        return False
    gain = bf16_gain(loaded.network.get_output_embeddings().weight.shape[1], by_onednn if has_onednn else by_torch)
    log.info("bf16 multiplies %.1f times as fast as fp32 here; it is taken from %.1f on", gain, WORTHWHILE)
    return gain >= WORTHWHILE


def set_threads(loaded: LoadedModel, settings: TinkerSettings) -> None:
    """For the calling thread's work, which is the engine's; before anything is measured.

    By the model's size, not by a stopwatch: a sum over several threads has other bits than over one, so what is chosen
    must not depend on how busy the machine happens to be.
    """
    torch.set_num_threads(threads_for(sum(p.numel() for p in loaded.network.parameters()), settings))


def threads_for(n_parameters: int, settings: TinkerSettings) -> int:
    """How many CPU threads a model of this size is run by."""
    return settings.threads or (1 if n_parameters < TINY_PARAMETERS else cores())


def check_deterministic(policy: Policy, settings: TinkerSettings, name: str) -> None:
    """Raises ConfigError where ``deterministic`` is asked for and not to be had."""
    if policy.is_invariant and policy.device.type == "cpu":
        return
    if policy.device.type != "cpu":
        problem = (
            f"on {policy.device.type} a completion's bits depend on what else is in its batch. Set tinker.device=cpu"
        )
    else:
        causes = "experts, no cache, or the processor's matrix products"
        problem = f"the layers of {name} give a token other bits in other company ({causes})"
    if settings.deterministic:
        raise ConfigError(f"tinker.deterministic=true, but {problem}. Leave the setting out to run without it")
    if settings.deterministic is None:
        log.info("not deterministic: %s", problem)


def describe(policy: Policy, *, is_mixed: bool, has_onednn: bool) -> str:
    """One line for the log."""
    precision = "bf16 products, fp32 weights" if is_mixed else "fp32"
    products = ", oneDNN" if has_onednn else ""
    threads = f", {torch.get_num_threads()} threads" if policy.device.type == "cpu" else ""
    bits = ", the same bits in any company" if policy.is_invariant and policy.device.type == "cpu" else ""
    return f"{policy.device.type}, {precision}{products}{threads}{bits}"
