"""Lets calls through, or holds them all back while the weights change."""

__all__ = ["Turnstile"]

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class Turnstile:
    """For one event loop. Calls pass in any number; while it is held, new ones wait, and those inside run to their end.

    Leaving never waits: a call that is cancelled twice would otherwise be counted as inside for ever, and with it the
    next hold would never begin.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._inside = 0
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @contextlib.asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        """Around one call."""
        while self._holds:
            await self._is_free.wait()
        self._inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._is_empty.set()

    def hold(self) -> None:
        """Hold back new calls, until ``release`` was called as often."""
        self._holds += 1
        self._is_free.clear()

    async def emptied(self) -> None:
        """Returns when nobody is inside."""
        while self._inside:
            await self._is_empty.wait()

    def release(self) -> None:
        """Undo one ``hold``."""
        self._holds -= 1
        if not self._holds:
            self._is_free.set()
