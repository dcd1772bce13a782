"""A port that leads to another one, until it is cut: then what is sent in a direction vanishes."""

from __future__ import annotations

import asyncio
from typing import Self


class Forwarder:
    """`swallows` says in which directions bytes vanish, as in a network that is cut: "there", "back"."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.swallows: set[str] = set()
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, *directions: str) -> None:
        self.swallows = set(directions)

    def heal(self) -> None:
        """Let bytes pass again. Connections from which some are missing end."""
        if self.swallows:
            self.swallows = set()
            for task in self._tasks:
                task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, there_writer, "there"))
                    both.create_task(self._pass_on(there_reader, writer, "back"))
            finally:
                there_writer.close()
        except* (OSError, asyncio.CancelledError):  # one of them has ended, or is to end: so does the other
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while data := await reader.read(65536):
            if direction not in self.swallows:
                writer.write(data)
                await writer.drain()
        writer.close()
