"""The gateway: a server on loopback, in its own thread, that every LLM call of a rollout passes through.

client ──▶ /sessions/{id}/v1/chat/completions ──▶ upstream ──▶ trace store ──▶ answer
"""

__all__ = ["Gateway"]

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import uvicorn

from rllm.errors import SessionError
from rllm.gateway.app import App
from rllm.gateway.calls import Desk
from rllm.gateway.planning import Routes
from rllm.gateway.sessions import OpenSession, SessionState, new_session
from rllm.gateway.steps import cut_short
from rllm.gateway.turnstile import Turnstile
from rllm.gateway.upstreams import Upstream
from rllm.plugins import PluginManager
from rllm.trace import Session, TraceStore
from rllm.types import SamplingParams, Step

T = TypeVar("T")

_BACKLOG = 2048
_GRACE_S = 2
"""What connections that are still open get when the gateway stops; their calls have been cancelled by then."""


class Gateway:
    """Serves sessions. ``routes`` maps model names to frozen upstreams; every other name is the policy's.

    All methods but ``start`` and ``stop`` may be called from any thread or loop; they raise SessionError where the
    gateway does not run or does not know the session.
    """

    def __init__(
        self,
        *,
        store: TraceStore,
        policy: Upstream,
        plugins: PluginManager,
        routes: Mapping[str, Upstream] | None = None,
        run_seed: int = 0,
    ) -> None:
        self.store, self.plugins = store, plugins
        self.url = ""
        """Without a session; set by ``start``."""
        self._routes = Routes(policy, dict(routes or {}))
        self._run_seed = run_seed
        self._opened: dict[str, OpenSession] = {}
        self._closed: dict[str, SessionState] = {}
        # One thread each: Python runs one of them at a time anyway, and steps are written in order.
        self._worker = ThreadPoolExecutor(1, "rllm-gateway-text")
        self._writer = ThreadPoolExecutor(1, "rllm-gateway-store")
        self._started: Future[tuple[asyncio.AbstractEventLoop, Turnstile]] = Future()
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None

    # -- life

    def start(self) -> None:
        """Bind a free port of loopback and serve, in a thread. Raises SessionError when it was started before."""
        if self._thread is not None:
            raise SessionError("the gateway was started before; make a new one")
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind(("127.0.0.1", 0))
        # From here on a client's connection waits, also before uvicorn has the socket.
        listening.listen(_BACKLOG)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="rllm-gateway", daemon=True)
        self._thread.start()
        self._started.result()

    def _serve(self, listening: socket.socket) -> None:
        async def serve() -> None:
            turnstile = Turnstile()
            desk = Desk(self._routes, turnstile, self._run_seed, self._work, self._record, self._cut)
            app = App(desk, self._opened, self._closed).starlette()
            self._server = uvicorn.Server(
                uvicorn.Config(
                    app,
                    http="httptools",
                    lifespan="off",
                    log_config=None,
                    log_level="critical",
                    access_log=False,
                    backlog=_BACKLOG,
                    timeout_keep_alive=60,
                    timeout_graceful_shutdown=_GRACE_S,
                )
            )
            self._started.set_result((asyncio.get_running_loop(), turnstile))
            await self._server.serve(sockets=[listening])
            for upstream in {id(u): u for u in (self._routes.policy, *self._routes.frozen.values())}.values():
                await upstream.close()

        try:
            asyncio.run(serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(SessionError(f"the gateway did not start: {error}"))
        finally:
            listening.close()

    def stop(self) -> None:
        """Close every session and end the server; a second time changes nothing."""
        if self._thread is None or not self._thread.is_alive():
            return
        for session_id in list(self._opened):
            self.close_session(session_id)
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join()
        self._worker.shutdown()
        self._writer.shutdown()

    def _running(self) -> tuple[asyncio.AbstractEventLoop, Turnstile]:
        if self._thread is None or not self._thread.is_alive():
            raise SessionError("the gateway does not run: start() it first; after stop() it is gone")
        return self._started.result()

    # -- sessions

    def open_session(
        self,
        *,
        task_id: str,
        sample: int,
        is_training: bool,
        sampling: SamplingParams,
        phase: str = "",
        attempt: int = 0,
        max_calls: int | None = None,
        max_tokens_total: int | None = None,
    ) -> Session:
        """A session for one rollout.

        ``phase`` (the batch or validation that it belongs to) and ``attempt`` enter the seeds of its calls.
        ``max_calls`` and ``max_tokens_total`` (sampled by the policy) are its budget: what goes beyond is refused.
        """
        self._running()
        opened = new_session(
            self.url,
            task_id=task_id,
            sample=sample,
            phase=f"{phase}/{attempt}" if attempt else phase,
            is_training=is_training,
            sampling=sampling,
            max_calls=max_calls,
            max_tokens_total=max_tokens_total,
        )
        self._opened[opened.session.id] = opened
        return opened.session

    def close_session(self, session_id: str) -> list[Step]:
        """Cancel the calls in flight, refuse later ones (410), and return what is recorded, in the order of the calls.

        Blocks until that is written; not to be called on the gateway's own thread. A second time gives the same.
        """
        loop, _ = self._running()
        opened = self._opened.get(session_id)
        if opened is None:
            if session_id not in self._closed:
                raise SessionError(f"there is no session {session_id!r}")
            return self.store.steps(session_id)
        asyncio.run_coroutine_threadsafe(self._close(opened), loop).result()
        return sorted(opened.steps.values(), key=lambda step: (step.index, step.choice))

    async def _close(self, opened: OpenSession) -> None:
        opened.state.is_closed = True
        self._closed[opened.session.id] = opened.state
        while opened.running:
            for running in opened.running:
                running.cancel()
            await asyncio.wait(opened.running)
            await asyncio.sleep(0)
        self._opened.pop(opened.session.id, None)

    def session_state(self, session_id: str) -> SessionState:
        """What has happened in a session until now; also of one that is closed."""
        opened = self._opened.get(session_id)
        state = self._closed.get(session_id) if opened is None else opened.state
        if state is None:
            raise SessionError(f"there is no session {session_id!r}")
        return dataclasses.replace(state)

    # -- holding

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        """Inside, the policy answers no call: new ones wait, and those in flight have ended. For replacing weights."""
        loop, turnstile = self._running()
        loop.call_soon_threadsafe(turnstile.hold)
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turnstile.emptied(), loop))
            yield
        finally:
            # The loop is closed where the gateway was stopped meanwhile: then nobody waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(turnstile.release)

    # -- what calls are done with, on the gateway's loop

    async def _work(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    async def _record(self, opened: OpenSession, step: Step) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, self.store.append, step)
        opened.steps[step.key] = step
        self.plugins.notify("rllm_step_recorded", session=opened.session, step=step)

    async def _cut(self, opened: OpenSession, steps: Sequence[Step]) -> None:
        for step in map(cut_short, steps):
            await asyncio.get_running_loop().run_in_executor(self._writer, self.store.amend, step)
            opened.steps[step.key] = step
