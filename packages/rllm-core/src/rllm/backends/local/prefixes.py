"""What was read before and may be asked for again: keys and values by their tokens, the oldest use let go first.

A tree of segments: conversations that begin alike share the segment of their beginning, so a group's prompt is held
once, and a conversation's next turn finds the turns before it. A position's keys and values have the same bits however
they were computed (``arithmetic``), so what is found here, or was let go, changes the time and nothing else.
"""

__all__ = ["PrefixTree"]

import heapq
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rllm.backends.local.cache import KeysValues
from rllm.update.packing import common_prefix

Tokens = NDArray[np.int32]


class Segment:
    """A run of tokens after those of its ``parent``, with their keys and values."""

    def __init__(self, tokens: Tokens, held: KeysValues, parent: "Segment | None") -> None:
        self.tokens = tokens
        self.held = held
        self.parent = parent
        self.children: dict[int, Segment] = {}
        self.used = 0

    def split(self, n: int) -> None:
        """Keep the first ``n`` tokens; the others go to a new child, which takes the children."""
        tail = Segment(self.tokens[n:], self.held.part(n, len(self.tokens)), self)
        tail.children, tail.used = self.children, self.used
        for child in tail.children.values():
            child.parent = tail
        self.tokens, self.held = self.tokens[:n], self.held.part(0, n)
        self.children = {int(tail.tokens[0]): tail}

    def __lt__(self, other: Self) -> bool:
        return self.used < other.used


class PrefixTree:
    """Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._root = Segment(np.zeros(0, np.int32), KeysValues({}), None)
        self._clock = 0
        self.n_tokens = 0
        """Tokens held."""

    def find(self, tokens: Tokens) -> list[tuple[KeysValues, int]]:
        """The longest beginning of ``tokens`` that is held: keys and values, and how many tokens of each to take."""
        return [(segment.held, n) for segment, n in self._path(tokens)]

    def add(self, tokens: Tokens, take: Callable[[int, int], KeysValues], max_tokens: int) -> None:
        """Hold ``tokens`` too; ``take(start, stop)`` copies the keys and values of what was not held yet.

        At most ``max_tokens`` are held then; what doesn't fit even so is not added.
        """
        path = self._path(tokens)
        start = sum(n for _, n in path)
        missing = len(tokens) - start
        if missing == 0:
            return
        # What this one continues was just used, and is let go last.
        self.shrink(max_tokens - missing)
        if self.n_tokens + missing > max_tokens or any(segment.parent is None for segment, _ in path):
            return
        parent = self._root
        if path:
            parent, n = path[-1]
            if n < len(parent.tokens):
                parent.split(n)
        child = Segment(tokens[start:].copy(), take(start, len(tokens)), parent)
        child.used = self._clock
        parent.children[int(tokens[start])] = child
        self.n_tokens += missing

    def shrink(self, max_tokens: int) -> None:
        """Let go of what was used longest ago, until at most ``max_tokens`` are held."""
        if self.n_tokens <= max_tokens:
            return
        leaves = [s for s in self._segments() if not s.children]
        heapq.heapify(leaves)
        while leaves and self.n_tokens > max_tokens:
            leaf = heapq.heappop(leaves)
            parent = leaf.parent
            assert parent is not None
            del parent.children[int(leaf.tokens[0])]
            leaf.parent = None
            self.n_tokens -= len(leaf.tokens)
            if not parent.children and parent is not self._root:
                heapq.heappush(leaves, parent)

    def clear(self) -> None:
        """Hold nothing: the weights have changed."""
        self._root.children.clear()
        self.n_tokens = 0

    def _path(self, tokens: Tokens) -> list[tuple[Segment, int]]:
        self._clock += 1
        path: list[tuple[Segment, int]] = []
        segment, start = self._root, 0
        while start < len(tokens):
            child = segment.children.get(int(tokens[start]))
            if child is None:
                break
            n = common_prefix(child.tokens, tokens[start:])
            child.used = self._clock
            path.append((child, n))
            start += n
            if n < len(child.tokens):
                break
            segment = child
        return path

    def _segments(self) -> list[Segment]:
        found: list[Segment] = []
        open_ones = list(self._root.children.values())
        while open_ones:
            segment = open_ones.pop()
            found.append(segment)
            open_ones += segment.children.values()
        return found
