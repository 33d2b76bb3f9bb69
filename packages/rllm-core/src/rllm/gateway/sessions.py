"""The gateway's side of a session: who may use it, its budget, its conversations and what happened in it."""

__all__ = ["OpenSession", "RawStreams", "SessionState", "new_session"]

import asyncio
import secrets
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

from rllm.gateway.conversation import Conversations, Node
from rllm.gateway.prefixes import PrefixIndex
from rllm.trace import Session
from rllm.types import SamplingParams, Step


@dataclass
class SessionState:
    """What happened in a session, for whoever decides what its failure means."""

    calls: int = 0
    """That were put to an upstream, whatever became of them."""
    completed_calls: int = 0
    """That the policy answered."""
    sampled_tokens: int = 0
    """By the policy."""
    malformed_tool_calls: int = 0
    """Replies with something that looks like a tool call and is none."""
    limit_hit: Literal["call_limit", "token_limit"] | None = None
    """The budget for which a call was refused."""
    context_length_hit: bool = False
    """The newest call that ended did so for want of context."""
    upstream_error: str | None = None
    """How the engine or server behind the gateway failed in the newest call that ended; None where it did not."""
    is_closed: bool = False


class RawStreams:
    """Recorded streams that a raw prompt may begin with, of one session and route."""

    def __init__(self) -> None:
        self.streams: PrefixIndex[Node] = PrefixIndex()
        """Under the int32 bytes of all ids; of chat calls too."""
        self.texts: PrefixIndex[Node] = PrefixIndex()
        """Under the text of all ids, UTF-8."""
        self.prompts: PrefixIndex[str] = PrefixIndex()
        """Role of the call, under its prompt alone, in either form."""


@dataclass
class OpenSession:
    """One session as the gateway's loop sees it; only that thread changes it."""

    session: Session
    phase: str
    """Enters the seeds of its calls, the attempt included."""
    sampling: SamplingParams
    max_calls: int | None
    max_tokens_total: int | None
    state: SessionState = field(default_factory=SessionState)
    conversations: Conversations = field(default_factory=Conversations)
    raw: dict[str, RawStreams] = field(default_factory=lambda: defaultdict(RawStreams))
    """By route."""
    occurrences: Counter[str] = field(default_factory=Counter)
    """How often each role asked each prompt: the same question twice draws twice."""
    steps: dict[str, Step] = field(default_factory=dict)
    """What is recorded, by key."""
    charged_calls: int = 0
    """In flight or ended, but for those in which the upstream failed."""
    has_adapter_spans: bool = False
    running: set[asyncio.Future[Any]] = field(default_factory=set)
    """What must end before the session is closed."""


def new_session(
    root_url: str,
    *,
    task_id: str,
    sample: int,
    phase: str,
    is_training: bool,
    sampling: SamplingParams,
    max_calls: int | None,
    max_tokens_total: int | None,
) -> OpenSession:
    """A session with an id and a key that nobody can guess."""
    session_id = secrets.token_hex(16)
    session = Session(
        id=session_id,
        base_url=f"{root_url}/sessions/{session_id}/v1",
        api_key=f"rllm-{session_id}-{secrets.token_hex(16)}",
        task_id=task_id,
        sample=sample,
        is_training=is_training,
    )
    return OpenSession(session, phase, sampling, max_calls, max_tokens_total)
