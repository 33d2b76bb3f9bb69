"""Lets calls through, or holds them all back while the weights change."""

__all__ = ["Turnstile"]

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class Turnstile:
    """For one event loop. Calls pass in any number; while it is held, new ones wait and none is inside."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._holds = 0
        self._inside = 0

    @contextlib.asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        """Around one call."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._holds == 0)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    async def hold(self) -> None:
        """Hold back new calls; returns when those inside have left."""
        async with self._changed:
            self._holds += 1
            try:
                await self._changed.wait_for(lambda: self._inside == 0)
            except BaseException:
                self._holds -= 1
                self._changed.notify_all()
                raise

    async def release(self) -> None:
        """Let calls through again."""
        async with self._changed:
            self._holds -= 1
            self._changed.notify_all()
