"""Where a test holds something up: whoever comes to a closed gate waits there, and the test knows that it is there."""

from __future__ import annotations

import asyncio


class Gate:
    """Awaited like a function, by a tool body, a listener or a script's `gate(...)`; open for good once opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self._opened.wait()

    def open(self) -> None:
        self._opened.set()
