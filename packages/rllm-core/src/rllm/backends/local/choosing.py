"""Which body a model gets: ``SharedBody`` if that gives transformers' own logits on an example, else ``PlainBody``."""

__all__ = ["choose_body", "is_invariant"]

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.attention import ATTENTION, register_attention
from rllm.backends.local.bodies import Body, PlainBody, SharedBody
from rllm.backends.local.rows import CachedRows
from rllm.errors import ModelError
from rllm.update.packing import forest_of

log = logging.getLogger("rllm.backends")


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
    shared = SharedBody(network.base_model, device)
    kv_bytes = 0
    register_attention()
    try:
        _set_attention(network, ATTENTION)
        problem = _forest_problem(shared, both, expected, logits_of)
        if problem is None:
            problem, kv_bytes = _cache_problem(CachedRows(shared, device), both, expected, logits_of)
    except (ModelError, ValueError, TypeError, AttributeError, RuntimeError, KeyError, IndexError) as error:
        problem = str(error)
    if problem is None:
        return shared, kv_bytes
    name = type(network).__name__
    log.warning("%s is computed without shared prefixes and cache, which is slow: %s", name, problem)
    _set_attention(network, own_attention)
    plain = PlainBody(network.base_model, device)
    problem = _forest_problem(plain, both, expected, logits_of)
    if problem is not None:
        raise ModelError(f"{name} makes its logits in a way that the embedded engine does not know: {problem}")
    return plain, 0


@torch.no_grad()
def is_invariant(
    body: SharedBody | PlainBody, network: Any, device: torch.device, logits_of: Callable[[Tensor], Tensor]
) -> bool:
    """Whether the logits of a sequence have the same bits, read in one piece or in several.

    They have on a CPU (``arithmetic``), but for models with layers that are not the same for each token by itself:
    experts, which multiply whatever tokens come to them together.
    """
    if isinstance(body, PlainBody):
        return False
    vocab = network.get_output_embeddings().weight.shape[0]
    tokens = np.random.default_rng(0).integers(0, vocab, 21).astype(np.int32)
    rows = CachedRows(body, device)
    whole, *others = (logits_of(torch.cat(list(rows.read_whole(tokens, n)))) for n in (21, 8, 5))
    return all(torch.equal(whole, other) for other in others)


def _set_attention(network: Any, name: str) -> None:
    """A model with an attention of its own keeps it; transformers says so in its log, and we in ours."""
    logger = logging.getLogger("transformers.modeling_utils")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        network.set_attn_implementation(name)
    finally:
        logger.disabled = was_disabled


def _forest_problem(
    body: Body,
    sequences: Sequence[NDArray[np.int32]],
    expected: Sequence[Tensor],
    logits_of: Callable[[Tensor], Tensor],
) -> str | None:
    """What is wrong with the logits of two sequences with a common beginning; None if nothing is."""
    forest = forest_of(sequences)
    logits = logits_of(body.run_forest(forest))
    for path, wanted in zip(forest.paths, expected, strict=True):
        problem = _difference(logits[torch.from_numpy(path).to(logits.device)], wanted)
        if problem is not None:
            return problem
    return None


def _cache_problem(
    rows: CachedRows,
    sequences: Sequence[NDArray[np.int32]],
    expected: Sequence[Tensor],
    logits_of: Callable[[Tensor], Tensor],
) -> tuple[str | None, int]:
    """What is wrong with the logits of a sequence that is read in two pieces, and the cache's bytes per token."""
    pieces = list(rows.read_whole(sequences[0], 7))
    if not rows.bytes_per_token:
        return "it has an attention of its own", 0
    return _difference(logits_of(torch.cat(pieces)), expected[0]), rows.bytes_per_token


def _difference(got: Tensor, expected: Tensor) -> str | None:
    gap = (got - expected).abs().max().item()
    spread = (expected.max() - expected.min()).item()
    if not gap <= 1e-3 * spread:
        return f"its logits differ by up to {gap:.2g} (they span {spread:.2g})"
    return None
