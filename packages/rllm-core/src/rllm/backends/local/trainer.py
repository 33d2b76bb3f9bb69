"""The optimizer's side of the engine: rows to micro-batches of token forests, gradients summed, one AdamW step.

Used by the engine's thread alone. The loss is a sum over targets, so the split into micro-batches does not show.
"""

__all__ = ["Trainer"]

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.checkpoint import restore_state, save_state
from rllm.backends.local.logprobs import Targets, target_logprobs
from rllm.backends.local.objective import Measures, TargetArrays, objective
from rllm.backends.local.policy import Policy
from rllm.backends.local.room import ENOUGH_TOKENS, MICRO_BATCH_TOKENS, Room, measure_room
from rllm.backends.local.settings import TinkerSettings
from rllm.errors import BackendError, NothingToTrainError
from rllm.protocols import AdamParams, LossSpec, StepResult
from rllm.types import Row
from rllm.update.packing import Packing, pack

Floats = NDArray[np.float32]


class Trainer:
    """Trains one policy, in place."""

    def __init__(self, policy: Policy, settings: TinkerSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._room: Room | None = None
        # Asked for a size, it is that size.
        self._enough = None if settings.micro_batch_tokens else ENOUGH_TOKENS
        self._optimizer: torch.optim.AdamW | None = None

    def step(self, rows: Sequence[Row], loss: LossSpec, optim: AdamParams) -> StepResult:
        """One optimizer step on the sum over ``rows``; the weights are untouched where it raises.

        Raises NothingToTrainError without a target, BackendError where the gradient is not finite.
        """
        _require_all_or_none(rows)
        room = self._room_for_training()
        packings = pack(rows, room.micro_batch_tokens, self._enough)
        if not packings:
            raise NothingToTrainError(f"none of the {len(rows)} rows has a token to train on: every mask is 0")
        parameters = self._policy.trainable()
        if not parameters:
            raise BackendError("this backend was opened for sampling only; open it for training")
        measures, total = Measures(), 0.0
        found = [np.zeros(len(row.tokens), np.float32) for row in rows]
        try:
            for packing in packings:
                with self._policy.training(checkpoints=room.needs_checkpoints(len(packing.forest))):
                    logprobs, entropies = self._forward(packing)
                at = torch.from_numpy(np.concatenate(packing.edges)).to(logprobs.device)
                heads = torch.from_numpy(packing.heads).to(logprobs.device)
                flat = logprobs[at]
                value = objective(flat, entropies[heads[at]], _arrays(packing, rows, flat), loss, measures)
                value.backward()
                total += float(value.detach())
                _scatter(flat, packing, found)
            norm = self._apply(parameters, optim)
        finally:
            for parameter in parameters:
                parameter.grad = None
        return StepResult(loss=total, grad_norm=norm, metrics=measures.means(), logprobs=tuple(found))

    def save(self, folder: Path, version: int, *, runs_as: str) -> None:
        """Write weights and optimizer into a folder."""
        save_state(self._policy, self._optimizer, version, folder, runs_as=runs_as)

    def restore(self, folder: Path, *, with_optimizer: bool, runs_as: str) -> int:
        """Put back what ``save`` wrote; returns the version."""
        self._optimizer = _adamw(self._policy.trainable())
        return restore_state(self._policy, self._optimizer, folder, with_optimizer=with_optimizer, runs_as=runs_as)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], *, without_adapter: bool = False) -> list[Floats]:
        """Per row float32[T], nats, at its temperature; 0 where the mask is 0."""
        found = [np.zeros(len(row.tokens), np.float32) for row in rows]
        with self._policy.without_adapter() if without_adapter else nullcontext():
            # Nothing is kept for a backward, so any size fits that is worth having.
            for packing in pack(rows, self._settings.micro_batch_tokens or MICRO_BATCH_TOKENS, self._enough):
                logprobs, _ = self._forward(packing)
                at = torch.from_numpy(np.concatenate(packing.edges)).to(logprobs.device)
                _scatter(logprobs[at], packing, found)
        return found

    def _room_for_training(self) -> Room:
        if self._room is None:
            self._room = measure_room(self._policy, self._settings)
        return self._room

    def _forward(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """float32[E] logprobs and float32[U] entropies of a packing."""
        policy = self._policy
        hidden = policy.body.run_forest(packing.forest)
        arrays = (packing.sources, packing.temperatures, packing.heads, packing.targets)
        targets = Targets(*(torch.from_numpy(a).to(policy.device) for a in arrays))
        return target_logprobs(hidden, policy.head.weight, policy.head.bias, policy.transform, targets)

    def _apply(self, parameters: list[torch.nn.Parameter], optim: AdamParams) -> float:
        """Clip and step; returns the gradient's norm before clipping."""
        limit = float("inf") if optim.clip_norm is None else optim.clip_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if not np.isfinite(norm):
            raise BackendError(
                f"the gradient's norm is {norm}; the weights were left as they are. A loss or an advantage is not "
                "finite, or the learning rate was too high in earlier steps"
            )
        optimizer = self._optimizer = self._optimizer or _adamw(parameters)
        for group in optimizer.param_groups:
            group["lr"], group["betas"], group["eps"] = optim.lr, (optim.beta1, optim.beta2), optim.eps
            group["weight_decay"] = optim.weight_decay
        optimizer.step()
        self._policy.weights_changed()
        return norm


def _adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    """Its settings come with each step."""
    return torch.optim.AdamW(parameters, fused=True)


def _arrays(packing: Packing, rows: Sequence[Row], like: Tensor) -> TargetArrays:
    chosen = [rows[k] for k in packing.rows]

    def flat(arrays: Sequence[NDArray[np.float32]]) -> Tensor:
        parts = [a[at] for a, at in zip(arrays, packing.positions, strict=True)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(like.device)

    lengths = [len(at) for at in packing.positions]
    old = [row.old_logprobs for row in chosen if row.old_logprobs is not None]
    ref = [row.ref_logprobs for row in chosen if row.ref_logprobs is not None]
    return TargetArrays(
        mask=flat([row.mask for row in chosen]),
        sampler_logprobs=flat([row.logprobs for row in chosen]),
        advantages=flat([row.advantages for row in chosen]),
        row_index=torch.from_numpy(np.repeat(np.arange(len(chosen)), lengths)).to(like.device),
        old_logprobs=flat(old) if old else None,
        ref_logprobs=flat(ref) if ref else None,
    )


def _require_all_or_none(rows: Sequence[Row]) -> None:
    for name, held in (
        ("old_logprobs", [row.old_logprobs is not None for row in rows]),
        ("ref_logprobs", [row.ref_logprobs is not None for row in rows]),
    ):
        if any(held) and not all(held):
            raise BackendError(f"{held.count(False)} of {len(rows)} rows lack {name}; give it for all or for none")


def _scatter(flat: Tensor, packing: Packing, into: list[Floats]) -> None:
    """Write the targets' logprobs back to their rows and positions."""
    values = flat.detach().cpu().numpy()
    start = 0
    for k, at in zip(packing.rows, packing.positions, strict=True):
        into[k][at] = values[start : start + len(at)]
        start += len(at)
