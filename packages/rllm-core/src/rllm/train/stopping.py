"""Being asked to stop: the first Ctrl-C or SIGTERM lets the step end and saves, the second ends the run at once.

Both lose nothing that was saved: a run may be killed at any moment, see ``checkpoints``.
"""

__all__ = ["RunStopped", "Stopping"]

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunStopped(Exception):
    """Raised inside the loop where something that may be left undone (a validation) was given up."""


class Stopping:
    """Whether a run was asked to stop, and by what. ``listens``: the process's signals ask too."""

    def __init__(self, *, listens: bool = False) -> None:
        self._listens = listens
        self.by: str | None = None
        """What asked: ``SIGINT``, ``SIGTERM``, ``stop()``, or None."""
        self.is_now = False
        """Asked twice."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: asyncio.Task[object] | None = None
        self._asked = asyncio.Event()
        self._say: Callable[[str], None] = print

    @contextlib.contextmanager
    def attached(self, say: Callable[[str], None]) -> Generator[None]:
        """Around the run, in its task; signals are heard where that is in the main thread."""
        self._loop, self._run, self._say = asyncio.get_running_loop(), asyncio.current_task(), say
        with contextlib.ExitStack() as undo:
            if self._listens:
                for number in SIGNALS:
                    if signal.getsignal(number) is signal.SIG_IGN:
                        continue  # as nohup and shells in the background do
                    with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                        undo.callback(self._hear(self._loop, number))
            try:
                yield
            finally:
                self._run = None

    def _hear(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> Callable[[], object]:
        """Let a signal ask; what undoes that."""
        try:
            loop.add_signal_handler(number, self._ask, number.name)
        except NotImplementedError:
            # Windows' loops take no handlers; the process's own hands the signal on.

            def handed_on(_number: int, _frame: object) -> None:
                self.ask(number.name)

            before = signal.signal(number, handed_on)
            return lambda: signal.signal(number, before)
        return lambda: loop.remove_signal_handler(number)

    def ask(self, by: str) -> None:
        """Ask once more, from any thread; also before the run has begun."""
        if self._loop is None:
            self.by = by
            self._asked.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask, by)

    def _ask(self, by: str) -> None:
        if self.by is None:
            self.by = by
            self._asked.set()
            self._say(f"{by}: stopping after this step, and saving; once more to stop at once")
        elif not self.is_now and self._run is not None:
            self.is_now = True
            self._run.cancel()

    async def unless_asked(self, work: Awaitable[T]) -> T:
        """What ``work`` returns. Raises RunStopped, with ``work`` cancelled, as soon as a stop is asked for."""
        working, asked = asyncio.ensure_future(work), asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise RunStopped
        finally:
            asked.cancel()
            working.cancel()
            await asyncio.wait({working})
