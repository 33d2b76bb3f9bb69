"""The attention function that transformers' own modules call, and the layouts that say what attends to what.

The engine runs a model's body with ``rllm_layout=<Layout>``; transformers hands it on to ``rllm_attention`` in each
layer. A layout knows the tokens' order: ``ForestLayout`` here (training), ``ReadLayout`` in ``reading.py`` (the tokens
that rows of the cache don't hold yet) or ``DecodeLayout`` in ``cache.py`` (one new token for each of many rows). No
mask is built, and no cache object of transformers is used.
"""

__all__ = ["ATTENTION", "ForestLayout", "Layout", "Scoring", "pad_queries", "register_attention", "spread_sinks"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from rllm.backends.local.arithmetic import KEYS, ROWS, attend, attend_backward, round_up
from rllm.errors import ModelError
from rllm.update.packing import Chunk, Forest

ATTENTION = "rllm"
"""The name under which transformers knows ``rllm_attention``."""


@dataclass(frozen=True)
class Scoring:
    """What a layer does to its scores besides masking."""

    scale: float
    softcap: float | None
    window: int | None
    """Keys at this distance and beyond are not seen (sliding window)."""
    sinks: Tensor | None
    """[heads], gpt-oss's extra score."""


class Layout(Protocol):
    """Who attends to whom in one forward."""

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """[B, H, T, D] queries, [B, Hkv, T, D] keys and values of the new tokens, to [B, T, H, Dv]."""
        ...


def register_attention() -> None:
    """Make ``rllm_attention`` known to transformers; twice is once."""
    AttentionInterface.register(ATTENTION, rllm_attention)


def rllm_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **passed_on: Any,
) -> tuple[Tensor, None]:
    """Called by transformers in each layer; the keyword arguments are whatever the model passes on."""
    layout = passed_on.get("rllm_layout")
    if layout is None:
        raise ModelError(f"{type(module).__name__} does not hand keyword arguments on to its attention function")
    scoring = Scoring(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=passed_on.get("softcap"),
        window=passed_on.get("sliding_window"),
        sinks=passed_on.get("s_aux"),
    )
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise ModelError(f"{type(module).__name__} does not know its layer's index")
    return layout.attention(layer, query, key, value, scoring), None


class _Run:
    """A chunk's queries ``start:stop`` and the nodes that are its keys, both padded to the multiples that bits need."""

    def __init__(self, forest: Forest, chunk: Chunk, device: torch.device) -> None:
        self.start, self.stop = chunk.start, chunk.stop
        queries = np.arange(chunk.start, chunk.stop)
        keys = np.concatenate([chunk.ancestors, queries])
        n_keys, n_queries = len(keys), len(queries)
        keys = np.pad(keys, (0, round_up(n_keys, KEYS) - n_keys))
        # Padded queries repeat the first one, padded keys are seen by nobody: no softmax is over nothing.
        queries = np.pad(queries, (0, round_up(n_queries, ROWS) - n_queries), constant_values=chunk.start)
        hidden = (keys[None, :] > queries[:, None]) | (forest.ends[keys][None, :] <= queries[:, None])
        hidden[:, n_keys:] = True
        self._hidden = hidden
        self._distance = forest.positions[queries][:, None] - forest.positions[keys][None, :]
        self._biases: dict[tuple[int, int | None], Tensor] = {}
        self.rows = len(queries)
        self.keys = torch.from_numpy(keys).to(device)

    def bias(self, groups: int, window: int | None) -> Tensor:
        """float32[groups × M, S]: -inf where a key is not seen; made once for all layers."""
        if (groups, window) not in self._biases:
            hidden = self._hidden if window is None else self._hidden | (self._distance >= window)
            bias = np.where(hidden, np.float32("-inf"), np.float32(0))
            self._biases[groups, window] = torch.from_numpy(np.tile(bias, (groups, 1))).to(self.keys.device)
        return self._biases[groups, window]


class ForestLayout:
    """The nodes of a forest, [1, N], each attending to its ancestors and itself."""

    def __init__(self, forest: Forest, chunks: Sequence[Chunk], device: torch.device) -> None:
        self._runs = [_Run(forest, chunk, device) for chunk in chunks]

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        heads, kv_heads, n = q.shape[1], k.shape[1], q.shape[2]
        grouped = (q[0] * scoring.scale).unflatten(0, (kv_heads, heads // kv_heads))
        sinks = None if scoring.sinks is None else scoring.sinks.float().view(kv_heads, -1)
        mixed: Tensor = _ForestAttention.apply(grouped, k[0], v[0], sinks, self._runs, scoring)  # pyright: ignore
        return mixed.permute(2, 0, 1, 3).reshape(1, n, heads, v.shape[-1])


class _ForestAttention(torch.autograd.Function):
    """[Hkv, R, N, D] queries over [Hkv, N, D] keys and values, run by run; keeps no scores for the backward."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, runs: Sequence[_Run], scoring: Scoring
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, *(() if sinks is None else (sinks,)))
        ctx.runs, ctx.scoring = runs, scoring
        groups = q.shape[1]
        mixed = torch.empty(*q.shape[:3], v.shape[-1], dtype=v.dtype, device=v.device)
        for run in runs:
            part = attend(
                pad_queries(q[:, :, run.start : run.stop], run.rows),
                k[:, run.keys],
                v[:, run.keys],
                run.bias(groups, scoring.window),
                scoring.softcap,
                spread_sinks(sinks, run.rows),
            )
            mixed[:, :, run.start : run.stop] = part.unflatten(1, (groups, -1))[:, :, : run.stop - run.start]
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v, *rest = ctx.saved_tensors
        sinks: Tensor | None = rest[0] if rest else None
        scoring: Scoring = ctx.scoring
        groups = q.shape[1]
        to_q, to_k, to_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        to_sinks = None if sinks is None else torch.zeros_like(sinks)
        for run in ctx.runs:
            n = run.stop - run.start
            gradient = gradients[0][:, :, run.start : run.stop]
            if run.rows > n:
                gradient = torch.nn.functional.pad(gradient, (0, 0, 0, run.rows - n))
            found = attend_backward(
                gradient.flatten(1, 2),
                pad_queries(q[:, :, run.start : run.stop], run.rows),
                k[:, run.keys],
                v[:, run.keys],
                run.bias(groups, scoring.window),
                scoring.softcap,
                spread_sinks(sinks, run.rows),
            )
            to_q[:, :, run.start : run.stop] = found[0].unflatten(1, (groups, -1))[:, :, :n]
            to_k.index_add_(1, run.keys, found[1])
            to_v.index_add_(1, run.keys, found[2])
            if to_sinks is not None and found[3] is not None:
                to_sinks += found[3].unflatten(1, (groups, -1)).sum((-2, -1))
        return to_q, to_k, to_v, to_sinks, None, None


def pad_queries(q: Tensor, rows: int) -> Tensor:
    """[Hkv, R, n, D] as [Hkv, R × rows, D], the first query repeated."""
    n = q.shape[2]
    if rows > n:
        q = torch.cat([q, q[:, :, :1].expand(-1, -1, rows - n, -1)], 2)
    return q.flatten(1, 2)


def spread_sinks(sinks: Tensor | None, rows: int) -> Tensor | None:
    """[Hkv, R] as [Hkv, R × rows, 1]."""
    return None if sinks is None else sinks[..., None].expand(-1, -1, rows).flatten(1, 2)[..., None]
