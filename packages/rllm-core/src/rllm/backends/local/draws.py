"""Completions while they are drawn: a Draw is one completion, a Stream the draws that have drawn the same so far.

A group's rollouts ask for the same prompt; while they agree token for token they are one row of the batch.
"""

__all__ = ["Draw", "SampleJob", "Stream"]

from collections import Counter
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rllm.backends.local.drawing import Drawn
from rllm.types import Completion, SamplingParams

Ending = Literal["stop", "length", "aborted"]


class StopStrings:
    """Watches the text of a completion for stop strings, decoding its tail only."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(s for s in stops if s)
        # A token gives at least one byte, so a stop string and what precedes it within a character lies in this tail.
        self._tail = max((len(s.encode()) for s in self._stops), default=0) + 8

    def found(self, ids: list[int]) -> bool:
        """Whether the decoded ids contain a stop string; to be asked after every token."""
        if not self._stops:
            return False
        text: str = self._tokenizer.decode(ids[-self._tail :], skip_special_tokens=False)
        return any(stop in text for stop in self._stops)


class Draw:
    """One completion being drawn. ``n`` draws of one call differ in ``index`` and so in their random numbers."""

    def __init__(self, job: "SampleJob", index: int, stops: StopStrings) -> None:
        self.job = job
        self._stops = stops
        self._random = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(entropy=job.params.seed, spawn_key=(index,)))
        )
        self.ids: list[int] = []
        self.counts: Counter[int] = Counter()
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._tops: list[tuple[tuple[int, float], ...]] = []
        self._ending: Ending | None = None

    @property
    def params(self) -> SamplingParams:
        return self.job.params

    @property
    def is_wanted(self) -> bool:
        """False once the caller has gone."""
        return not self.job.future.cancelled()

    def tokens(self) -> NDArray[np.int32]:
        """The prompt and what was drawn."""
        return np.concatenate([self.job.prompt, np.asarray(self.ids, np.int32)])

    def uniform(self) -> float:
        """The next random number, in [0, 1); one per token, whatever others draw."""
        return float(self._random.random())

    def add(self, drawn: Drawn, version: int, stop_ids: frozenset[int]) -> bool:
        """Take a token; returns whether the completion has ended with it."""
        self.ids.append(drawn.token)
        self.counts[drawn.token] += 1
        self._logprobs.append(drawn.logprob)
        self._versions.append(version)
        if self.params.top_logprobs:
            self._tops.append(drawn.top)
        if drawn.token in stop_ids or self._stops.found(self.ids):
            self._ending = "stop"
        elif len(self.ids) >= self.job.max_tokens:
            self._ending = "length"
        return self._ending is not None

    def completion(self) -> Completion:
        """As it stands; ``aborted`` if it has not ended."""
        return Completion(
            ids=np.asarray(self.ids, np.int32),
            logprobs=np.asarray(self._logprobs, np.float32),
            versions=np.asarray(self._versions, np.int32),
            finish_reason=self._ending or "aborted",
            distribution="full" if self.params.is_full_softmax else "modified",
            top_logprobs=tuple(self._tops),
        )


class SampleJob:
    """One call of ``sample``: ``n`` completions of a prompt, and the future that awaits them."""

    def __init__(
        self, prompt: NDArray[np.int32], params: SamplingParams, n: int, max_tokens: int, tokenizer: Any
    ) -> None:
        """``max_tokens`` is already clipped by the context."""
        self.prompt = prompt
        self.params = params
        self.max_tokens = max_tokens
        self.future: Future[list[Completion]] = Future()
        stops = StopStrings(tokenizer, params.stop)
        self.draws = [Draw(self, index, stops) for index in range(n)]
        self._unfinished = n

    def finished_one(self) -> bool:
        """A draw has ended; with the last one the caller gets them all. Returns whether it was the last."""
        self._unfinished -= 1
        if self._unfinished == 0:
            self.settle()
        return self._unfinished == 0

    def settle(self, error: BaseException | None = None) -> None:
        """Answer the caller with what there is, or with an error; a caller that has gone is passed over."""
        try:
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result([draw.completion() for draw in self.draws])
        except InvalidStateError:
            # Cancelled, or answered already: nobody waits.
            return


@dataclass
class Stream:
    """Draws with one prompt and the same tokens so far: one row of the batch."""

    draws: list[Draw]
    length: int
    """Tokens that the model has read."""
    reserved: int
    """The most tokens that it may come to."""

    @property
    def n_unread(self) -> int:
        """Tokens of the prompt, and drawn ones, that the model has not read yet."""
        return len(self.draws[0].job.prompt) + len(self.draws[0].ids) - self.length

    @property
    def next_token(self) -> int:
        """The first of those."""
        prompt = self.draws[0].job.prompt
        return int(prompt[self.length]) if self.length < len(prompt) else self.draws[0].ids[self.length - len(prompt)]

    def tokens(self) -> NDArray[np.int32]:
        """The prompt and what its draws have drawn."""
        return self.draws[0].tokens()
