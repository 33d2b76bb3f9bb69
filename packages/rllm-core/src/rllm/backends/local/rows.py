"""The rows of the decode batch: what the model needs to remember of each stream, and how its next token is made.

``CachedRows`` keep keys and values; ``PlainRows`` keep nothing and read every stream whole for each token.
"""

__all__ = ["CachedRows", "PlainRows", "Rows"]

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.bodies import PlainBody, SharedBody
from rllm.backends.local.cache import DecodeLayout, KVCache
from rllm.backends.local.draws import Stream
from rllm.update.packing import forest_of


class Rows(Protocol):
    """Row k of the batch is stream k."""

    def read(self, first: int, prompts: Sequence[NDArray[np.int32]]) -> Tensor:
        """Read prompts into the rows from ``first`` on; their last hidden states, [len(prompts), H]."""
        ...

    def step(self, streams: Sequence[Stream]) -> Tensor:
        """Read each stream's ``next_token``; the hidden states after it, [len(streams), H]."""
        ...

    def reserve(self, rows: int) -> None:
        """Make room for so many rows."""
        ...

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Make one row as another is."""
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

    def read(self, first: int, prompts: Sequence[NDArray[np.int32]]) -> Tensor:
        forest = forest_of(prompts)
        paths = [torch.from_numpy(path).to(self._device) for path in forest.paths]
        self._cache.reserve(first + len(prompts), max(len(path) for path in paths) + 1)

        def capture(layer: int, keys: Tensor, values: Tensor) -> None:
            for k, path in enumerate(paths):
                self._cache.fill(first + k, layer, keys[:, path], values[:, path])

        hidden = self._body.run_forest(forest, is_exact=True, capture=capture)
        return hidden[torch.stack([path[-1] for path in paths])]

    def step(self, streams: Sequence[Stream]) -> Tensor:
        padding = [0] * (round_up(len(streams), ROWS) - len(streams))
        self._cache.reserve(len(streams), max(s.length for s in streams) + 1)
        lengths = torch.tensor([s.length for s in streams] + padding, device=self._device)
        tokens = torch.tensor([s.next_token for s in streams] + padding, device=self._device)
        layout = DecodeLayout(self._cache, lengths)
        return self._body.run(tokens[:, None], lengths[:, None], layout)[: len(streams), 0]

    def reserve(self, rows: int) -> None:
        self._cache.reserve(rows, 0)

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._cache.copy(source, target, tokens)

    def clear(self) -> None:
        self._cache.clear()


class PlainRows:
    """Rows without memory, for models that have no keys and values of ours."""

    def __init__(self, body: PlainBody) -> None:
        self._body = body

    def read(self, first: int, prompts: Sequence[NDArray[np.int32]]) -> Tensor:
        forest = forest_of(prompts)
        return self._body.run_forest(forest, is_exact=True)[[int(path[-1]) for path in forest.paths]]

    def step(self, streams: Sequence[Stream]) -> Tensor:
        return self.read(0, [stream.tokens() for stream in streams])

    def reserve(self, rows: int) -> None:
        """Nothing is kept."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Nothing is kept."""

    def clear(self) -> None:
        """Nothing is kept."""
