"""Keys and values of what is being drawn: one dense row per stream, grown in chunks, and the decode layout over them.

Rows ``0 … B-1`` are in use; a leaving row is filled with the last one, so they stay side by side and no gather is
needed. Rows beyond B are scratch, for the padding of the batch to a multiple of ROWS.
"""

__all__ = ["DecodeLayout", "KVCache", "KeysValues"]

from dataclasses import dataclass

import torch
from torch import Tensor

from rllm.backends.local.arithmetic import KEYS, ROWS, attend, round_up
from rllm.backends.local.attention import Scoring

GROWTH = 64
"""Tokens by which the rows grow at least."""


@dataclass(frozen=True)
class KeysValues:
    """Keys and values of some tokens apart from any row: per layer [H, T, D] and [H, T, Dv]."""

    layers: dict[int, tuple[Tensor, Tensor]]

    def part(self, start: int, stop: int) -> "KeysValues":
        """A copy of those of the tokens ``start:stop``."""
        return KeysValues(
            {n: (k[:, start:stop].clone(), v[:, start:stop].clone()) for n, (k, v) in self.layers.items()}
        )


class KVCache:
    """Per layer, keys [rows, H, tokens, D] and values [rows, H, tokens, Dv], made when a layer first writes."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._rows = 0
        self._tokens = 0

    def reserve(self, rows: int, tokens: int) -> None:
        """Make room for so many rows of so many tokens, keeping what is held."""
        if round_up(rows, ROWS) > self._rows:
            rows = round_up(max(rows, self._rows + self._rows // 2), ROWS)
        rows = max(rows, self._rows)
        if tokens > self._tokens:
            tokens = round_up(max(tokens, self._tokens + self._tokens // 4), GROWTH)
        tokens = max(tokens, self._tokens)
        if (rows, tokens) == (self._rows, self._tokens):
            return
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = (self._grown(keys, rows, tokens), self._grown(values, rows, tokens))
        self._rows, self._tokens = rows, tokens

    def _grown(self, old: Tensor, rows: int, tokens: int) -> Tensor:
        new = old.new_zeros(rows, old.shape[1], tokens, old.shape[3])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def layer(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's buffers, made to fit keys and values [..., H, T, D] if there are none yet."""
        if layer not in self._layers:
            # Zeros, not garbage: a hidden key has weight 0, and 0 × NaN would still be NaN.
            self._layers[layer] = (
                keys.new_zeros(self._rows, keys.shape[-3], self._tokens, keys.shape[-1]),
                values.new_zeros(self._rows, values.shape[-3], self._tokens, values.shape[-1]),
            )
        return self._layers[layer]

    def put(self, row: int, start: int, held: KeysValues, n: int) -> None:
        """Write the first ``n`` of some keys and values to a row, from ``start`` on."""
        for layer, (k, v) in held.layers.items():
            keys, values = self.layer(layer, k, v)
            keys[row, :, start : start + n] = k[:, :n]
            values[row, :, start : start + n] = v[:, :n]

    def take(self, row: int, start: int, stop: int) -> KeysValues:
        """A copy of what a row holds of the tokens ``start:stop``."""
        return KeysValues(
            {n: (k[row, :, start:stop].clone(), v[row, :, start:stop].clone()) for n, (k, v) in self._layers.items()}
        )

    @property
    def bytes_per_token(self) -> int:
        """Of one token's keys and values in all layers that have been written to."""
        return sum(k[0, :, 0].nbytes + v[0, :, 0].nbytes for k, v in self._layers.values())

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of one row to another."""
        for keys, values in self._layers.values():
            keys[target, :, :tokens] = keys[source, :, :tokens]
            values[target, :, :tokens] = values[source, :, :tokens]

    def clear(self) -> None:
        """Give the memory back."""
        self._layers.clear()
        self._rows = self._tokens = 0


class DecodeLayout:
    """One new token for each of B rows, [B, 1], written at ``lengths`` and attending to all before it."""

    def __init__(self, cache: KVCache, lengths: Tensor) -> None:
        """``lengths`` int64[B]: the tokens that each row holds so far; B is a multiple of ROWS."""
        self._cache = cache
        self._lengths = lengths
        self._rows = torch.arange(len(lengths), device=lengths.device)
        self._width = round_up(int(lengths.max()) + 1, KEYS)
        self._biases: dict[tuple[int, int | None], Tensor] = {}

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        n, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
        keys, values = self._cache.layer(layer, k, v)
        keys[self._rows, :, self._lengths] = k[:, :, 0]
        values[self._rows, :, self._lengths] = v[:, :, 0]
        groups = heads // kv_heads
        padded = round_up(groups, ROWS)
        queries = (q * scoring.scale).view(n * kv_heads, groups, q.shape[-1])
        if padded > groups:
            queries = torch.cat([queries, queries[:, :1].expand(-1, padded - groups, -1)], 1)
        mixed = attend(
            queries,
            keys.flatten(0, 1)[: n * kv_heads, : self._width],
            values.flatten(0, 1)[: n * kv_heads, : self._width],
            self._bias(kv_heads, scoring.window),
            scoring.softcap,
            _spread(scoring.sinks, n, kv_heads, padded),
        )
        return mixed[:, :groups].reshape(n, 1, heads, v.shape[-1])

    def _bias(self, kv_heads: int, window: int | None) -> Tensor:
        """float32[B × Hkv, 1, S]: -inf beyond a row's length, or before its window."""
        if (kv_heads, window) not in self._biases:
            at = torch.arange(self._width, device=self._lengths.device)[None]
            hidden = at > self._lengths[:, None]
            if window is not None:
                hidden = hidden | (self._lengths[:, None] - at >= window)
            bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))
            self._biases[kv_heads, window] = bias.repeat_interleave(kv_heads, 0)[:, None]
        return self._biases[kv_heads, window]


def _spread(sinks: Tensor | None, n: int, kv_heads: int, padded: int) -> Tensor | None:
    """[heads] sinks as [B × Hkv, M, 1]."""
    if sinks is None:
        return None
    by_group = sinks.float().view(kv_heads, -1)
    by_group = torch.cat([by_group, by_group[:, :1].expand(-1, padded - by_group.shape[1])], 1)
    return by_group.repeat(n, 1)[..., None]
