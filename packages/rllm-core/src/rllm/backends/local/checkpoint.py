"""A training run's state on disk: the trained weights, AdamW's moments, the policy's version.

    weights.safetensors    name → the trained parameters (all, or the adapter's), float32
    optimizer.safetensors  name.exp_avg, name.exp_avg_sq, name.step
    state.json             the version, and how the model was run (precision, threads)

Written by the engine's thread into a folder that is the caller's to make whole or not at all.
"""

__all__ = ["restore_state", "save_state"]

import json
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rllm.backends.local.export import disk_errors
from rllm.backends.local.policy import Policy
from rllm.errors import BackendError

log = logging.getLogger("rllm.backends")

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_state(
    policy: Policy, optimizer: torch.optim.AdamW | None, version: int, folder: Path, *, runs_as: str
) -> None:
    """Write the three files into ``folder``. OSError is passed on: a full disk is the caller's to explain."""
    trained = _trained(policy)
    held: dict[str, Tensor] = {}
    if optimizer is not None:
        for name, parameter in trained.items():
            state: dict[str, Tensor] = optimizer.state.get(parameter, {})
            held |= {f"{name}.{moment}": state[moment].detach().contiguous() for moment in MOMENTS if moment in state}
    for file, tensors in (
        ("weights.safetensors", {name: p.detach().contiguous() for name, p in trained.items()}),
        ("optimizer.safetensors", held),
    ):
        with disk_errors(folder / file):
            save_file(tensors, folder / file)
    about = {"version": version, "runs_as": runs_as}
    (folder / "state.json").write_text(json.dumps(about) + "\n", encoding="utf-8")


def restore_state(
    policy: Policy, optimizer: torch.optim.AdamW, folder: Path, *, with_optimizer: bool, runs_as: str
) -> int:
    """Put what ``save_state`` wrote in place; returns the version.

    Another precision, or another number of threads, gives other bits: that is said, and is no reason to stop.
    Raises BackendError where it is of other parameters, and where the optimizer's state is asked for and missing.
    """
    trained = _trained(policy)
    weights = load_file(folder / "weights.safetensors", device=str(policy.device))
    _require_same(trained, weights, folder)
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(weights[name])
    if with_optimizer:
        _restore_moments(trained, optimizer, folder, str(policy.device))
    policy.weights_changed()
    about: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if about["runs_as"] != runs_as:
        log.warning(
            "the run went as %r, and goes on as %r: it will differ in the last bits from one that was not stopped",
            about["runs_as"],
            runs_as,
        )
    return int(about["version"])


def _restore_moments(
    trained: dict[str, torch.nn.Parameter], optimizer: torch.optim.AdamW, folder: Path, device: str
) -> None:
    path = folder / "optimizer.safetensors"
    if not path.exists():
        raise BackendError(
            f"the checkpoint {str(folder)!r} has no optimizer state ({path.name}). "
            "Resume with --allow-changes to begin it anew"
        )
    held = load_file(path, device=device)
    for name, parameter in trained.items():
        if f"{name}.step" in held:
            optimizer.state[parameter] = {moment: held[f"{name}.{moment}"] for moment in MOMENTS}


def _trained(policy: Policy) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in policy.network.named_parameters() if p.requires_grad}


def _require_same(trained: dict[str, torch.nn.Parameter], weights: dict[str, Tensor], folder: Path) -> None:
    wanted = {name: tuple(p.shape) for name, p in trained.items()}
    found = {name: tuple(t.shape) for name, t in weights.items()}
    if wanted != found:
        different = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise BackendError(
            f"the checkpoint {str(folder)!r} is of other parameters than this run trains: {len(different)} differ, "
            f"{different[0]!r} first. Was it made with another model or another lora.rank?"
        )
