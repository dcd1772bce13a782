"""Stands between a client and Postgres, knows where one message ends and the next begins, and breaks what a test says.

async with PgProxy(dsn) as proxy:
    store = PostgresPersistence(proxy.dsn)
    proxy.next("lose")    # the next statement is done by the server, its answer never arrives, the connection is cut
    proxy.next("cut")     # the connection is cut before the server sees that it is to do anything
    proxy.next("silent")  # it is done, but not told to commit; from there on not a byte goes either way
    seen = proxy.watch(Break("server", 2, "reset", "before"))  # the second message from now on that the server sends

A statement is an append unless it is named by a text that it holds, like "commit".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from persistence.postgres.dsn import Dsn

Fault: TypeAlias = Literal["lose", "cut", "silent"]
Side: TypeAlias = Literal["client", "server"]
How: TypeAlias = Literal["reset", "close", "black hole", "half-close", "torn"]
When: TypeAlias = Literal["before", "after"]

_BIND, _EXECUTE, _SYNC, _QUERY, _READY = b"B", b"E", b"S", b"Q", b"Z"
_APPEND = "remote_apply"  # only an append says under which synchronous_commit it may be done


@dataclass(frozen=True)
class Break:
    """What happens to the connection at the n-th message of a side's, from 1 on, before or after that goes on its way.

    A half-close ends that side's direction alone. Of a torn message one byte is sent, or all but one.
    """

    side: Side
    n: int
    how: How
    when: When
    stays: bool = False  # new connections are refused, until `watch` is called again

    def part(self, message: bytes) -> bytes:
        """What of the message still goes on its way."""
        if self.how == "torn":
            return message[:1] if self.when == "before" else message[:-1]
        return b"" if self.when == "before" else message


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
        self._break: Break | None = None
        self._seen: dict[Side, str] = {"client": "", "server": ""}
        self._refuses = False
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

    def watch(self, planned: Break | None = None) -> dict[Side, str]:
        """Have that happen. What is returned fills with the types of the messages that each side sends from now on."""
        self._break, self._refuses = planned, False
        self._seen = {"client": "", "server": ""}
        return self._seen

    def lead_to(self, dsn: str) -> None:
        """From now on to another server, as an address does that moves; connections that there are break."""
        self._target = Dsn.parse(dsn)
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refuses:
            writer.transport.abort()
            return
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

    def broken(self, side: Side, kind: bytes) -> Break | None:
        """What happens to a message of that side's."""
        self._seen[side] += kind.decode()
        planned = self._break
        if planned is None or (planned.side, planned.n) != (side, len(self._seen[side])):
            return None
        self._break, self._refuses = None, planned.stays
        self.fired += 1
        return planned


class _Pair:
    """One client, and its connection to the server."""

    def __init__(self, proxy: PgProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = reader, writer
        self._fault: Fault | None = None
        self._is_black = False

    async def run(self, target: Dsn) -> None:
        host = target.hosts[0]
        if host.is_socket:
            self._server = await asyncio.open_unix_connection(f"{host.name}/.s.PGSQL.{host.port}")
        else:
            self._server = await asyncio.open_connection(host.name, host.port)
        pumps = [asyncio.create_task(self._from_client()), asyncio.create_task(self._from_server())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if self._is_black:  # then neither end learns that the other is gone
                await asyncio.Event().wait()
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
                await self._forward("client", kind, message, writer)
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
                    await self._forward("server", kind, message, writer)

    async def _forward(self, side: Side, kind: bytes, message: bytes, writer: asyncio.StreamWriter) -> None:
        """Raises ConnectionAbortedError where the connection is to end with it; never returns from a break."""
        if self._is_black:
            return
        planned = self._proxy.broken(side, kind)
        writer.write(message if planned is None else planned.part(message))
        await writer.drain()
        if planned is None:
            return
        match planned.how:
            case "black hole":
                self._is_black = True
                await asyncio.Event().wait()
            case "half-close":
                writer.write_eof()
                await asyncio.Event().wait()
            case "reset":
                for _, end in (self._client, self._server):
                    at_once = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        raise ConnectionAbortedError


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
