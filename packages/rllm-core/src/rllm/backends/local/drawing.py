"""From logits to drawn tokens: inverse of the cumulative distribution at a uniform number per draw.

Each draw brings its own number, and a row's distribution is computed from that row alone, so who else is in the batch
does not matter.
"""

__all__ = ["Drawn", "draw_full", "draw_modified", "modified_logprobs", "score_tokens"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rllm.types import SamplingParams

BLOCK = 256
"""Tokens of the vocabulary that are summed up together."""


@dataclass(frozen=True)
class Drawn:
    """One drawn token."""

    token: int
    logprob: float
    """Nats, of the distribution drawn from (greedy: of the softmax at temperature 1)."""
    top: tuple[tuple[int, float], ...]
    """The alternatives asked for, best first."""


def draw_full(
    logits: Tensor, rows: Sequence[int], temperature: float, uniforms: Sequence[float], tops: Sequence[int]
) -> list[Drawn]:
    """Draw from softmax(logits / temperature), one token for each of ``rows`` (a row may occur again).

    float32[B, V] logits; ``uniforms`` in [0, 1), one per draw; ``tops``: how many alternatives each draw reports.
    """
    used = sorted(set(rows))
    place = {row: k for k, row in enumerate(used)}
    chosen = logits if len(used) == len(logits) else logits[torch.tensor(used, device=logits.device)]
    if temperature != 1:
        chosen = chosen / temperature
    # One exp and no log-softmax of the whole vocabulary: at 64 rows each pass over it takes as long as two layers.
    powers, sums, norms = _powers(chosen)
    at = torch.tensor([place[row] for row in rows], device=logits.device)
    tokens = _invert(powers, sums, at, torch.tensor(uniforms, dtype=torch.float64))
    values: list[float] = (chosen[at, tokens] - norms[at]).tolist()
    ids: list[int] = tokens.tolist()
    return [
        Drawn(token, value, top_of(chosen[place[row]] - norms[place[row]], n) if n else ())
        for token, value, row, n in zip(ids, values, rows, tops, strict=True)
    ]


def score_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """float32[n]: of each row of float32[n, V] logits the logprob of one token, nats, as ``draw_full`` reports it."""
    _, _, norms = _powers(logits)
    return logits.gather(1, tokens[:, None])[:, 0] - norms


def draw_modified(logits: Tensor, params: SamplingParams, counts: Mapping[int, int], uniform: float) -> Drawn:
    """Draw from float32[V] logits as ``params`` cuts and bends them; ``counts`` are the ids drawn so far."""
    logprobs = modified_logprobs(logits, params, counts)
    is_greedy = params.temperature == 0
    token = int(logprobs.argmax() if is_greedy else _invert_one(logprobs.exp(), uniform))
    return Drawn(token, float(logprobs[token]), top_of(logprobs, params.top_logprobs))


def modified_logprobs(logits: Tensor, params: SamplingParams, counts: Mapping[int, int]) -> Tensor:
    """float32[V]: the logprobs of the distribution that ``params`` ask for, -inf where it is cut off.

    In this order, as OpenAI and vLLM have it: penalties on the logits, temperature, top_k, top_p, min_p. Greedy is
    reported at temperature 1, for the logprob of a certain token says nothing.
    """
    if counts and (params.presence_penalty or params.frequency_penalty):
        logits = logits.clone()
        seen = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[seen] -= params.presence_penalty + params.frequency_penalty * times
    logprobs = torch.log_softmax(logits / (params.temperature or 1.0), -1)
    if params.temperature == 0:
        return logprobs
    if params.top_k and params.top_k < len(logprobs):
        kept = torch.topk(logprobs, params.top_k).indices
        logprobs = _only(logprobs, kept)
    if params.top_p < 1:
        ordered, order = torch.sort(logprobs, descending=True, stable=True)
        before = torch.cumsum(ordered.exp(), -1) - ordered.exp()
        logprobs = _only(logprobs, order[before < params.top_p])
    if params.min_p > 0:
        floor = logprobs.max() + torch.log(torch.tensor(params.min_p))
        logprobs = _only(logprobs, torch.nonzero(logprobs >= floor)[:, 0])
    return logprobs


def _only(logprobs: Tensor, kept: Tensor) -> Tensor:
    cut = torch.full_like(logprobs, float("-inf"))
    cut[kept] = logprobs[kept]
    return torch.log_softmax(cut, -1)


def top_of(logprobs: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    """The n likeliest ids of float32[V] and their logprobs, best first."""
    best = torch.topk(logprobs, min(n, len(logprobs)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _invert_one(probabilities: Tensor, uniform: float) -> Tensor:
    powers = _in_blocks(probabilities[None])
    at = torch.zeros(1, dtype=torch.int64, device=probabilities.device)
    return _invert(powers, powers.sum(-1), at, torch.tensor([uniform], dtype=torch.float64))[0]


def _powers(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits − their greatest) in blocks, the blocks' sums [B, V / BLOCK], and the log of the norm [B]."""
    top = logits.amax(-1, keepdim=True)
    powers = _in_blocks((logits - top).exp_())
    sums = powers.sum(-1)
    return powers, sums, top[:, 0] + sums.sum(-1).log()


def _in_blocks(powers: Tensor) -> Tensor:
    """float32[B, V] as [B, V / BLOCK, BLOCK], filled up with zeros."""
    pad = -powers.shape[1] % BLOCK
    return (torch.nn.functional.pad(powers, (0, pad)) if pad else powers).unflatten(1, (-1, BLOCK))


def _invert(blocks: Tensor, sums: Tensor, rows: Tensor, uniforms: Tensor) -> Tensor:
    """int64[n]: for each draw the first token whose cumulative probability exceeds u × the total.

    Probabilities in blocks, not necessarily summing to 1, the blocks' sums, the row of each draw, and its u. First the
    block is found by the sums, then the token within it: only the sums and one block per draw are added up one after
    another. The goal is kept below the total, so that a token of probability 0 is never drawn.
    """
    block, rest = _search(sums[rows].cpu().double(), uniforms)
    held = blocks[rows, block.to(rows.device)].cpu().double()
    # What is left of the goal, as a share of the block's own sum, which was rounded otherwise.
    share = rest / sums[rows, block.to(rows.device)].cpu().double()
    token, _ = _search(held, share)
    return (block * BLOCK + token).to(blocks.device)


def _search(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """int64[n]: the first index at which the cumulative weight exceeds u × the total, and by how much that goal exceeds
    the weight before it, float64[n]. float64[n, k] weights."""
    cumulative = torch.cumsum(weights, -1)
    total = cumulative[:, -1:]
    goal = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, goal, right=True)
    before = torch.where(found > 0, cumulative.gather(1, (found - 1).clamp(min=0)), 0.0)
    return found[:, 0], (goal - before)[:, 0]
