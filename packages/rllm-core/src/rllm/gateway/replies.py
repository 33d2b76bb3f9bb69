"""What answers of both dialects share: the root of a response, usage, and streams cut into pieces."""

__all__ = ["Done", "cut", "finish_reason", "root_of", "shares", "usage_of"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllm.gateway.params import Request
from rllm.gateway.upstreams import Answer, TokenText
from rllm.types import Step

PIECE = 24
"""Characters of a stream's piece: the answer is whole when it is cut, so this is only form."""

LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token of probability 0; JSON has no infinity."""


@dataclass(frozen=True)
class Done:
    """A call that was answered and recorded."""

    request: Request
    prompt_ids: tuple[int, ...]
    answer: Answer
    steps: tuple[Step, ...]

    @property
    def call_id(self) -> str:
        return self.steps[0].call_id


def root_of(done: Done, kind: str) -> dict[str, Any]:
    """The fields that stand around the choices. The call id is in all the places that some framework lets through."""
    return {
        "id": done.call_id,
        "object": kind,
        "created": int(done.steps[0].started_at),
        "model": done.request.model,
        "system_fingerprint": f"rllm:{done.call_id}",
    }


def usage_of(done: Done) -> dict[str, int]:
    """Tokens as the upstream counts them."""
    prompt, completion = done.answer.prompt_tokens, done.answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def finish_reason(step: Step) -> str:
    """In OpenAI's words, which have none for a completion that the engine's end cut off."""
    return "length" if step.finish_reason in (None, "aborted") else step.finish_reason


def least(logprob: float) -> float:
    """A logprob as JSON can hold it."""
    return max(logprob, LEAST_LOGPROB)


def cut(text: str) -> list[str]:
    """A text in pieces; none for an empty one."""
    return [text[i : i + PIECE] for i in range(0, len(text), PIECE)]


def shares(pieces: Sequence[str], tokens: Sequence[TokenText]) -> list[list[TokenText]]:
    """Which tokens go with which piece, each with the one in which it begins, by bytes; one list more than pieces,
    for what begins behind the last."""
    lists: list[list[TokenText]] = [[] for _ in range(len(pieces) + 1)]
    ends: list[int] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece.encode()))
    at = piece = 0
    for token in tokens:
        while piece < len(ends) and at >= ends[piece]:
            piece += 1
        lists[piece].append(token)
        at += len(token.raw)
    return lists
