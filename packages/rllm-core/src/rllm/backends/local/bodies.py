"""How a model's body is run: over token forests with our attention, or, where that can't be, each sequence whole.

``choose_body`` tries the first on a small example and takes it only if it gives transformers' own logits. Models that
keep a state instead of keys (Mamba) or have an attention of their own (Bloom, Falcon) get the second: the same numbers,
nothing shared, no cache, and so much slower.
"""

__all__ = ["Body", "PlainBody", "SharedBody", "choose_body"]

import logging
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rllm.backends.local.arithmetic import ROWS, round_up
from rllm.backends.local.attention import ATTENTION, Capture, ForestLayout, Layout, register_attention
from rllm.errors import ModelError
from rllm.update.packing import Forest, chain_chunks, forest_of, square_chunks

log = logging.getLogger("rllm.backends")

RUN_TOKENS = 128
"""Queries of a forest that attend at a time."""


class Body(Protocol):
    """From tokens to last hidden states."""

    def run_forest(self, forest: Forest, *, is_exact: bool) -> Tensor:
        """Hidden states [N, H] of a forest's nodes.

        ``is_exact`` gives each node the bits that it has alone in its sequence, where the body can; else it is fast,
        and equal up to rounding.
        """
        ...


class SharedBody:
    """What sequences share is computed once, by ``rllm_attention``."""

    def __init__(self, body: nn.Module, device: torch.device) -> None:
        self._body = body
        self._device = device

    def run_forest(self, forest: Forest, *, is_exact: bool, capture: Capture | None = None) -> Tensor:
        """See ``Body``; ``capture`` is handed each layer's keys and values."""
        padded = _padded(forest)
        if is_exact:
            chunks = chain_chunks(padded.ends, padded.positions, RUN_TOKENS)
        else:
            chunks = square_chunks(padded.ends, RUN_TOKENS)
        layout = ForestLayout(padded, chunks, self._device, capture)
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

    def run_forest(self, forest: Forest, *, is_exact: bool) -> Tensor:
        """See ``Body``; no better than rounding in either way."""
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


@torch.no_grad()
def choose_body(
    network: Any, device: torch.device, logits_of: Callable[[Tensor], Tensor]
) -> tuple[SharedBody | PlainBody, int]:
    """The body for a transformers model, and the bytes of one token's keys and values (0: it has no cache).

    ``logits_of`` are our logits of hidden states. Raises ModelError where they are not the model's own.
    """
    own_attention = network.config._attn_implementation
    # Eager is the one that honours everything: before 5.24, Gemma 2's default left its soft cap out.
    _set_attention(network, "eager")
    draw = np.random.default_rng(0)
    vocab = network.get_output_embeddings().weight.shape[0]
    stem = draw.integers(0, vocab, 5)
    both = [np.concatenate([stem, draw.integers(0, vocab, n)]).astype(np.int32) for n in (6, 9)]
    expected = [network(input_ids=torch.from_numpy(s)[None].long().to(device)).logits[0].float() for s in both]
    forest = forest_of(both)
    kv_bytes: list[int] = []

    def measure(layer: int, keys: Tensor, values: Tensor) -> None:
        kv_bytes.append((keys.nbytes + values.nbytes) // keys.shape[1])

    shared = SharedBody(network.base_model, device)
    register_attention()
    try:
        _set_attention(network, ATTENTION)
        hidden = shared.run_forest(forest, is_exact=True, capture=measure)
        problem = _difference(logits_of(hidden), expected, forest) if kv_bytes else "it has an attention of its own"
    except (ModelError, ValueError, TypeError, AttributeError, RuntimeError, KeyError, IndexError) as error:
        problem = str(error)
    if problem is None:
        return shared, sum(kv_bytes)
    name = type(network).__name__
    log.warning("%s is computed without shared prefixes and cache, which is slow: %s", name, problem)
    _set_attention(network, own_attention)
    plain = PlainBody(network.base_model, device)
    problem = _difference(logits_of(plain.run_forest(forest, is_exact=True)), expected, forest)
    if problem is not None:
        raise ModelError(f"{name} makes its logits in a way that the embedded engine does not know: {problem}")
    return plain, 0


def _set_attention(network: Any, name: str) -> None:
    """A model with an attention of its own keeps it; transformers says so in its log, and we in ours."""
    logger = logging.getLogger("transformers.modeling_utils")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        network.set_attn_implementation(name)
    finally:
        logger.disabled = was_disabled


def _difference(got: Tensor, expected: list[Tensor], forest: Forest) -> str | None:
    """What is wrong with the logits of a forest's nodes; None if nothing is."""
    for path, logits in zip(forest.paths, expected, strict=True):
        gap = (got[torch.from_numpy(path).to(got.device)] - logits).abs().max().item()
        spread = (logits.max() - logits.min()).item()
        if not gap <= 1e-3 * spread:
            return f"its logits differ by up to {gap:.2g} (they span {spread:.2g})"
    return None
