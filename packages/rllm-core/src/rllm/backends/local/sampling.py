"""Continuous batching: requests join between decode steps and leave when they are done.

    waiting draws ──▶ streams, reading their prompts a piece at a time ──▶ streams ⇄ decode step ──▶ completions

A stream is one row of the batch; it splits when its draws draw different tokens. What a beginning's keys and values
were before is used again (``prefixes``). What a draw gets does not depend on any of this: its random numbers are its
own, and on CPU in float32 the logits have the same bits (``arithmetic``).
"""

__all__ = ["SamplingLoop"]

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm.backends.local.bodies import SharedBody
from rllm.backends.local.drawing import Drawn, draw_full, draw_modified, score_tokens
from rllm.backends.local.draws import Draw, SampleJob, Stream
from rllm.backends.local.policy import Policy
from rllm.backends.local.rows import CachedRows, PlainRows, Rows
from rllm.backends.local.settings import TinkerSettings

KV_BYTES = 4 * 2**30
"""What keys and values may take where ``kv_cache_tokens`` is not set."""


class SamplingLoop:
    """Draws completions from a policy, a step at a time. Used by the engine's thread alone."""

    def __init__(self, policy: Policy, settings: TinkerSettings, stop_ids: Sequence[int]) -> None:
        self._policy = policy
        self._settings = settings
        self._stop_ids = frozenset(stop_ids)
        self._waiting: deque[Draw] = deque()
        self._streams: list[Stream] = []
        self._owed: set[SampleJob] = set()
        self._rows: Rows
        if isinstance(policy.body, SharedBody):
            self._rows = CachedRows(policy.body, policy.device)
        else:
            self._rows = PlainRows(policy.body)
        self._kv_tokens = settings.kv_cache_tokens or KV_BYTES // max(1, policy.kv_bytes_per_token)
        self._spare_tokens = self._kv_tokens
        self.version = 0

    @property
    def in_flight(self) -> int:
        """Completions that are waiting or being drawn."""
        return len(self._waiting) + sum(len(s.draws) for s in self._streams)

    def add(self, job: SampleJob) -> None:
        """Queue a job's draws."""
        self._owed.add(job)
        self._waiting.extend(job.draws)

    @torch.inference_mode()
    def step(self) -> None:
        """Let go of the cancelled, admit the waiting, read a piece of new prompts, and draw one token for everyone."""
        self.drop_cancelled()
        self._admit()
        if any(s.n_unread > 1 for s in self._streams):
            self._read()
        if any(s.n_unread == 1 for s in self._streams):
            self._decode()

    def abort(self, error: BaseException | None = None) -> None:
        """End everything in flight; its callers get the error, or what was drawn so far, marked aborted."""
        self._waiting.clear()
        self._streams.clear()
        self._rows.clear()
        for job in self._owed:
            job.settle(error)
        self._owed.clear()

    def rest(self) -> None:
        """Give the rows' memory back; nothing may be in flight."""
        self._rows.clear()

    def drop_cancelled(self) -> None:
        """Free the places of calls whose caller has gone."""
        if not any(job.future.cancelled() for job in self._owed):
            return
        self._owed = {job for job in self._owed if not job.future.cancelled()}
        self._waiting = deque(d for d in self._waiting if d.is_wanted)
        for row in reversed(range(len(self._streams))):
            stream = self._streams[row]
            stream.draws = [d for d in stream.draws if d.is_wanted]
            if not stream.draws:
                self._remove(row)

    # -- reading and drawing

    def _admit(self) -> None:
        """Make streams of the longest-waiting draws, as far as there is room in the batch and in the cache."""
        opened: dict[bytes, Stream] = {}
        while self._waiting:
            draw = self._waiting[0]
            running = sum(len(s.draws) for s in self._streams)
            widest = max((s.reserved for s in self._streams), default=0)
            needed = max(widest, _reserved(draw)) * (running + 1)
            if running and (running >= self._settings.max_batch or needed > self._kv_tokens):
                break
            self._waiting.popleft()
            self._spare_tokens = max(0, self._kv_tokens - needed)
            key = draw.job.prompt.tobytes()
            if key in opened:
                opened[key].draws.append(draw)
                opened[key].reserved = max(opened[key].reserved, _reserved(draw))
                continue
            known = self._rows.open(len(self._streams), draw.job.prompt)
            opened[key] = Stream([draw], known, _reserved(draw))
            self._streams.append(opened[key])
        if opened:
            self._rows.shrink(self._spare_tokens)
            # At once, for the draws of a prompt soon part: growing again and again would copy everything each time.
            self._rows.reserve(sum(len(s.draws) for s in self._streams))

    def _read(self) -> None:
        """Read on in the prompts; where one ends, its draws draw their first token."""
        before = [s.length for s in self._streams]
        ended, hidden = self._rows.read(self._streams, self._settings.prefill_tokens)
        for row, stream in enumerate(self._streams):
            if stream.length > before[row]:
                # Now, not at the end: the rest of a group may come while its first member is being drawn.
                self._rows.remember(row, stream.tokens()[: stream.length], self._spare_tokens)
        if ended:
            self._advance(ended, self._policy.logits(hidden))

    def _decode(self) -> None:
        """Read every stream's last token and draw its next one."""
        hidden = self._rows.step(self._streams)
        ready = [row for row, stream in enumerate(self._streams) if stream.n_unread == 1]
        for row in ready:
            self._streams[row].length += 1
        self._advance(ready, self._policy.logits(hidden if len(ready) == len(hidden) else hidden[ready]))

    def _advance(self, rows: list[int], logits: Tensor) -> None:
        """Draw a token for each draw of ``rows``' streams, from float32[len(rows), V] logits; split and end streams."""
        draws = [(k, draw) for k, row in enumerate(rows) for draw in self._streams[row].draws]
        drawn = draw_tokens(logits, draws)
        after: dict[int, dict[int, list[Draw]]] = {row: {} for row in rows}
        for (k, draw), token in zip(draws, drawn, strict=True):
            stream = self._streams[rows[k]]
            if draw.add(token, self.version, self._stop_ids):
                # A conversation's next turn begins with this one.
                self._rows.remember(rows[k], draw.tokens()[: stream.length], self._spare_tokens)
                if draw.job.finished_one():
                    self._owed.discard(draw.job)
            else:
                after[rows[k]].setdefault(token.token, []).append(draw)
        self._rows.reserve(len(self._streams) + sum(max(0, len(c) - 1) for c in after.values()))
        for row, children in after.items():
            self._split(row, list(children.values()))
        for row in sorted((row for row, children in after.items() if not children), reverse=True):
            self._remove(row)

    def _split(self, row: int, children: list[list[Draw]]) -> None:
        """The first child goes on in the stream's own row, the others in copies of it."""
        stream = self._streams[row]
        for k, draws in enumerate(children):
            if k == 0:
                stream.draws = draws
            else:
                self._rows.copy(row, len(self._streams), stream.length)
                self._streams.append(Stream(draws, stream.length, stream.reserved))

    def _remove(self, row: int) -> None:
        """Take a stream out; the last row moves into its place."""
        last = self._streams.pop()
        if row < len(self._streams):
            self._rows.copy(len(self._streams), row, last.length)
            self._streams[row] = last

    @torch.inference_mode()
    def score(self, prompt: NDArray[np.int32]) -> NDArray[np.float32]:
        """The logprob of each prompt token, float32[T], nats at temperature 1; NaN at 0."""
        scores = np.full(len(prompt), np.nan, np.float32)
        targets = torch.from_numpy(prompt.astype(np.int64)).to(self._policy.device)
        start = 0
        for hidden in self._rows.read_whole(prompt[:-1], self._settings.prefill_tokens):
            stop = start + len(hidden)
            found = score_tokens(self._policy.logits(hidden), targets[start + 1 : stop + 1])
            scores[start + 1 : stop + 1] = found.cpu().numpy()
            start = stop
        return scores


def draw_tokens(logits: Tensor, draws: Sequence[tuple[int, Draw]]) -> list[Drawn]:
    """One token for each (row of logits, draw): those from a full softmax together, the others one by one."""
    found: dict[int, Drawn] = {}
    full: dict[float, list[int]] = {}
    for k, (row, draw) in enumerate(draws):
        if draw.params.is_full_softmax:
            full.setdefault(draw.params.temperature, []).append(k)
        else:
            found[k] = draw_modified(logits[row], draw.params, draw.counts, draw.uniform())
    for temperature, which in full.items():
        together = draw_full(
            logits,
            [draws[k][0] for k in which],
            temperature,
            [draws[k][1].uniform() for k in which],
            [draws[k][1].params.top_logprobs for k in which],
        )
        found.update(zip(which, together, strict=True))
    return [found[k] for k in range(len(draws))]


def _reserved(draw: Draw) -> int:
    return len(draw.job.prompt) + draw.job.max_tokens
