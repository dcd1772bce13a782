"""The rows of the stores that are databases, changed behind the store's back while nobody has it open."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from typing import Any, TypeAlias

from tests.support.postgres import connect
from tests.support.stores import Place

Row: TypeAlias = Sequence[Any]

COLUMNS = "type, time, ignorable, data, reason, written_at, digest"
"""Of an event, without its place."""


class Rows(ABC):
    """The tables `sessions` and `events` of a store. In `events`, a session's rows stand by its `of` and their seqs."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    async def run(self, statement: str, *values: Any) -> list[Row]:
        """The rows that a statement gives; each `?` in it stands for a value."""

    @abstractmethod
    def of(self, id: str) -> str:
        """The condition that a session's events fulfil."""

    @abstractmethod
    async def insert(self, id: str, seq: int, row: Row) -> None:
        """Add an event; the values are those of COLUMNS."""

    async def everything(self) -> str:
        """Every row of both tables."""
        return repr([await self.run(f"SELECT * FROM {name} ORDER BY 1, 2") for name in ("sessions", "events")])

    async def change(self, id: str, seq: int, what: str, *values: Any) -> None:
        """Set columns of an event."""
        await self.run(f"UPDATE events SET {what} WHERE {self.of(id)} AND seq = {seq}", *values)

    async def drop(self, id: str, seq: int) -> None:
        await self.run(f"DELETE FROM events WHERE {self.of(id)} AND seq = {seq}")

    async def events(self, id: str) -> list[Row]:
        """The rows of a session, in order."""
        return await self.run(f"SELECT {COLUMNS} FROM events WHERE {self.of(id)} ORDER BY seq")

    async def replace(self, id: str, rows: list[Row], *, with_head: bool) -> None:
        """Put other rows in the place of a session's, without gaps; `with_head`: the session's row agrees with them."""
        await self.run(f"DELETE FROM events WHERE {self.of(id)}")
        for seq, row in enumerate(rows):
            await self.insert(id, seq, row)
        if with_head:
            await self.run("UPDATE sessions SET next_seq = ?, head = ? WHERE id = ?", len(rows), rows[-1][-1], id)


class SqliteRows(Rows):
    """An event's place is its session's key and its seq in one number; the two are columns to read by."""

    async def run(self, statement: str, *values: Any) -> list[Row]:
        path = self.place.directory / "sessions.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.text_factory = lambda text: text.decode(errors="surrogateescape")
            return connection.execute(statement, values).fetchall()

    def of(self, id: str) -> str:
        return f"session = (SELECT key FROM sessions WHERE id = '{id}')"

    async def insert(self, id: str, seq: int, row: Row) -> None:
        values = f"SELECT (key << 32) + {seq}, ?, ?, ?, ?, ?, ?, ? FROM sessions WHERE id = ?"
        await self.run(f"INSERT INTO events (place, {COLUMNS}) {values}", *row, id)


class PostgresRows(Rows):
    async def run(self, statement: str, *values: Any) -> list[Row]:
        dsn, schema = self.place.database
        connection = await connect(dsn)
        try:
            await connection.execute(f"set search_path to {schema}")
            numbers = count(1)
            statement = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
            return [tuple(row) for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()

    def of(self, id: str) -> str:
        return f"session_id = '{id}'"

    async def insert(self, id: str, seq: int, row: Row) -> None:
        columns = f"session_id, seq, {COLUMNS}"
        await self.run(f"INSERT INTO events ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", id, seq, *row)


ROWS: dict[str, type[Rows]] = {"sqlite": SqliteRows, "postgres": PostgresRows}
"""By kind of store."""
