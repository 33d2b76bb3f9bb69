"""Carries the session and span into the agent's own threads and pools while rollouts run.

A new thread starts with an empty context, and a pool's worker has that of whoever happened to start it; an agent's
own pool would lose its session. Only our two variables are carried: other libraries' context (an event loop's mark,
a decimal precision) stays what Python makes it. Where no session is current, nothing changes.
"""

__all__ = ["carry_context"]

import contextlib
import functools
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

from rllm.trace.patching import Patch, PatchSet
from rllm.trace.session import Carried, capture, resume

_POOL_METHODS = ("apply_async", "map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered")
"""``apply`` calls ``apply_async``."""


def _patches() -> Sequence[Patch]:
    return (
        Patch(threading.Thread, "start", _wrap_start),
        Patch(ThreadPoolExecutor, "submit", _wrap_submit),
        Patch(ThreadPool, "__init__", _wrap_pool_init),
        *(Patch(ThreadPool, name, _wrap_pool_method) for name in _POOL_METHODS),
    )


_PATCHES = PatchSet(_patches)
_users = 0
_users_lock = threading.Lock()


@contextlib.contextmanager
def carry_context() -> Generator[None]:
    """Inside, ``Thread.start``, ``ThreadPoolExecutor`` and ``multiprocessing.pool.ThreadPool`` carry the session.

    May be entered many times, from any thread; the last one out restores the methods.
    """
    global _users
    with _users_lock:
        _users += 1
        _PATCHES.install()
    try:
        yield
    finally:
        with _users_lock:
            _users -= 1
            if _users == 0:
                _PATCHES.uninstall()


def _capture() -> Carried | None:
    return capture() if _PATCHES.is_on else None


def _wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        carried = _capture()
        if carried is None:
            return original(self)
        # Put on the instance, because a subclass may override run; taken off again before the thread's body runs.
        run, own = self.run, vars(self).get("run")

        def restore() -> None:
            if own is None:
                del self.run
            else:
                self.run = own

        def run_carried() -> None:
            restore()
            with resume(carried):
                run()

        self.run = run_carried
        try:
            return original(self)
        except BaseException:
            restore()
            raise

    return start


def _wrap_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        carried = _capture()
        if carried is None:
            return original(self, fn, *arguments, **keywords)
        # A worker thread that is started for this job outlives it: the worker itself must not take over the session.
        with resume(None):
            return original(self, _run_carried, carried, fn, *arguments, **keywords)

    return submit


def _wrap_pool_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ThreadPool`` starts its workers when it is made; they outlive the session too."""

    @functools.wraps(original)
    def init(self: ThreadPool, *arguments: Any, **keywords: Any) -> None:
        with resume(None):
            original(self, *arguments, **keywords)

    return init


def _wrap_pool_method(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: ThreadPool, func: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        carried = _capture()
        if carried is None:
            return original(self, func, *arguments, **keywords)
        return original(self, functools.partial(_run_carried, carried, func), *arguments, **keywords)

    return method


def _run_carried(carried: Carried, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    with resume(carried):
        return function(*arguments, **keywords)
