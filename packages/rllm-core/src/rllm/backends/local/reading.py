"""Reading prompts: what several rows are to read becomes one forward over distinct tokens, in pieces of bounded length.

    rows with unread tokens ──▶ plan_reading ──▶ tokens, each once ──▶ a forward that fills the rows (ReadLayout)

What rows share and none of them holds is computed once and written to each of them. Nothing here changes a bit of the
result: a run of queries sees the keys of its own sequence, in order and nothing between, however it was cut up.
"""

__all__ = ["ReadLayout", "Reading", "Unread", "plan_reading"]

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.arithmetic import KEYS, ROWS, attend, round_up
from rllm.backends.local.attention import Scoring, pad_queries, spread_sinks
from rllm.backends.local.cache import KVCache
from rllm.update.packing import common_prefix, sort_key

Ints = NDArray[np.int64]

RUN_TOKENS = 128
"""Queries that attend at a time."""


@dataclass(frozen=True)
class Unread:
    """A row of the cache that holds the first ``known`` of its tokens."""

    row: int
    tokens: NDArray[np.int32]
    known: int


@dataclass(frozen=True)
class Part:
    """What a row gets: the positions from ``start`` on, each from one of the tokens that are read."""

    row: int
    start: int
    nodes: Ints

    @property
    def stop(self) -> int:
        return self.start + len(self.nodes)


@dataclass(frozen=True)
class Run:
    """Queries that attend together: tokens ``node:node + n``, the positions from ``start`` on of a row."""

    row: int
    start: int
    node: int
    n: int


@dataclass(frozen=True)
class Reading:
    """One forward: int64[N] tokens and positions, where they go, and which of them attend together."""

    tokens: Ints
    positions: Ints
    parts: tuple[Part, ...]
    """One per row, in the order given; a row that does not get on is left out."""
    runs: tuple[Run, ...]


def plan_reading(unread: Sequence[Unread], max_tokens: int) -> Reading:
    """Read as far as ``max_tokens`` distinct tokens go, rows that begin alike side by side.

    >>> a, b = np.array([7, 8, 9], np.int32), np.array([7, 8, 5], np.int32)
    >>> plan = plan_reading([Unread(0, a, 0), Unread(1, b, 1)], 10)
    >>> plan.tokens.tolist(), plan.positions.tolist(), [p.nodes.tolist() for p in plan.parts]
    ([8, 5, 7, 8, 9], [1, 2, 0, 1, 2], [[2, 3, 4], [0, 1]])
    """
    tokens: list[NDArray[np.int32]] = []
    positions: list[Ints] = []
    parts: dict[int, Part] = {}
    runs: list[Run] = []
    n, before, part = 0, np.zeros(0, np.int32), None
    for k in sorted(range(len(unread)), key=lambda k: sort_key(unread[k].tokens)):
        row = unread[k]
        # Of the row before, what it reads itself can be shared; what it holds already has no token here.
        shared = min(common_prefix(before, row.tokens), part.stop) if part is not None else 0
        if part is None or part.start > row.known or shared <= row.known:
            shared, again = row.known, np.zeros(0, np.int64)
        else:
            again = part.nodes[row.known - part.start : shared - part.start]
        stop = min(len(row.tokens), shared + max_tokens - n)
        nodes = np.concatenate([again, np.arange(n, n + stop - shared)])
        if not len(nodes):
            continue
        tokens.append(row.tokens[shared:stop])
        positions.append(np.arange(shared, stop))
        runs += [Run(row.row, a, n + a - shared, min(RUN_TOKENS, stop - a)) for a in range(shared, stop, RUN_TOKENS)]
        n += stop - shared
        before, part = row.tokens, Part(row.row, row.known, nodes)
        parts[k] = part
    ordered = tuple(parts[k] for k in sorted(parts))
    return Reading(np.concatenate(tokens).astype(np.int64), np.concatenate(positions), ordered, tuple(runs))


class ReadLayout:
    """The tokens of a reading, [1, N], written to their rows and attending to what these hold up to them."""

    def __init__(self, cache: KVCache, reading: Reading, device: torch.device) -> None:
        self._cache = cache
        self._parts = [(part, torch.from_numpy(part.nodes).to(device)) for part in reading.parts]
        self._runs = reading.runs
        self._device = device
        self._biases: dict[tuple[Run, int, int | None], Tensor] = {}

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        heads, kv_heads, n = q.shape[1], k.shape[1], q.shape[2]
        groups = heads // kv_heads
        keys, values = self._cache.layer(layer, k, v)
        for part, nodes in self._parts:
            keys[part.row, :, part.start : part.stop] = k[0].index_select(1, nodes)
            values[part.row, :, part.start : part.stop] = v[0].index_select(1, nodes)
        grouped = (q[0] * scoring.scale).unflatten(0, (kv_heads, groups))
        sinks = None if scoring.sinks is None else scoring.sinks.float().view(kv_heads, -1)
        mixed = q.new_zeros(kv_heads, groups, n, v.shape[-1])
        for run in self._runs:
            rows = round_up(run.n, ROWS)
            width = round_up(run.start + run.n, KEYS)
            part = attend(
                pad_queries(grouped[:, :, run.node : run.node + run.n], rows),
                keys[run.row, :, :width],
                values[run.row, :, :width],
                self._bias(run, groups, scoring.window),
                scoring.softcap,
                spread_sinks(sinks, rows),
            )
            mixed[:, :, run.node : run.node + run.n] = part.unflatten(1, (groups, -1))[:, :, : run.n]
        return mixed.permute(2, 0, 1, 3).reshape(1, n, heads, v.shape[-1])

    def _bias(self, run: Run, groups: int, window: int | None) -> Tensor:
        """float32[groups × M, S]: -inf where a key is not seen; made once for all layers."""
        key = (run, groups, window)
        if key not in self._biases:
            at = torch.arange(round_up(run.start + run.n, KEYS), device=self._device)[None]
            queries = torch.arange(round_up(run.n, ROWS), device=self._device)
            # Padded queries repeat the first one.
            queries = (run.start + queries.where(queries < run.n, 0))[:, None]
            hidden = at > queries
            if window is not None:
                hidden = hidden | (queries - at >= window)
            bias = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, float("-inf"))
            self._biases[key] = bias.repeat(groups, 1)
        return self._biases[key]
