"""The rows of the decode batch: what the model needs to remember of each stream, and how its next token is made.

``CachedRows`` keep keys and values; ``PlainRows`` keep nothing and read every stream whole for each token.
"""

__all__ = ["CachedRows", "PlainRows", "Rows"]

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.bodies import PlainBody, SharedBody
from rllm.backends.local.cache import DecodeLayout, KVCache
from rllm.backends.local.draws import Stream
from rllm.backends.local.prefixes import PrefixTree
from rllm.backends.local.reading import ReadLayout, Unread, plan_reading
from rllm.update.packing import forest_of

Tokens = NDArray[np.int32]


class Rows(Protocol):
    """Row k of the batch is stream k. Memory that rows don't take is used to remember what was read before."""

    def open(self, row: int, prompt: Tokens) -> int:
        """Begin a new row, the next one; how many of the prompt's tokens it knows already, all but one at most."""
        ...

    def read(self, streams: Sequence[Stream], max_tokens: int) -> tuple[list[int], Tensor]:
        """Read on in the prompts of the streams that have more than one token to read, at most so many tokens.

        Moves their ``length``. Returns the rows that have read everything, and the last hidden states [n, H] of these.
        """
        ...

    def step(self, streams: Sequence[Stream]) -> Tensor:
        """Read the next token of every stream; the hidden states after it, [len(streams), H]. Moves no ``length``.

        Meaningless for a stream that has more than one token to read.
        """
        ...

    def read_whole(self, tokens: Tokens, max_tokens: int) -> Iterator[Tensor]:
        """The hidden states of a sequence in pieces [n, H], beside the rows."""
        ...

    def reserve(self, rows: int) -> None:
        """Make room for so many rows."""
        ...

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Make one row as another is."""
        ...

    def remember(self, row: int, tokens: Tokens, max_tokens: int) -> None:
        """Keep what a row holds of ``tokens``, if no more than ``max_tokens`` are kept then."""
        ...

    def shrink(self, max_tokens: int) -> None:
        """Keep no more than so many tokens besides the rows."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class CachedRows:
    """Rows with keys and values."""

    def __init__(self, body: SharedBody, device: torch.device) -> None:
        self._body = body
        self._device = device
        self._cache = KVCache()
        self._prefixes = PrefixTree()
        self.bytes_per_token = 0
        """Of keys and values, known after the first reading; 0 if the model writes none."""

    def open(self, row: int, prompt: Tokens) -> int:
        known = self._prefixes.find(prompt[:-1])
        self._cache.reserve(row + 1, len(prompt) + 1)
        start = 0
        for held, n in known:
            self._cache.put(row, start, held, n)
            start += n
        return start

    def read(self, streams: Sequence[Stream], max_tokens: int) -> tuple[list[int], Tensor]:
        unread, n = list[Unread](), 0
        for row, stream in enumerate(streams):
            if stream.n_unread > 1 and n < max_tokens:
                unread.append(Unread(row, stream.tokens(), stream.length))
                n += stream.n_unread
        parts, hidden = self._read(self._cache, unread, max_tokens)
        for row, nodes in parts:
            streams[row].length += len(nodes)
        done = [(row, int(nodes[-1])) for row, nodes in parts if streams[row].n_unread == 0]
        return [row for row, _ in done], hidden[[node for _, node in done]]

    def step(self, streams: Sequence[Stream]) -> Tensor:
        padding = [0] * (round_up(len(streams), ROWS) - len(streams))
        self._cache.reserve(len(streams), max(s.length for s in streams) + 1)
        lengths = torch.tensor([s.length for s in streams] + padding, device=self._device)
        tokens = torch.tensor([s.next_token for s in streams] + padding, device=self._device)
        layout = DecodeLayout(self._cache, lengths)
        return self._body.run(tokens[:, None], lengths[:, None], layout)[: len(streams), 0]

    def read_whole(self, tokens: Tokens, max_tokens: int) -> Iterator[Tensor]:
        cache = KVCache()
        for start in range(0, len(tokens), max_tokens):
            stop = min(start + max_tokens, len(tokens))
            _, hidden = self._read(cache, [Unread(0, tokens[:stop], start)], max_tokens)
            yield hidden

    def _read(
        self, cache: KVCache, unread: Sequence[Unread], max_tokens: int
    ) -> tuple[list[tuple[int, NDArray[np.int64]]], Tensor]:
        """What each row got, as (row, which of the tokens read), and the hidden states of those tokens."""
        reading = plan_reading(unread, max_tokens)
        cache.reserve(max(u.row for u in unread) + 1, max(part.stop for part in reading.parts))
        n = len(reading.tokens)
        padding = (0, round_up(n, ROWS) - n)
        tokens = torch.from_numpy(np.pad(reading.tokens, padding)).to(self._device)
        positions = torch.from_numpy(np.pad(reading.positions, padding)).to(self._device)
        layout = ReadLayout(cache, reading, self._device)
        hidden = self._body.run(tokens[None], positions[None], layout)[0, :n]
        self.bytes_per_token = cache.bytes_per_token
        return [(part.row, part.nodes) for part in reading.parts], hidden

    def reserve(self, rows: int) -> None:
        self._cache.reserve(rows, 0)

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._cache.copy(source, target, tokens)

    def remember(self, row: int, tokens: Tokens, max_tokens: int) -> None:
        self._prefixes.add(tokens, lambda start, stop: self._cache.take(row, start, stop), max_tokens)

    def shrink(self, max_tokens: int) -> None:
        self._prefixes.shrink(max_tokens)

    def clear(self) -> None:
        self._cache.clear()
        self._prefixes.clear()


class PlainRows:
    """Rows without memory, for models that have no keys and values of ours."""

    def __init__(self, body: PlainBody) -> None:
        self._body = body

    def open(self, row: int, prompt: Tokens) -> int:
        return 0

    def read(self, streams: Sequence[Stream], max_tokens: int) -> tuple[list[int], Tensor]:
        rows = [row for row, stream in enumerate(streams) if stream.n_unread > 1]
        hidden = self._ends([streams[row].tokens() for row in rows])
        for row in rows:
            streams[row].length += streams[row].n_unread
        return rows, hidden

    def step(self, streams: Sequence[Stream]) -> Tensor:
        return self._ends([stream.tokens() for stream in streams])

    def read_whole(self, tokens: Tokens, max_tokens: int) -> Iterator[Tensor]:
        if len(tokens):
            yield self._body.run_forest(forest_of([tokens]))

    def _ends(self, sequences: Sequence[Tokens]) -> Tensor:
        forest = forest_of(sequences)
        return self._body.run_forest(forest)[[int(path[-1]) for path in forest.paths]]

    def reserve(self, rows: int) -> None:
        """Nothing is kept."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Nothing is kept."""

    def remember(self, row: int, tokens: Tokens, max_tokens: int) -> None:
        """Nothing is kept."""

    def shrink(self, max_tokens: int) -> None:
        """Nothing is kept."""

    def clear(self) -> None:
        """Nothing is kept."""
