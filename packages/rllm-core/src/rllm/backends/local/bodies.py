"""How a model's body is run: over token forests with our attention, or, where that can't be, each sequence whole.

Models that keep a state instead of keys (Mamba) or have an attention of their own (Bloom, Falcon) get the second: the
same numbers, nothing shared, no cache, and so much slower. ``choosing`` finds out which.
"""

__all__ = ["Body", "PlainBody", "SharedBody"]

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.attention import ForestLayout, Layout
from rllm.update.packing import Forest, square_chunks

RUN_TOKENS = 128
"""Queries of a forest that attend at a time."""


class Body(Protocol):
    """From tokens to last hidden states."""

    def run_forest(self, forest: Forest) -> Tensor:
        """Hidden states [N, H] of a forest's nodes."""
        ...


class SharedBody:
    """What sequences share is computed once, by ``rllm_attention``."""

    def __init__(self, body: nn.Module, device: torch.device) -> None:
        self._body = body
        self._device = device

    def run_forest(self, forest: Forest) -> Tensor:
        """See ``Body``."""
        padded = _padded(forest)
        layout = ForestLayout(padded, square_chunks(padded.ends, RUN_TOKENS), self._device)
        tokens = torch.from_numpy(padded.tokens).to(self._device)[None]
        positions = torch.from_numpy(padded.positions).to(self._device)[None]
        return self.run(tokens, positions, layout)[0, : len(forest)]

    def run(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Hidden states [B, T, H] of int64[B, T] tokens at their positions, attending as ``layout`` says."""
        output = self._body(input_ids=tokens, position_ids=positions, use_cache=False, rllm_layout=layout)
        return output.last_hidden_state


class PlainBody:
    """Each sequence whole, padded on the right: what comes later can't be seen by a causal model."""

    def __init__(self, body: nn.Module, device: torch.device) -> None:
        self._body = body
        self._device = device

    def run_forest(self, forest: Forest) -> Tensor:
        """See ``Body``."""
        longest = [path for path in forest.paths if len(path) and forest.ends[path[-1]] == path[-1] + 1]
        distinct = list({int(path[-1]): path for path in longest}.values())
        width = max(len(path) for path in distinct)
        tokens = np.zeros((len(distinct), width), np.int64)
        where = np.zeros((2, len(forest)), np.int64)
        for row, path in enumerate(distinct):
            tokens[row, : len(path)] = forest.tokens[path]
            where[0, path], where[1, path] = row, np.arange(len(path))
        output = self._body(input_ids=torch.from_numpy(tokens).to(self._device), use_cache=False)
        at = torch.from_numpy(where).to(self._device)
        return output.last_hidden_state[at[0], at[1]]


def _padded(forest: Forest) -> Forest:
    """With lone nodes at the end, so that their number is a multiple of ROWS."""
    n = len(forest)
    extra = round_up(n, ROWS) - n
    if not extra:
        return forest
    zeros = np.zeros(extra, np.int64)
    return Forest(
        np.concatenate([forest.tokens, zeros]),
        np.concatenate([forest.positions, zeros]),
        np.concatenate([forest.ends, np.arange(n + 1, n + extra + 1)]),
        forest.paths,
    )
