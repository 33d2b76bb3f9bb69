"""Which session a request belongs to. The URL is the authority; where nothing names one, the call is refused."""

__all__ = ["caller_of", "session_of"]

import secrets
from collections.abc import Mapping
from urllib.parse import unquote

from rllm.gateway.errors import ApiError, session_closed
from rllm.gateway.sessions import OpenSession, SessionState
from rllm.trace import Span, span_from_headers
from rllm.trace.routing import ROLE_HEADER, SESSION_HEADER


def session_of(
    in_url: str | None,
    headers: Mapping[str, str],
    opened: Mapping[str, OpenSession],
    closed: Mapping[str, SessionState],
) -> OpenSession:
    """The open session that a request names by its URL, its header or its key, in that order.

    A key of ours opens its own session alone; any other key says nothing, for clients must send one.

    Raises ApiError: 401 where none is named or the key is none that was given out, 403 for another session's key, 404
    for an unknown session, 410 for one that is closed.
    """
    key = headers.get("authorization", "").removeprefix("Bearer ").strip()
    in_key = key.split("-")[1] if key.startswith("rllm-") else None
    session_id = in_url or headers.get(SESSION_HEADER) or in_key
    if not session_id:
        raise ApiError(
            401,
            "the call names no session. Send it to /sessions/ID/v1, or with the session's key as its API key; inside "
            "a rollout config.base_url and config.api_key have both",
            kind="authentication_error",
            code="no_session",
        )
    if in_key is not None and in_key != session_id:
        raise ApiError(
            403,
            f"the API key is that of another session, it does not open {session_id!r}",
            kind="authentication_error",
            code="wrong_key",
        )
    if session_id in closed:
        raise session_closed(session_id)
    found = opened.get(session_id)
    if found is None:
        raise ApiError(404, f"there is no session {session_id!r}", code="unknown_session")
    if in_key is not None and not secrets.compare_digest(key.encode(), found.session.api_key.encode()):
        raise ApiError(
            401, f"this is no key of session {session_id!r}", kind="authentication_error", code="invalid_api_key"
        )
    return found


def caller_of(headers: Mapping[str, str]) -> tuple[str, Span | None]:
    """The role that makes a call, and its span if it has one."""
    span = span_from_headers(headers)
    if span is not None:
        return span.role, span
    return unquote(headers.get(ROLE_HEADER, "")) or "main", None
