"""The gateway's HTTP face: routes, bodies in, answers and streams out, and clients that leave in between."""

__all__ = ["App"]

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rllm.gateway.access import caller_of, session_of
from rllm.gateway.calls import Desk, perform
from rllm.gateway.chat import CHAT
from rllm.gateway.completions import COMPLETIONS
from rllm.gateway.dialects import Dialect
from rllm.gateway.errors import ApiError, session_closed
from rllm.gateway.replies import Done
from rllm.gateway.sessions import OpenSession, SessionState
from rllm.gateway.streaming import EventStream, client_left, events_of, to_json

log = logging.getLogger("rllm.gateway")

LARGEST_BODY = 64 * 2**20
"""Bytes."""
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]


class App:
    """Answers requests with a desk; ``opened`` and ``closed`` are the gateway's sessions."""

    def __init__(
        self,
        desk: Desk,
        opened: Mapping[str, OpenSession],
        closed: Mapping[str, SessionState],
    ) -> None:
        self._desk, self._opened, self._closed = desk, opened, closed

    def starlette(self) -> Starlette:
        """As what uvicorn serves."""
        served = {
            "/chat/completions": (self._calling(CHAT), "POST"),
            "/completions": (self._calling(COMPLETIONS), "POST"),
            "/models": (self._models, "GET"),
            "/models/{name:path}": (self._models, "GET"),
        }
        routes = [
            Route(prefix + path, endpoint, methods=[method])
            for prefix in ("/sessions/{session_id}/v1", "/v1")
            for path, (endpoint, method) in served.items()
        ]
        return Starlette(routes=[*routes, Route("/{path:path}", _nothing, methods=_METHODS)])

    def _session_of(self, request: Request) -> OpenSession:
        return session_of(request.path_params.get("session_id"), request.headers, self._opened, self._closed)

    async def _models(self, request: Request) -> Response:
        try:
            self._session_of(request)
        except ApiError as error:
            return error.response()
        routes = self._desk.routes
        asked = request.path_params.get("name")
        names = dict.fromkeys(["policy", routes.policy.model_name, *routes.frozen])
        cards = [{"id": n, "object": "model", "created": 0, "owned_by": "rllm"} for n in ([asked] if asked else names)]
        return JSONResponse(cards[0] if asked else {"object": "list", "data": cards})

    def _calling(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            try:
                return await self._answer(request, dialect)
            except ApiError as error:
                return error.response()
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            except Exception:
                log.exception("%s %s failed; this is a bug in rLLM", request.method, request.url.path)
                return ApiError(500, "the gateway failed; its log says how", kind="server_error").response()

        return call

    async def _answer(self, request: Request, dialect: Dialect) -> Response:
        opened = self._session_of(request)
        role, span = caller_of(request.headers)
        body = await _body_of(request)
        done = await self._watched(request, opened, perform(self._desk, opened, dialect, body, role, span))
        headers = {"x-request-id": done.call_id, "x-rllm-call-id": done.call_id}
        if not done.request.stream:
            data: bytes = await self._desk.work(lambda: to_json(dialect.body(done)))
            return Response(data, headers=headers, media_type="application/json")
        events, needed = await self._desk.work(events_of, done, dialect)

        async def on_cut() -> None:
            await self._desk.cut(opened, done.steps)

        return EventStream(events, needed, running=opened.running, on_cut=on_cut, headers=headers)

    async def _watched(self, request: Request, opened: OpenSession, work: Awaitable[Done]) -> Done:
        """The work's result; it is cancelled when the client leaves or the session is closed."""
        running = asyncio.ensure_future(work)
        opened.running.add(running)
        left = asyncio.ensure_future(client_left(request.receive))
        try:
            await asyncio.wait({running, left}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
            return await running
        except asyncio.CancelledError:
            if opened.state.is_closed:
                raise session_closed(opened.session.id) from None
            raise ClientDisconnect from None
        finally:
            opened.running.discard(running)
            left.cancel()
            await asyncio.wait({left})


async def _nothing(request: Request) -> Response:
    message = f"the gateway doesn't serve {request.method} {request.url.path}"
    return ApiError(404, message, code="not_found").response()


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise ApiError(413, f"the body is larger than {LARGEST_BODY} bytes", code="body_too_large")
    return bytes(body)
