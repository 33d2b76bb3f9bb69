"""An answer as server-sent events. It is whole before the first is sent, so that ids and logprobs are whole too."""

__all__ = ["EventStream", "client_left", "events_of"]

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rllm.gateway.calls import to_the_end
from rllm.gateway.dialects import Dialect
from rllm.gateway.replies import Done, usage_of


def events_of(done: Done, dialect: Dialect) -> tuple[list[bytes], int]:
    """All events of an answer, and how many of them an agent needs to have all of it; called in a worker thread.

    Usage comes last, if asked for, and stands in no event before: clients have failed on a null there.
    """
    chunks = list(dialect.chunks(done))
    needed = len(chunks)
    if done.request.include_usage:
        first = {name: chunks[0][name] for name in ("id", "object", "created", "model", "system_fingerprint")}
        chunks.append({**first, "choices": [], "usage": usage_of(done)})
    events = [b"data: " + to_json(chunk) + b"\n\n" for chunk in chunks]
    return [*events, b"data: [DONE]\n\n"], needed


def to_json(data: Mapping[str, Any]) -> bytes:
    """As it goes over the wire."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


async def client_left(receive: Receive) -> None:
    """Returns when the client has gone, or has its whole answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events until all are sent, the client goes or the session is closed (``running`` is cancelled then).

    ``on_cut`` is awaited where that came before ``needed`` of them were sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Sequence[bytes],
        needed: int,
        *,
        running: set[asyncio.Future[Any]],
        on_cut: Callable[[], Awaitable[None]],
        headers: Mapping[str, str],
    ) -> None:
        self._events, self._needed = events, needed
        self._running, self._on_cut = running, on_cut
        self.background = None
        self.status_code = 200
        self.init_headers({**headers, "cache-control": "no-cache"})
        # Without a length the server sends the body in chunks.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        self._running.add(sending)
        left = asyncio.ensure_future(client_left(receive))
        try:
            await asyncio.wait({sending, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            sending.cancel()
            await asyncio.wait({sending, left})
            self._running.discard(sending)

    async def _send_all(self, send: Send) -> None:
        sent = 0
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                sent += 1
                # The loop gets to see that the client has gone.
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (asyncio.CancelledError, OSError):
            if sent < self._needed:
                await to_the_end(self._on_cut())
