"""Whether rollouts run in this process: while they do, a model call that belongs to no session is refused."""

__all__ = ["are_rollouts_running", "rollouts_running"]

import contextlib
import threading
from collections.abc import Generator

_lock = threading.Lock()
_running = 0


@contextlib.contextmanager
def rollouts_running() -> Generator[None]:
    """The runner is inside this while it runs rollouts; it may be entered many times, from any thread."""
    global _running
    with _lock:
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1


def are_rollouts_running() -> bool:
    """Whether anything in this process is inside ``rollouts_running``."""
    return _running > 0
