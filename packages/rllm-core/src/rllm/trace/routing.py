"""Where a model call of this context goes, and what it says of itself: pure decisions for the wrapped clients.

The gateway reads the same headers back (``span_from_headers``).
"""

__all__ = [
    "ROLE_HEADER",
    "SERVED",
    "SESSION_HEADER",
    "SPAN_ADAPTER_HEADER",
    "SPAN_HEADER",
    "call_headers",
    "served_path",
    "span_from_headers",
]

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from rllm.trace.session import Session, Span

SESSION_HEADER = "x-rllm-session-id"
ROLE_HEADER = "x-rllm-role"
"""Percent-encoded: a role may be any text, a header only ASCII."""
SPAN_HEADER = "x-rllm-span-id"
SPAN_ADAPTER_HEADER = "x-rllm-span-adapter"
"""``1`` where an adapter opened the span."""

SERVED = (("POST", "chat/completions"), ("POST", "completions"), ("GET", "models"), ("GET", "models/{name}"))
"""What the gateway answers under a session's URL."""

_PLAIN = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) != "%")
_PATTERNS = tuple(
    (method, re.compile(r"(?:^/?(?:v1/)?|^[a-z]+://.*/)(" + path.replace("{name}", "[^/]+") + r")$"))
    for method, path in SERVED
)


def served_path(method: str, url: str) -> str | None:
    """The path under a session's URL that answers a client's ``method`` on ``url``; None where the gateway has none.

    ``url`` is relative to the client's base URL or absolute.

    >>> served_path("post", "/chat/completions")
    '/chat/completions'
    >>> served_path("post", "https://api.openai.com/v1/chat/completions?beta=1")
    '/chat/completions?beta=1'
    >>> served_path("post", "/embeddings") is None
    True
    """
    path, mark, query = url.partition("?")
    for wanted, pattern in _PATTERNS:
        found = pattern.match(path)
        if method.upper() == wanted and found is not None:
            return f"/{found.group(1)}{mark}{query}"
    return None


def call_headers(session: Session, span: Span | None) -> dict[str, str]:
    """What a call carries: its session, and the span that it belongs to."""
    headers = {SESSION_HEADER: session.id}
    if span is not None:
        headers[ROLE_HEADER] = quote(span.role, safe=_PLAIN)
        headers[SPAN_HEADER] = span.id
        if span.is_adapter:
            headers[SPAN_ADAPTER_HEADER] = "1"
    return headers


def span_from_headers(headers: Mapping[str, str]) -> Span | None:
    """The span that a request names; None where it names none. ``headers`` are looked up in lower case.

    >>> span = Span(id="s1", role="Prüfer 2")
    >>> session = Session(id="a", base_url="http://127.0.0.1:1/sessions/a/v1", api_key="k")
    >>> span_from_headers(call_headers(session, span)) == span
    True
    """
    span_id = headers.get(SPAN_HEADER)
    if not span_id:
        return None
    role = unquote(headers.get(ROLE_HEADER, "")) or "main"
    return Span(id=span_id, role=role, is_adapter=headers.get(SPAN_ADAPTER_HEADER) == "1")
