"""The gateway's side of a session: its key, budget and state, and the conversations that it holds."""

__all__ = ["OpenSession", "SessionState", "open_session_record"]

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from rllm.gateway.conversation import Conversations
from rllm.trace import Session
from rllm.types import SamplingParams, Step


@dataclass
class SessionState:
    """What happened in a session, for whoever decides what its failure means."""

    calls: int = 0
    completed_calls: int = 0
    """Of the policy."""
    sampled_tokens: int = 0
    limit_hit: Literal["call_limit", "token_limit"] | None = None
    context_length_hit: bool = False
    upstream_error: str | None = None
    """The last failure of the engine or server behind the gateway."""


@dataclass
class OpenSession:
    """One session as the gateway's loop sees it; only that thread changes it."""

    session: Session
    phase: str
    sampling: SamplingParams
    max_calls: int | None
    max_tokens_total: int | None
    state: SessionState = field(default_factory=SessionState)
    conversations: Conversations = field(default_factory=Conversations)
    occurrences: Counter[str] = field(default_factory=Counter)
    """How often each (role, prompt) was asked: the same question twice draws twice."""
    has_adapter_spans: bool = False
    is_closed: bool = False
    running: set[asyncio.Task[object]] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)


def open_session_record(
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
    """A new session with an id and a key of its own."""
    sid = secrets.token_hex(8)
    session = Session(
        id=sid,
        base_url=f"{root_url}/sessions/{sid}/v1",
        api_key=f"rllm-{sid}-{secrets.token_urlsafe(24)}",
        task_id=task_id,
        sample=sample,
        is_training=is_training,
    )
    return OpenSession(session, phase, sampling, max_calls, max_tokens_total)
