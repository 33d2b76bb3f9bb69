"""The session: one rollout's identity, carried by a context variable through tasks, threads and pools.

Everything that an LLM call needs to find its way to the policy and back into the right trace hangs on it.
"""

__all__ = ["Session", "Span", "as_role", "current_session", "current_span", "no_session", "use_session"]

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Session:
    """One rollout's session, as the rollout sees it."""

    id: str
    base_url: str
    """Ends in ``/v1``; every call to it is this session's."""
    api_key: str = field(repr=False)
    """Opens this session and no other."""
    task_id: str = ""
    sample: int = 0
    is_training: bool = False
    redirect: bool = True
    """Whether calls of instrumented clients are sent here whatever their own base URL is."""


@dataclass(frozen=True)
class Span:
    """One agent's run within a session; a role that acts several times has several spans."""

    id: str
    role: str
    parent: str | None = None
    is_adapter: bool = False
    """Opened by an adapter: then calls outside every span are side calls, recorded and not trained."""


class _Nowhere:
    """The explicit mark that calls in this context belong to no session."""


NOWHERE = _Nowhere()
_session: ContextVar[Session | _Nowhere | None] = ContextVar("rllm_session", default=None)
_span: ContextVar[Span | None] = ContextVar("rllm_span", default=None)

_in_use: Counter[str] = Counter()
"""Base URLs of the sessions that are in use somewhere in this process."""
_in_use_lock = threading.Lock()


def current_session() -> Session | None:
    """The session of this context; None outside every session and inside ``no_session``."""
    value = _session.get()
    return value if isinstance(value, Session) else None


def is_marked_outside() -> bool:
    """Whether this context is explicitly marked by ``no_session``."""
    return isinstance(_session.get(), _Nowhere)


def current_span() -> Span | None:
    """The agent span of this context."""
    return _span.get()


@contextlib.contextmanager
def use_session(session: Session) -> Generator[Session]:
    """Make ``session`` the context's, and restore what was before."""
    token, span = _session.set(session), _span.set(None)
    with _in_use_lock:
        _in_use[session.base_url] += 1
    try:
        yield session
    finally:
        with _in_use_lock:
            _in_use[session.base_url] -= 1
            if not _in_use[session.base_url]:
                del _in_use[session.base_url]
        _span.reset(span)
        _session.reset(token)


def is_below(url: str, base_url: str) -> bool:
    """Whether ``url`` is ``base_url`` or a path under it."""
    return url.rstrip("/") == base_url.rstrip("/") or url.startswith(base_url.rstrip("/") + "/")


def is_session_url(url: str) -> bool:
    """Whether ``url`` belongs to a session that is in use: such a call needs no context, its URL says whose it is."""
    with _in_use_lock:
        return any(is_below(url, base_url) for base_url in _in_use)


@contextlib.contextmanager
def no_session() -> Generator[None]:
    """Mark calls in this context as nobody's: they go where their client sends them, unrecorded.

    For an agent that means to call a paid provider by itself, and around evaluators.
    """
    token = _session.set(NOWHERE)
    try:
        yield
    finally:
        _session.reset(token)


@dataclass(frozen=True)
class Carried:
    """What a thread or a pool's job takes over from the context that started it: the session (or mark) and span."""

    session: Session | _Nowhere
    span: Span | None


def capture() -> Carried | None:
    """What this context would hand on; None where it has neither a session nor the mark."""
    session = _session.get()
    return None if session is None else Carried(session, _span.get())


@contextlib.contextmanager
def resume(carried: Carried | None) -> Generator[None]:
    """Inside, the context is that of ``carried`` (None: of nobody); what was before is restored."""
    session = _session.set(None if carried is None else carried.session)
    span = _span.set(None if carried is None else carried.span)
    try:
        yield
    finally:
        _span.reset(span)
        _session.reset(session)


@contextlib.contextmanager
def as_role(role: str) -> Generator[Span]:
    """Calls inside belong to the agent ``role``; each use is one trajectory of it.

    >>> with as_role("checker") as span:
    ...     current_span() is span
    True
    """
    outer = _span.get()
    span = Span(id=uuid.uuid4().hex, role=role, parent=outer.id if outer else None)
    token = _span.set(span)
    try:
        yield span
    finally:
        _span.reset(token)
