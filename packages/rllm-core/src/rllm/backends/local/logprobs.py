"""From hidden states to the logprobs of targets, some rows at a time, so that the full logits are never all kept."""

__all__ = ["LogitTransform", "target_logprobs"]

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.products import Multiply, by_torch

CHUNK_BYTES = 64 * 2**20
"""Of logits made at a time."""
TOKENS = 8192
"""Of the vocabulary whose weights get their gradients at a time."""
KEEP_BYTES = 512 * 2**20
"""Up to so many bytes of log-softmax are kept for the backward; more are computed again."""


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to its head's output: logits = scale × softcap·tanh(x / softcap)."""

    scale: float = 1.0
    softcap: float | None = None
    multiply: Multiply = by_torch
    """How the head's products are made."""
    multiply_gradients: Multiply = by_torch
    """How those of its backward are."""

    def forward(self, raw: Tensor) -> Tensor:
        """Float32 logits of the head's output; may overwrite it."""
        if self.softcap is not None:
            raw = raw.div_(self.softcap).tanh_().mul_(self.softcap)
        return raw if self.scale == 1.0 else raw.mul_(self.scale)

    def backward(self, gradient: Tensor, raw: Tensor | None) -> Tensor:
        """The gradient of the head's output; ``raw`` is that output, needed for a softcap only."""
        if self.scale != 1.0:
            gradient = gradient * self.scale
        if self.softcap is not None and raw is not None:
            gradient = gradient * (1 - torch.tanh(raw / self.softcap) ** 2)
        return gradient


@dataclass(frozen=True)
class Targets:
    """U softmaxes and E targets among them, as in ``Packing``, on the model's device."""

    sources: Tensor
    """int64[U], rows of the hidden states."""
    temperatures: Tensor
    """float32[U]"""
    heads: Tensor
    """int64[E], ascending."""
    tokens: Tensor
    """int64[E]"""


def log_softmax_rows(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, temperatures: Tensor
) -> Tensor:
    """float32[n, V]: log softmax(logits / temperature) of [n, H] hidden states."""
    logits = transform.forward(head_output(hidden, weight, bias, transform.multiply))
    return torch.log_softmax(logits.div_(temperatures[:, None]), -1, out=logits)


def head_output(hidden: Tensor, weight: Tensor, bias: Tensor | None, multiply: Multiply) -> Tensor:
    """float32[n, V] of [n, H], with the rows padded to a multiple of ROWS."""
    n = len(hidden)
    hidden = hidden.float()
    padded = F.pad(hidden, (0, 0, 0, round_up(n, ROWS) - n)) if n % ROWS else hidden
    product = multiply(padded, weight)[:n]
    return product if bias is None else product + bias


def target_logprobs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, targets: Targets
) -> tuple[Tensor, Tensor]:
    """float32[E] logprobs (nats, with grad) and float32[U] entropies (nats, without)."""
    logprobs, entropies = _TargetLogprobs.apply(hidden, weight, bias, transform, targets)  # pyright: ignore
    return logprobs, entropies


def _chunks(targets: Targets, vocab: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of softmaxes, and the targets that are theirs."""
    size = max(ROWS, CHUNK_BYTES // (4 * vocab) // ROWS * ROWS)
    n = len(targets.sources)
    heads = targets.heads.cpu().contiguous()
    for start in range(0, n, size):
        stop = min(start + size, n)
        first, last = torch.searchsorted(heads, torch.tensor([start, stop])).tolist()
        yield slice(start, stop), slice(first, last)


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transform: LogitTransform,
        targets: Targets,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(targets.tokens), device=hidden.device)
        entropies = torch.empty(len(targets.sources), device=hidden.device)
        keeps = (
            any(ctx.needs_input_grad)
            and len(targets.sources) * len(weight) * 4 <= KEEP_BYTES
            and transform.softcap is None
        )
        kept: list[Tensor] = []
        for softmaxes, edges in _chunks(targets, len(weight)):
            heat = targets.temperatures[softmaxes]
            lp = log_softmax_rows(hidden[targets.sources[softmaxes]], weight, bias, transform, heat)
            logprobs[edges] = lp[targets.heads[edges] - softmaxes.start, targets.tokens[edges]]
            entropies[softmaxes] = torch.cat([-(few.exp() * few).sum(-1) for few in lp.split(ROWS)])
            if keeps:
                kept.append(lp)
        ctx.save_for_backward(hidden, weight, *(() if bias is None else (bias,)))
        ctx.kept, ctx.transform, ctx.targets = kept, transform, targets
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """d logit_v = (1[v is the target] − p_v) g / temperature, summed over a softmax's targets."""
        hidden, weight, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        transform, targets = ctx.transform, ctx.targets
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.zeros_like(hidden) if wants_hidden else None
        to_weight = torch.zeros_like(weight) if wants_weight else None
        to_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        for k, (softmaxes, edges) in enumerate(_chunks(targets, len(weight))):
            heat = targets.temperatures[softmaxes]
            states = hidden[targets.sources[softmaxes]].float()
            raw = None
            if ctx.kept:
                lp, ctx.kept[k] = ctx.kept[k], None
            else:
                raw = head_output(states, weight, bias, transform.multiply) if transform.softcap is not None else None
                lp = log_softmax_rows(states, weight, bias, transform, heat)
            heads = targets.heads[edges] - softmaxes.start
            g = gradients[0][edges]
            total = torch.zeros(len(heat), device=g.device).index_add_(0, heads, g)
            d = lp.exp_().mul_(-total[:, None])
            d.index_put_((heads, targets.tokens[edges]), g, accumulate=True)
            d = transform.backward(d.div_(heat[:, None]), raw)
            if to_hidden is not None:
                to_hidden.index_add_(
                    0, targets.sources[softmaxes], transform.multiply_gradients(d, weight.t()).to(to_hidden.dtype)
                )
            if to_weight is not None:
                for of in range(0, len(weight), TOKENS):  # a piece at a time: the whole may be larger than the model
                    part = slice(of, of + TOKENS)
                    to_weight[part] += transform.multiply_gradients(d[:, part].t(), states.t())
            if to_bias is not None:
                to_bias += d.sum(0)
        return to_hidden, to_weight, to_bias, None, None
