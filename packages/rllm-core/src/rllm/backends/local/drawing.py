"""From logits to drawn tokens: inverse of the cumulative distribution at a uniform number per draw.

Each draw brings its own number, and a row's distribution is computed from that row alone, so who else is in the batch
does not matter.
"""

__all__ = ["Drawn", "draw_full", "draw_modified", "modified_logprobs"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rllm.types import SamplingParams


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
    logprobs = torch.log_softmax(chosen if temperature == 1 else chosen / temperature, -1)
    tokens = _invert(logprobs.exp(), [place[row] for row in rows], uniforms)
    at = torch.tensor([place[row] for row in rows], device=logits.device)
    values: list[float] = logprobs[at, tokens].tolist()
    ids: list[int] = tokens.tolist()
    return [
        Drawn(token, value, top_of(logprobs[place[row]], n))
        for token, value, row, n in zip(ids, values, rows, tops, strict=True)
    ]


def draw_modified(logits: Tensor, params: SamplingParams, counts: Mapping[int, int], uniform: float) -> Drawn:
    """Draw from float32[V] logits as ``params`` cuts and bends them; ``counts`` are the ids drawn so far."""
    logprobs = modified_logprobs(logits, params, counts)
    is_greedy = params.temperature == 0
    token = int(logprobs.argmax() if is_greedy else _invert(logprobs.exp()[None], [0], [uniform])[0])
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
    if n == 0:
        return ()
    best = torch.topk(logprobs, min(n, len(logprobs)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _invert(probabilities: Tensor, rows: Sequence[int], uniforms: Sequence[float]) -> Tensor:
    """int64[n]: for each draw the first token whose cumulative probability exceeds u × the total.

    float32[B, V] probabilities. The product is kept below the total, so that a token of probability 0 is never drawn.
    """
    # torch adds up a float32 cumsum in float64 on CPU: its error is that of one rounding.
    cumulative = torch.cumsum(probabilities, -1)
    by_row: list[list[int]] = [[] for _ in range(len(cumulative))]
    for k, row in enumerate(rows):
        by_row[row].append(k)
    width = max(len(draws) for draws in by_row)
    u = torch.zeros(len(cumulative), width, dtype=torch.float64)
    for row, draws in enumerate(by_row):
        for column, k in enumerate(draws):
            u[row, column] = uniforms[k]
    total = cumulative[:, -1:].cpu()
    goal = (u * total.double()).float()
    goal = torch.minimum(goal, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, goal.to(cumulative.device), right=True).cpu()
    tokens = torch.zeros(len(rows), dtype=torch.int64)
    for row, draws in enumerate(by_row):
        for column, k in enumerate(draws):
            tokens[k] = found[row, column]
    return tokens.to(probabilities.device)
