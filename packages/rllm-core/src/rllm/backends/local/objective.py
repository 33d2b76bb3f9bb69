"""What an update minimises: Σ mask × (loss + kl_coef·k3) × min(old / sampler, cap), and what it measures by the way.

Works on the flat targets of one micro-batch; sums over micro-batches give the batch, however it was split.
"""

__all__ = ["Measures", "TargetArrays", "objective"]

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rllm.errors import ConfigError
from rllm.protocols import LossInputs, LossSpec
from rllm.update.losses import importance_weights, k3


@dataclass(frozen=True)
class TargetArrays:
    """The N targets of some rows, float32[N] each."""

    mask: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    row_index: Tensor
    """int64[N]"""
    old_logprobs: Tensor | None
    """None: the detached current ones."""
    ref_logprobs: Tensor | None


@dataclass
class Measures:
    """Sums and peaks over targets, from which token means come."""

    n: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Per-token values [N], all of the same N."""
        self.n += len(next(iter(values.values())))
        for name, value in values.items():
            # On the CPU, because MPS has no float64.
            self.sums[name] = self.sums.get(name, 0.0) + float(value.cpu().double().sum())

    def peak(self, name: str, value: Tensor) -> None:
        """Keep the greatest."""
        self.peaks[name] = max(self.peaks.get(name, 0.0), float(value.max()))

    def means(self) -> dict[str, float]:
        """Token means, and the peaks as they are."""
        return {name: total / self.n for name, total in self.sums.items()} | self.peaks


def objective(logprobs: Tensor, entropies: Tensor, arrays: TargetArrays, loss: LossSpec, measures: Measures) -> Tensor:
    """The scalar to be summed over micro-batches. ``logprobs`` float32[N], nats, with grad; ``entropies`` without.

    Raises ConfigError where the loss returns something else than [N] losses and measurements.
    """
    current = logprobs.detach()
    old = current if arrays.old_logprobs is None else arrays.old_logprobs
    inputs = LossInputs(
        sampler_logprobs=arrays.sampler_logprobs,
        old_logprobs=old,
        advantages=arrays.advantages,
        ref_logprobs=arrays.ref_logprobs,
        row_index=arrays.row_index,
    )
    losses, measured = _call(loss, logprobs, inputs)
    found: dict[str, Tensor] = {**measured, "entropy": entropies}
    if loss.kl_coef > 0:
        if arrays.ref_logprobs is None:
            raise ConfigError("kl_coef is set, but the rows carry no reference logprobs")
        kl = k3(logprobs, arrays.ref_logprobs)
        losses = losses + loss.kl_coef * kl
        found["kl_reference"] = kl.detach()
    if loss.ratio_cap is not None:
        weights = importance_weights(old, arrays.sampler_logprobs, loss.ratio_cap)
        losses = losses * weights
        found["ratio_capped"] = (weights == loss.ratio_cap).float()
    # Of the weights that were sampled from; how far the policy has moved since is the loss's to measure (approx_kl).
    gap = old - arrays.sampler_logprobs
    found["logprob_gap_mean"] = gap.abs()
    found["kl_k1"] = -gap
    found["kl_k3"] = k3(arrays.sampler_logprobs, old)
    measures.add(found)
    measures.peak("logprob_gap_max", gap.abs())
    return (arrays.mask * losses).sum()


def _call(loss: LossSpec, logprobs: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    if loss.settings is None:
        losses, measured = loss.function(logprobs, inputs)
    else:
        losses, measured = loss.function(logprobs, inputs, loss.settings)
    for name, value in {"the losses": losses, **measured}.items():
        if value.shape != logprobs.shape:
            raise ConfigError(
                f"the loss {loss.name!r} returned {name} of shape {tuple(value.shape)} for {len(logprobs)} tokens; "
                "it must return one value per token"
            )
    return losses, measured
