"""Writing a policy as a Hugging Face folder that ``from_pretrained`` loads, LoRA merged or as a PEFT adapter."""

__all__ = ["disk_errors", "export_adapter", "export_policy"]

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from rllm.backends.local.policy import Policy

ADAPTER = "default"
"""peft's name for the one adapter that we add."""


@torch.no_grad()
def export_policy(policy: Policy, tokenizer: Any, path: Path) -> None:
    """Write weights (float32), configuration, generation configuration, tokenizer and chat template to ``path``.

    Raises OSError.
    """
    path.mkdir(parents=True, exist_ok=True)
    network = policy.network
    # Its progress bar would be drawn across the run's own display.
    with_bar = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        with disk_errors(path):
            network.save_pretrained(path, state_dict=merged_weights(network))
            tokenizer.save_pretrained(path)
    finally:
        if with_bar:
            enable_progress_bar()


@torch.no_grad()
def export_adapter(policy: Policy, path: Path) -> None:
    """Write the adapter alone as a PEFT folder, to be put on the model that the run began with. Raises OSError."""
    with disk_errors(path):
        policy.adapted.save_pretrained(path)


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """The operating system's errors as OSError also where a library in Rust wraps them in an error of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if "os error" in str(error):
            raise OSError(None, str(error), str(path)) from error
        raise


def merged_weights(network: Any) -> dict[str, torch.Tensor]:
    """The state dict of the network as it was before peft wrapped its layers, each adapter added to its weight."""
    weights: dict[str, torch.Tensor] = network.state_dict()
    merged = {k.replace(".base_layer.", "."): v for k, v in weights.items() if ".lora_" not in k}
    for name, module in network.named_modules():
        if isinstance(module, LoraLinear):
            key = f"{name}.weight"
            merged[key] = merged[key] + module.get_delta_weight(ADAPTER)
    return merged
