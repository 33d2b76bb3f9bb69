"""The gateway: a server on loopback, in its own thread, that every LLM call of a rollout passes through.

client ──▶ /sessions/{sid}/v1/chat/completions ──▶ upstream ──▶ trace store ──▶ answer
"""

__all__ = ["Gateway"]

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rllm.errors import SessionError
from rllm.gateway.calls import Call, Done, perform
from rllm.gateway.errors import ApiError, bad_request
from rllm.gateway.params import Common, parse_chat, parse_completion
from rllm.gateway.replies import body_of, pieces_of
from rllm.gateway.sessions import OpenSession, SessionState, open_session_record
from rllm.gateway.turnstile import Turnstile
from rllm.gateway.upstreams import Upstream
from rllm.plugins import PluginManager
from rllm.trace import Session, TraceStore, span_from_headers
from rllm.types import SamplingParams, Step

LARGEST_BODY = 64 * 2**20
"""Bytes."""


class Gateway:
    """Serves sessions. ``routes`` maps model names to frozen upstreams; every other name is the policy's."""

    def __init__(
        self,
        *,
        store: TraceStore,
        policy: Upstream,
        plugins: PluginManager,
        routes: Mapping[str, Upstream] | None = None,
        run_seed: int = 0,
    ) -> None:
        self.store, self.policy, self.plugins, self.run_seed = store, policy, plugins, run_seed
        self.routes = dict(routes or {})
        self._sessions: dict[str, OpenSession] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-store")
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._failure: BaseException | None = None
        self._turnstile = Turnstile()
        self.url = ""

    # -- life

    def start(self) -> None:
        """Bind a free port of loopback and serve. Raises SessionError where the server does not come up."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        config = uvicorn.Config(
            self._app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            http="httptools",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(sock,), name="rllm-gateway", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout=30) or self._failure is not None:
            raise SessionError(f"the gateway did not start: {self._failure or 'no answer within 30 s'}")

    def _serve(self, sock: socket.socket) -> None:
        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            assert self._server is not None
            self._loop.call_soon(self._ready.set)
            await self._server.serve(sockets=[sock])
            for upstream in (self.policy, *self.routes.values()):
                await upstream.close()

        try:
            asyncio.run(run())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    def stop(self) -> None:
        """End every session and the server."""
        for sid in list(self._sessions):
            self.close_session(sid)
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._writer.shutdown()

    # -- sessions

    def open_session(
        self,
        *,
        task_id: str,
        sample: int,
        phase: str,
        attempt: int = 0,
        is_training: bool,
        sampling: SamplingParams,
        max_calls: int | None = None,
        max_tokens_total: int | None = None,
    ) -> Session:
        """A session for one rollout. ``phase`` and ``attempt`` enter the seeds of its calls."""
        opened = open_session_record(
            self.url,
            task_id=task_id,
            sample=sample,
            phase=f"{phase}/{attempt}" if attempt else phase,
            is_training=is_training,
            sampling=sampling,
            max_calls=max_calls,
            max_tokens_total=max_tokens_total,
        )
        self._sessions[opened.session.id] = opened
        return opened.session

    def close_session(self, session_id: str) -> list[Step]:
        """Refuse further calls (410), cancel those in flight, and return what was recorded, in the calls' order."""
        opened = self._sessions[session_id]
        opened.is_closed = True
        loop = self._loop
        if loop is not None and loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end_calls(opened), loop).result(timeout=30)
        return sorted(opened.steps, key=lambda s: (s.index, s.choice))

    def session_state(self, session_id: str) -> SessionState:
        """What happened in a session, also after it was closed."""
        return self._sessions[session_id].state

    async def _end_calls(self, opened: OpenSession) -> None:
        for task in opened.running:
            task.cancel()
        await asyncio.gather(*opened.running, return_exceptions=True)

    # -- holding

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """While inside, new calls wait and none is in flight: the weights may change."""
        assert self._loop is not None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._turnstile.hold(), self._loop))
        try:
            yield
        finally:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._turnstile.release(), self._loop))

    # -- requests

    def _app(self) -> Starlette:
        def both(path: str, handler: Any, method: str) -> list[Route]:
            return [Route(prefix + path, handler, methods=[method]) for prefix in ("/sessions/{sid}/v1", "/v1")]

        routes = [
            *both("/chat/completions", self._chat, "POST"),
            *both("/completions", self._completion, "POST"),
            *both("/models", self._models, "GET"),
            *both("/models/{name:path}", self._models, "GET"),
            Route("/{path:path}", self._nothing, methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
        ]
        return Starlette(routes=routes)

    async def _nothing(self, request: Request) -> Response:
        return ApiError(404, f"the gateway serves no {request.method} {request.url.path}", code="not_found").response()

    async def _models(self, request: Request) -> Response:
        try:
            self._session_of(request)
        except ApiError as error:
            return error.response()
        names = ["policy", *sorted(self.routes)]
        cards = [{"id": n, "object": "model", "created": 0, "owned_by": "rllm"} for n in names]
        asked = request.path_params.get("name")
        if asked is not None:
            return JSONResponse({"id": asked, "object": "model", "created": 0, "owned_by": "rllm"})
        return JSONResponse({"object": "list", "data": cards})

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, is_chat=True)

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, is_chat=False)

    async def _answer(self, request: Request, *, is_chat: bool) -> Response:
        try:
            opened = self._session_of(request)
            body = await _json_of(request)
            call = self._call_of(request, body, opened, is_chat)
            done = await self._run(request, call, opened)
        except ApiError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=499)
        headers = {"x-request-id": done.call_id, "x-rllm-call-id": done.call_id}
        if not call.request.stream:
            return JSONResponse(body_of(done, call.request, is_chat=is_chat), headers=headers)
        return StreamingResponse(_events(done, call.request, is_chat), media_type="text/event-stream", headers=headers)

    def _session_of(self, request: Request) -> OpenSession:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        in_url = request.path_params.get("sid")
        sid = in_url or request.headers.get("x-rllm-session-id") or _session_in_key(key)
        if not sid:
            raise ApiError(
                401, "the call names no session: send it to /sessions/ID/v1, or with the session's key",
                kind="authentication_error", code="no_session",
            )  # fmt: skip
        opened = self._sessions.get(sid)
        if opened is None:
            raise ApiError(404, f"there is no session {sid!r}", code="unknown_session")
        if key != opened.session.api_key:
            raise ApiError(
                403, f"the key does not open session {sid!r}; use the session's own",
                kind="authentication_error", code="wrong_key",
            )  # fmt: skip
        if opened.is_closed:
            raise ApiError(410, f"the session {sid!r} is closed: its rollout has ended", code="session_closed")
        return opened

    def _call_of(self, request: Request, body: Mapping[str, Any], opened: OpenSession, is_chat: bool) -> Call:
        span = span_from_headers(request.headers)
        if span is not None and span.is_adapter:
            opened.has_adapter_spans = True
        is_training = opened.session.is_training
        upstream = self.routes.get(str(body.get("model")), self.policy)
        if upstream is not self.policy:
            is_training = False
        if is_chat:
            chat = parse_chat(body, opened.sampling, is_training=is_training)
            return Call(chat, "chat", chat.messages, chat.tools, None, span, upstream)
        raw = parse_completion(body, opened.sampling, is_training=is_training)
        return Call(raw, "completions", (), (), raw.prompt, span, upstream)

    async def _run(self, request: Request, call: Call, opened: OpenSession) -> Done:
        """The call as a task of its own, ended when its client leaves or its session is closed."""

        async def work() -> Done:
            async with self._turnstile.passage():
                return await perform(call, opened, lambda step: self._write(opened, step), self.run_seed)

        task = asyncio.ensure_future(work())
        opened.running.add(task)
        left = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
            return await task
        except asyncio.CancelledError:
            if opened.is_closed:
                raise ApiError(
                    410, f"the session {opened.session.id!r} was closed while it was answered", code="session_closed"
                ) from None
            if left.done():
                raise ClientDisconnect from None
            raise
        finally:
            left.cancel()
            opened.running.discard(task)

    async def _write(self, opened: OpenSession, step: Step) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self.store.append, step)
        opened.steps.append(step)
        self.plugins.notify("rllm_step_recorded", session=opened.session, step=step)


def _session_in_key(key: str) -> str | None:
    parts = key.split("-")
    return parts[1] if len(parts) >= 3 and parts[0] == "rllm" else None


async def _json_of(request: Request) -> Mapping[str, Any]:
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > LARGEST_BODY:
            raise ApiError(413, f"the body is larger than {LARGEST_BODY} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error
    if rb"\ud" in raw.lower():
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise bad_request(f"the body holds half of a surrogate pair, which is no character: {error}") from error
    if not isinstance(body, dict):
        raise bad_request(f"the body must be an object, not a {type(body).__name__}")
    return body


async def _departure(request: Request) -> None:
    """Returns when the client has gone."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def _events(done: Done, request: Common, is_chat: bool) -> AsyncGenerator[str]:
    for piece in pieces_of(done, request, is_chat=is_chat):
        yield f"data: {json.dumps(piece, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"
