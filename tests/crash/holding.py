"""Where a child stops for its parent, and how a store becomes a row of such places."""

from __future__ import annotations

import asyncio.selector_events
import os
import select
import sqlite3
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from app.session.batch import Batch, Header
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionPersistence, StoredLog
from persistence.jsonl import disk
from persistence.sqlite import file
from tests.crash.ledger import Ledger
from tests.support.faults import FaultyPersistence
from tests.support.system_calls import Calls


class Hold:
    """Stops at one place, says so, and waits there until it is killed, or told to go on. Any thread may come by."""

    def __init__(self, parent: Connection | None = None, place: str | None = None) -> None:
        self._parent = parent
        self._place = place
        self._points = 0

    def __call__(self, place: str) -> None:
        if place == self._place:
            self._place = None
            assert self._parent is not None
            self._parent.send(place)
            try:
                self._parent.recv()
            except EOFError:  # the parent is gone: nobody will kill this process
                os._exit(1)

    def point(self) -> None:
        """Pass one more write point; they are called `point 1`, `point 2`, ..."""
        self._points += 1
        self(f"point {self._points}")


class HeldPersistence(FaultyPersistence):
    """The real store. The places: `before tool 2` and `after tool 2` (the second write of that reason), and `stored
    turn/end 1` (after the first write whose last event is one). The start and end of every call that writes are points.
    """

    def __init__(self, inner: SessionPersistence, hold: Hold, ledger: Ledger) -> None:
        super().__init__(inner)
        self._hold = hold
        self._ledger = ledger
        self._passed: Counter[str] = Counter()

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        write, last = self._nth(batch.reason), self._nth(batch.events[-1].type)
        self._hold(f"before {write}")
        self._hold.point()
        await super().append(header, batch, epoch)
        self._ledger.note("stored", next_seq=batch.next_seq)
        self._hold(f"after {write}")
        self._hold(f"stored {last}")
        self._hold.point()

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        self._hold.point()
        known = len(self.written)
        taken = await super().acquire(session_id, owner, force=force, repair=repair)
        batches, (_, log) = self.written[known:], taken
        self._ledger.note("stored", next_seq=batches[-1].next_seq if batches else log.next_seq)
        self._hold.point()
        return taken

    async def release(self, session_id: str, epoch: Epoch) -> None:
        self._hold.point()
        await super().release(session_id, epoch)
        self._hold.point()

    def _nth(self, name: str) -> str:
        self._passed[name] += 1
        return f"{name} {self._passed[name]}"


def _trace_sqlite(point: Callable[[], None]) -> None:
    """Every statement of a writing connection is a point, from its opening on: the statements before it are done."""
    connect = file.connect

    def traced(path: os.PathLike[str], mode: str, busy_timeout_s: float, options: str = "") -> sqlite3.Connection:
        connection = connect(path, mode, busy_timeout_s, options)  # type: ignore[arg-type]  # handed on as it came
        if mode == "rw":
            connection.set_trace_callback(lambda statement: point())
        return connection

    file.connect = traced


def _trace_jsonl(point: Callable[[], None]) -> None:
    """Every system call that changes a file is a point: the calls before it are done."""

    def traced(name: str, do: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        point()
        return do()

    mock.patch.object(disk, "os", Calls(traced)).start()


def _trace_postgres(point: Callable[[], None]) -> None:
    """Every message to the server makes two points: before it is sent; and when the server has done what it says and
    its answer is there, unread. Nothing else in this process talks to anybody.
    """
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write = transport.write

    def traced(to: asyncio.Transport, data: bytes) -> None:
        if data[:1] == b"P":  # a statement that is made ready changes nothing, and may have no answer of its own
            write(to, data)
            return
        point()
        write(to, data)
        select.select([to.get_extra_info("socket")], [], [])
        point()

    transport.write = traced


INSIDE: dict[str, Callable[[Callable[[], None]], None]] = {
    "sqlite": _trace_sqlite,
    "jsonl": _trace_jsonl,
    "postgres": _trace_postgres,
}
"""By kind of store: what makes points, in this process, of the places inside its writes."""
