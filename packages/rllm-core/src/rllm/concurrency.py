"""Running other people's blocking code: in daemon threads, with the context copied, awaited from any event loop.

``asyncio.to_thread`` shares a small pool with everything else in the process and keeps the interpreter alive until
its threads end; an agent or evaluator that hangs would then hang the run's end as well.
"""

__all__ = ["call_in_thread"]

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def call_in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call ``function(*arguments)`` in a daemon thread of its own, in a copy of this context; raises what it raises.

    When the awaiting task is cancelled the thread goes on (Python can't end it), and what it returns is dropped.
    A SystemExit or KeyboardInterrupt raised there arrives as a RuntimeError: neither may end the caller's loop.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function, *arguments)
        except Exception as raised:
            error = raised
            if isinstance(raised, StopIteration):
                # A future refuses this one, and whoever waits would wait for ever.
                error = RuntimeError(f"StopIteration was raised in a thread: {raised}")
                error.__cause__ = raised
        except BaseException as raised:
            error = RuntimeError(f"{type(raised).__name__} was raised in a thread: {raised}")
            error.__cause__ = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            # The loop is closed: whoever waited has gone, and there is nobody to tell.
            return

    name = getattr(function, "__name__", type(function).__name__)
    threading.Thread(target=work, name=f"rllm-{name}", daemon=True).start()
    return await future
