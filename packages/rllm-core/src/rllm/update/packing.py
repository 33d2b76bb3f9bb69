"""Rows into token trees: what rows share as a prefix is computed once.

    rows ──▶ micro-batches of rows ──▶ one token forest each ──▶ a forward over its N nodes

A forest is flat, its nodes in depth-first order, so that a subtree is a range: node j is an ancestor of node i (or i
itself) exactly if ``j <= i < ends[j]``. That is the whole attention mask. The eight rollouts of a prompt cost one
prompt, equal beginnings of their completions cost one beginning, and a system prompt common to all tasks is computed
once per micro-batch. Pure functions of numpy arrays.
"""

__all__ = ["Chunk", "Forest", "Packing", "common_prefix", "forest_of", "pack", "sort_key", "square_chunks"]

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm.types import Row

Ints = NDArray[np.int64]

REPEATED = 1 / 16
"""What may be computed again for the sake of smaller micro-batches, as a share of one."""


@dataclass(frozen=True)
class Forest:
    """Token sequences merged by their prefixes, N nodes in depth-first order; all arrays are int64[N]."""

    tokens: Ints
    positions: Ints
    """The depth of each node: its position in every sequence through it."""
    ends: Ints
    """One past the last node of each node's subtree."""
    paths: tuple[Ints, ...]
    """Per sequence, in the order given, its nodes from the root on."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Chunk:
    """Queries ``start:stop`` of a forest, and the nodes before ``start`` that they can see."""

    start: int
    stop: int
    ancestors: Ints
    """The path to ``start``, itself left out; what else the queries see lies within ``start:stop``."""


@dataclass(frozen=True)
class Packing:
    """Some rows as one forest, with their targets.

    U counts the distinct (source node, temperature): the softmaxes to compute. E counts the distinct targets: a softmax
    and a token. Rows that share a target share its logprob; each weights it by its own mask and advantage.
    """

    forest: Forest
    rows: tuple[int, ...]
    """Which rows of the batch these are."""
    sources: Ints
    """int64[U], the nodes whose logits predict something, ascending."""
    temperatures: NDArray[np.float32]
    """float32[U]"""
    heads: Ints
    """int64[E], which of the U predicts each target."""
    targets: Ints
    """int64[E], token ids."""
    edges: tuple[Ints, ...]
    """Per row, for each of its targets in order, the index into the E."""
    positions: tuple[Ints, ...]
    """Per row, the positions of those targets in the row: where its mask is not 0."""


def forest_of(sequences: Sequence[NDArray[np.int32]]) -> Forest:
    """Merge sequences by their prefixes.

    >>> f = forest_of([np.array([7, 8, 9], np.int32), np.array([7, 8, 5], np.int32)])
    >>> f.tokens.tolist(), f.positions.tolist(), f.ends.tolist()
    ([7, 8, 5, 9], [0, 1, 2, 2], [4, 4, 3, 4])
    >>> [p.tolist() for p in f.paths]
    [[0, 1, 3], [0, 1, 2]]
    """
    keys = [sort_key(s) for s in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    paths: list[Ints] = [np.zeros(0, np.int64)] * len(sequences)
    tokens: list[NDArray[np.int32]] = []
    positions: list[Ints] = []
    closes: list[tuple[Ints, int]] = []
    n, path, before = 0, np.zeros(0, np.int64), np.zeros(0, np.int32)
    for k in order:
        sequence = sequences[k]
        shared = common_prefix(before, sequence)
        closes.append((path[shared:], n))
        fresh = np.arange(n, n + len(sequence) - shared, dtype=np.int64)
        path, before = np.concatenate([path[:shared], fresh]), sequence
        tokens.append(sequence[shared:])
        positions.append(np.arange(shared, len(sequence), dtype=np.int64))
        paths[k] = path
        n += len(fresh)
    closes.append((path, n))
    ends = np.zeros(n, np.int64)
    for nodes, end in closes:
        ends[nodes] = end
    flat = np.concatenate([np.zeros(0, np.int32), *tokens]).astype(np.int64)
    return Forest(flat, np.concatenate([np.zeros(0, np.int64), *positions]), ends, tuple(paths))


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """How many leading tokens two sequences share."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def sort_key(sequence: NDArray[np.int32]) -> bytes:
    """Sequences in this order have shared prefixes side by side."""
    # Big-endian bytes sort as the token ids do.
    return sequence.astype(">i4").tobytes()


def pack(rows: Sequence[Row], max_tokens: int, enough_tokens: int | None = None) -> list[Packing]:
    """Split rows into micro-batches of at most ``max_tokens`` distinct input tokens, and each into its forest.

    From ``enough_tokens`` on a micro-batch ends where little is shared with the next row. Rows without a target are
    left out. A single row longer than ``max_tokens`` gets a micro-batch of its own. What a row holds after its last
    target, and that target itself, is no input: nothing is predicted from it.
    """
    inputs: dict[int, NDArray[np.int32]] = {}
    for k, row in enumerate(rows):
        at = np.flatnonzero(row.mask)
        if len(at):
            inputs[k] = row.tokens[: at[-1]]
    order = sorted(inputs, key=lambda k: (sort_key(inputs[k]), k))
    enough = max_tokens if enough_tokens is None else min(enough_tokens, max_tokens)
    return [_packing(rows, inputs, part) for part in _cut(order, inputs, max_tokens, enough)]


def _cut(order: list[int], inputs: dict[int, NDArray[np.int32]], max_tokens: int, enough: int) -> Iterator[list[int]]:
    part: list[int] = []
    size, before = 0, np.zeros(0, np.int32)
    for k in order:
        shared = common_prefix(before, inputs[k])
        added = len(inputs[k]) - shared
        if part and (size + added > max_tokens or (size >= enough and shared <= enough * REPEATED)):
            yield part
            part, size, added = [], 0, len(inputs[k])
        part.append(k)
        size, before = size + added, inputs[k]
    if part:
        yield part


def _packing(rows: Sequence[Row], inputs: dict[int, NDArray[np.int32]], part: list[int]) -> Packing:
    forest = forest_of([inputs[k] for k in part])
    at = [np.flatnonzero(rows[k].mask).astype(np.int64) for k in part]
    sources = np.concatenate([path[t - 1] for path, t in zip(forest.paths, at, strict=True)])
    targets = np.concatenate([rows[k].tokens[t] for k, t in zip(part, at, strict=True)]).astype(np.int64)
    heat = np.concatenate([np.full(len(t), rows[k].temperature) for k, t in zip(part, at, strict=True)])
    levels, level = np.unique(heat, return_inverse=True)
    softmaxes, head = np.unique(np.stack([sources, level]), axis=1, return_inverse=True)
    edges, edge = np.unique(np.stack([head.reshape(-1), targets]), axis=1, return_inverse=True)
    cuts = np.cumsum([len(t) for t in at])[:-1]
    return Packing(
        forest=forest,
        rows=tuple(part),
        sources=softmaxes[0],
        temperatures=levels[softmaxes[1]].astype(np.float32),
        heads=edges[0],
        targets=edges[1],
        edges=tuple(np.split(edge.reshape(-1).astype(np.int64), cuts)),
        positions=tuple(at),
    )


def square_chunks(ends: Ints, size: int) -> list[Chunk]:
    """Cut a forest into runs of ``size`` nodes: few and large, for the trainer."""
    return [_chunk(ends, a, min(a + size, len(ends))) for a in range(0, len(ends), size)]


def _chunk(ends: Ints, start: int, stop: int) -> Chunk:
    return Chunk(start, stop, np.flatnonzero(ends[:start] > start))
