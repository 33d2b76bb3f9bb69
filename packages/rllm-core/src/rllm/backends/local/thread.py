"""The engine's own thread: takes work from any thread or event loop, does it one piece at a time, never leaves a
caller waiting. If it dies, everyone who waits or comes later gets a BackendError with the cause.
"""

__all__ = ["EngineThread"]

import atexit
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, TypeVar

from rllm.backends.local.heap import start_thread
from rllm.errors import BackendError

T = TypeVar("T")


class Work(Protocol):
    """What goes on by itself between the calls: the sampling loop."""

    @property
    def in_flight(self) -> int: ...

    def step(self) -> None: ...

    def abort(self, error: BaseException | None = None) -> None: ...


class EngineThread:
    """Runs calls in order, and ``work`` a step at a time while it has something in flight."""

    def __init__(self, *, on_main_heap: bool = False) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: BaseException | None = None
        self._is_closing = False
        self._work: Work | None = None
        if on_main_heap:
            self._thread = start_thread(self._run, "rllm-engine")
        else:
            self._thread = threading.Thread(target=self._run, name="rllm-engine", daemon=True)
            self._thread.start()
        # A daemon thread that is killed inside torch takes the interpreter down with it (SIGABRT).
        atexit.register(self.close)

    def attach(self, work: Work) -> None:
        """Give the thread its work; to be called in the thread."""
        self._work = work

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Have the thread call ``function``; the future brings what it returns or raises."""
        future: Future[T] = Future()
        with self._lock:
            if self._ended is not None or self._is_closing:
                raise self._refusal()
            self._calls.put((function, future))
        return future

    def close(self) -> None:
        """Abort what is in flight and end the thread; waits for the step that is being done. Twice is once."""
        with self._lock:
            self._is_closing = True
            self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def _refusal(self) -> BackendError:
        if self._ended is None:
            return BackendError("the backend is closed; open a new one")
        error = BackendError(f"the engine died of {type(self._ended).__name__}: {self._ended}. Open a new backend")
        error.__cause__ = self._ended
        return error

    def _run(self) -> None:
        try:
            while self._do_calls():
                if self._work is not None and self._work.in_flight:
                    self._work.step()
            if self._work is not None:
                self._work.abort()
        except BaseException as error:
            self._die(error)
        finally:
            self._refuse_the_rest()

    def _do_calls(self) -> bool:
        """Do all calls there are, waiting for one if there is no other work; False when it is time to end."""
        is_idle = self._work is None or not self._work.in_flight
        while True:
            try:
                call = self._calls.get(block=is_idle)
            except queue.Empty:
                return True
            if call is None:
                return False
            is_idle = False
            function, future = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(BackendError(f"{type(error).__name__} in the engine: {error}"))
                raise
            else:
                future.set_result(result)

    def _die(self, error: BaseException) -> None:
        with self._lock:
            self._ended = error
        if self._work is not None:
            self._work.abort(self._refusal())

    def _refuse_the_rest(self) -> None:
        with self._lock:
            self._is_closing = True
            while not self._calls.empty():
                call = self._calls.get()
                if call is not None:
                    _refuse(call[1], self._refusal())


def _refuse(future: Future[Any], error: BackendError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        # Its caller has gone.
        return
