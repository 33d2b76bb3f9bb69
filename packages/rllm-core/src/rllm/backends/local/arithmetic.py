"""Attention whose bits depend on the sequence alone: not on its neighbours, its padding, or how it was cut up.

On a CPU, in float32, a matrix product's row has the same bits whatever the other rows are, if their number is a
multiple of four (measured: a thread's left-over of 1 to 3 rows takes another kernel on AVX2, a single row on AVX-512),
and a contraction has the same bits if its length is cut into the same pieces. Hence ``ROWS``, ``KEYS`` and ``PIECE``:
with them a position decoded in company equals the same position prefilled alone, to the last bit.
"""

__all__ = ["KEYS", "ROWS", "attend", "attend_backward", "round_up"]

import torch
from torch import Tensor

ROWS = 4
"""Rows of every matrix product come in multiples of this."""
KEYS = 16
"""Keys come in multiples of this, so that the softmax adds up in the same lanes."""
PIECE = 128
"""Keys are contracted in pieces of this length, added in order."""


def round_up(n: int, multiple: int) -> int:
    """The least multiple that is at least ``n``."""
    return -(-n // multiple) * multiple


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, softcap: float | None = None, sinks: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ + bias) v: float32[B, M, D] queries (scaled) over [B, S, D] keys and values; no gradient.

    M is a multiple of ROWS and S of KEYS. ``bias`` broadcasts to [B, M, S]: -inf where a key is not seen, else 0.
    ``softcap``: scores become c·tanh(score / c) first (Gemma 2). ``sinks`` [B, M, 1]: a further score that takes
    weight and gives nothing (gpt-oss).
    """
    weights = attention_weights(q, k, bias, softcap, sinks)
    mixed = torch.bmm(weights[..., :PIECE], v[:, :PIECE])
    for start in range(PIECE, v.shape[1], PIECE):
        mixed += torch.bmm(weights[..., start : start + PIECE], v[:, start : start + PIECE])
    return mixed


def attention_weights(q: Tensor, k: Tensor, bias: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """float32[B, M, S], as in ``attend``; they sum to 1, or to less with sinks."""
    if softcap is None:
        scores = torch.baddbmm(bias.expand(len(q), q.shape[1], -1), q, k.transpose(1, 2))
    else:
        scores = torch.bmm(q, k.transpose(1, 2)).div_(softcap).tanh_().mul_(softcap).add_(bias)
    if sinks is None:
        return torch.softmax(scores, -1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    powers = torch.exp(scores - top)
    return powers / (powers.sum(-1, keepdim=True) + torch.exp(sinks - top))


def attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, softcap: float | None, sinks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and sinks ([B, M, 1]) from that of ``attend``'s result; the weights are made again."""
    weights = attention_weights(q, k, bias, softcap, sinks)
    to_v = torch.bmm(weights.transpose(1, 2), gradient)
    to_weights = torch.bmm(gradient, v.transpose(1, 2))
    # p (dp − Σ p dp), in one pass; a sink's own dp is 0, so the formula holds with and without one.
    to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights, -1, torch.float32)
    to_sinks = None
    if sinks is not None:
        to_sinks = -(1 - weights.sum(-1, keepdim=True)) * (weights * to_weights).sum(-1, keepdim=True)
    if softcap is not None:
        to_scores *= 1 - torch.tanh(torch.bmm(q, k.transpose(1, 2)) / softcap) ** 2
    return torch.bmm(to_scores, k), torch.bmm(to_scores.transpose(1, 2), q), to_v, to_sinks
