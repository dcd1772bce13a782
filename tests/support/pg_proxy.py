"""Stands between a client and Postgres, knows where one message ends and the next begins, and breaks what a test says.

async with PgProxy(dsn) as proxy:
    store = PostgresPersistence(proxy.dsn)
    proxy.next("lose")    # the next statement is done by the server, its answer never arrives, the connection is cut
    proxy.next("cut")     # the connection is cut before the server sees that it is to do anything
    proxy.next("silent")  # it is done, but not told to commit; from there on not a byte goes either way

A statement is an append unless it is named by a text that it holds, like "commit".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from persistence.postgres.dsn import Dsn

Fault: TypeAlias = Literal["lose", "cut", "silent"]

_BIND, _EXECUTE, _SYNC, _QUERY, _READY = b"B", b"E", b"S", b"Q", b"Z"
_APPEND = "remote_apply"  # only an append says under which synchronous_commit it may be done


@dataclass
class _Planned:
    fault: Fault
    text: bytes


class PgProxy:
    """Listens on this machine; `dsn` leads through it. `fired` counts the faults that happened.

    `statements` and `round_trips` count what clients asked for, and how often they waited for an answer.
    """

    def __init__(self, dsn: str) -> None:
        self._target = Dsn.parse(dsn)
        self._planned: deque[_Planned] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.fired = 0
        self.statements = 0
        self.round_trips = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def dsn(self) -> str:
        password = f":{self._target.password}" if self._target.password else ""
        return f"postgresql://{self._target.user}{password}@127.0.0.1:{self._port}/{self._target.database}"

    def next(self, fault: Fault, times: int = 1, *, text: str = _APPEND) -> None:
        """Plan faults for the next statements that hold this text, in their own or in an argument's."""
        self._planned.extend(_Planned(fault, text.encode()) for _ in range(times))

    def lead_to(self, dsn: str) -> None:
        """From now on to another server, as an address does that moves; connections that there are break."""
        self._target = Dsn.parse(dsn)
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await _Pair(self, reader, writer).run(self._target)
        except asyncio.CancelledError:  # the proxy goes, and its connections with it
            pass
        finally:
            self._tasks.discard(task)

    def due(self, statement: bytes) -> Fault | None:
        """What happens to a statement of a client's."""
        if not self._planned or self._planned[0].text not in statement:
            return None
        self.fired += 1
        return self._planned.popleft().fault


class _Pair:
    """One client, and its connection to the server."""

    def __init__(self, proxy: PgProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = reader, writer
        self._fault: Fault | None = None

    async def run(self, target: Dsn) -> None:
        host = target.hosts[0]
        if host.is_socket:
            self._server = await asyncio.open_unix_connection(f"{host.name}/.s.PGSQL.{host.port}")
        else:
            self._server = await asyncio.open_connection(host.name, host.port)
        pumps = [asyncio.create_task(self._from_client()), asyncio.create_task(self._from_server())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for _, writer in (self._client, self._server):
                writer.transport.abort()

    async def _from_client(self) -> None:
        reader, writer = self._client[0], self._server[1]
        size = await reader.readexactly(4)  # the first message alone has no type
        writer.write(size + await reader.readexactly(int.from_bytes(size, "big") - 4))
        bound = b""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, message = await _message(reader)
                if kind == _BIND:
                    bound = message
                self._proxy.statements += kind in (_EXECUTE, _QUERY)
                self._proxy.round_trips += kind in (_SYNC, _QUERY)
                if kind in (_EXECUTE, _QUERY):
                    self._fault = self._fault or self._proxy.due(bound if kind == _EXECUTE else message)
                if self._fault == "cut":
                    return
                writer.write(message)
                await writer.drain()
                if self._fault == "silent":
                    await asyncio.Event().wait()

    async def _from_server(self) -> None:
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, message = await _message(reader)
                if self._fault == "lose":
                    if kind == _READY:
                        return
                elif self._fault is None:
                    writer.write(message)
                    await writer.drain()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
