"""The built-in losses, and the two terms that a backend puts around any loss.

All are functions of logprobs of the N targets, flat tensors in nats, and use the tensors' own methods only, so that
this module loads without torch. No logprob difference beyond ±20 nats is told from ±20 (verl bounds it alike): e^89
is infinite in float32, and infinity times an advantage of 0 is NaN.
"""

from __future__ import annotations

__all__ = ["PpoSettings", "cross_entropy", "importance_sampling", "importance_weights", "k3", "ppo"]

from typing import TYPE_CHECKING

from pydantic import Field

from rllm.config import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from rllm.protocols import LossInputs

LARGEST_LOG_RATIO = 20.0
"""Nats; e^20 is 4.9e8."""


class PpoSettings(Settings):
    """Settings of ``ppo``."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below 1 − clip_low."""
    clip_high: float = Field(default=0.28, ge=0)
    """And above 1 + clip_high; more than clip_low leaves unlikely tokens room to grow ("clip-higher")."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds the loss of a target with a negative advantage by dual_clip × |A|, whatever its ratio; null does not."""


def cross_entropy(logprobs: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """−logprob, [N], nats: the likelihood of given tokens, for supervised fine-tuning. Advantages play no part."""
    return -logprobs, {"nll": -logprobs.detach()}


def importance_sampling(logprobs: Tensor, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """−r · A with r = exp(logprobs − old logprobs), [N].

    Its gradient is −r · A ∇logprob, which at r = 1 is REINFORCE's.
    """
    ratio = _log_ratio(logprobs, inputs.old_logprobs).exp()
    return -ratio * inputs.advantages, _measure(logprobs, inputs)


def ppo(logprobs: Tensor, inputs: LossInputs, settings: PpoSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(r · A, clip(r, 1 − clip_low, 1 + clip_high) · A) with r = exp(logprobs − old logprobs), [N].

    Schulman et al. 2017 (arXiv:1707.06347), eq. 7; asymmetric as in DAPO (Yu et al. 2025, arXiv:2503.14476), eq. 10.
    With ``dual_clip`` = c, where A < 0, it is min(that, −c · A); Ye et al. 2020 (arXiv:1912.09729).
    """
    advantages = inputs.advantages
    ratio = _log_ratio(logprobs, inputs.old_logprobs).exp()
    free = -ratio * advantages
    clipped = -ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high) * advantages
    loss = free.maximum(clipped)
    measured = _measure(logprobs, inputs)
    measured["clip_fraction"] = (clipped > free).to(free.dtype)
    if settings.dual_clip is not None:
        bound = -settings.dual_clip * advantages
        is_bound = (advantages < 0) & (loss > bound)
        loss = bound.where(is_bound, loss)
        measured["dual_clip_fraction"] = is_bound.to(free.dtype)
    return loss, measured


def importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """min(exp(old − sampler), cap), [N], without gradient: truncated importance sampling.

    It corrects for the sampler's arithmetic (or weights) being other than the trainer's; ``cap`` bounds what one
    token can weigh. Ionides 2008; Yao et al. 2025, https://fengyao.notion.site/off-policy-rl.
    """
    return _log_ratio(old_logprobs, sampler_logprobs).exp().clamp(max=cap).detach()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(q/p − 1) − log(q/p) with p the policy and q the reference, [N], with gradient; never negative.

    Where the tokens were drawn from p its mean is KL(p ‖ q), in nats. Schulman, http://joschu.net/blog/kl-approx.html;
    DeepSeekMath (arXiv:2402.03300), eq. 4.
    """
    log_ratio = _log_ratio(ref_logprobs, logprobs)
    return log_ratio.expm1() - log_ratio


def _log_ratio(above: Tensor, below: Tensor) -> Tensor:
    """log(above / below), bounded."""
    return (above - below).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def _measure(logprobs: Tensor, inputs: LossInputs) -> dict[str, Tensor]:
    """How far the policy has moved since the batch began: KL(old ‖ current) by k1 = −log r and k3 = (r − 1) − log r.

    Both are 0 on the first optimizer step of a batch, where old and current are the same.
    """
    log_ratio = _log_ratio(logprobs, inputs.old_logprobs).detach()
    return {
        "ratio": log_ratio.exp(),
        "approx_kl_k1": -log_ratio,
        "approx_kl": log_ratio.expm1() - log_ratio,
    }
