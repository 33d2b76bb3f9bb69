"""A call as the record of it: which step each of its choices becomes, and why one may not be trained on."""

__all__ = ["CallRecord", "cut_short"]

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from rllm.gateway.conversation import Node
from rllm.gateway.params import Request
from rllm.gateway.upstreams import Answer, Choice, Prompted
from rllm.trace import SIDE_CALL
from rllm.types import SamplingParams, Step, StepStatus

log = logging.getLogger("rllm.gateway")


@dataclass
class CallRecord:
    """One call; the prompt and the sampling are filled in as they become known."""

    call_id: str
    session_id: str
    index: int
    role: str
    span_id: str | None
    route: str
    dialect: str
    request: Request
    is_side_call: bool
    sampling: SamplingParams
    overridden: tuple[str, ...]
    is_drawn_as_the_run_says: bool
    """In training: then the request's seed is replaced too."""
    prompted: Prompted = field(default_factory=lambda: Prompted((), 0))
    parent: Node | None = None
    n_shared: int = 0
    """How many of the request's messages the parent's conversation holds."""
    break_reason: str | None = None
    started_at: float = field(default_factory=time.time)
    _clock: float = field(default_factory=time.monotonic)

    def failed(self, status: StepStatus, error: str) -> Step:
        """The step of a call that was not answered."""
        return self._step(
            status=status, error=error, prompt_tokens=len(self.prompted.ids), untrainable=self._reason(f"call {status}")
        )

    def answered(self, answer: Answer) -> tuple[Step, ...]:
        """The steps of an answered call, one for each choice."""
        return tuple(self._answered(k, choice, answer) for k, choice in enumerate(answer.choices))

    def _answered(self, k: int, choice: Choice, answer: Answer) -> Step:
        disagreement = None if answer.untrainable is not None else _disagreement(choice, answer)
        if disagreement is not None:
            log.warning("call %s may not be trained on: its upstream gave %s", self.call_id, disagreement)
        malformed = None if choice.malformed is None else f"malformed tool call: {choice.malformed}"
        return self._step(
            choice=k,
            message=dict(choice.message),
            finish_reason=choice.finish_reason,
            completion_ids=choice.ids,
            logprobs=choice.logprobs,
            versions=choice.versions,
            prompt_tokens=len(self.prompted.ids) or answer.prompt_tokens,
            error=disagreement or malformed,
            untrainable=self._reason(_why_not(choice, answer, disagreement)),
        )

    def _reason(self, reason: str | None) -> str | None:
        return SIDE_CALL if self.is_side_call else reason

    def _step(self, **fields: Any) -> Step:
        messages = self.request.messages[self.n_shared if self.parent is not None else 0 :]
        return Step(
            call_id=self.call_id,
            session_id=self.session_id,
            index=self.index,
            parent=None if self.parent is None else self.parent.key,
            role=self.role,
            span_id=self.span_id,
            route=self.route,
            model=self.request.model,
            dialect=self.dialect,
            added_messages=tuple(dict(m) for m in messages),
            tools=tuple(dict(t) for t in self.request.tools),
            added_ids=self.prompted.ids[self.prompted.n_continued :],
            sampling=self.sampling,
            overridden=self.overridden,
            break_reason=self.break_reason,
            started_at=self.started_at,
            duration_s=time.monotonic() - self._clock,
            **fields,
        )


def cut_short(step: Step) -> Step:
    """A recorded step whose answer did not reach the agent whole."""
    error = "the client went, or its session was closed, before it had the whole answer"
    return step.model_copy(update={"status": "cut", "error": error, "untrainable": step.untrainable or "call cut"})


def _why_not(choice: Choice, answer: Answer, disagreement: str | None) -> str | None:
    if answer.untrainable is not None:
        return answer.untrainable
    if not choice.ids and not choice.logprobs and choice.message.get("content"):
        return "no token ids"
    if disagreement is not None:
        return "token counts differ"
    return choice.untrainable


def _disagreement(choice: Choice, answer: Answer) -> str | None:
    """Counts of one choice that should be one number, and of all choices against what the upstream billed."""
    counts = {"token ids": len(choice.ids), "logprobs": len(choice.logprobs), "versions": len(choice.versions)}
    if len(set(counts.values())) > 1:
        return ", ".join(f"{count} {name}" for name, count in counts.items())
    total = sum(len(c.ids) for c in answer.choices)
    if total != answer.completion_tokens:
        return f"{total} token ids where its usage counts {answer.completion_tokens} completion tokens"
    return None
