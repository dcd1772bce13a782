"""The tool that asks a Postgres database: one query in a read-only transaction, bounded in time, rows and bytes.

The wall is the rights of the role, not this file: a read-only transaction does not stop functions that act elsewhere
(they end backends, read files of the server, call out). So roles that may do the worst of it are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from app.causes import error_text
from app.session.errors import ConfigurationError
from app.tools.schema import tool
from app.tools.types import Tool, ToolError

Connect: TypeAlias = Callable[[], Awaitable[Any]]
"""Makes a connection of asyncpg's. Raises ToolError `SQL_UNAVAILABLE`."""

CLOSE_S = 2.0
PREFETCH = 10

_LOOK = """
select
    exists (
        select from pg_catalog.pg_roles
        where (rolsuper or rolname in ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files'))
            and pg_has_role(session_user, oid, 'member')
    ),
    exists (
        select from pg_catalog.pg_class as t
        where t.relname = 'sessions' and 2 = (
            select count(*) from pg_catalog.pg_attribute as a
            where a.attrelid = t.oid and a.attname in ('header_digest', 'lease_until')
        )
    )
"""
_TOO_MIGHTY = "its role is, or can become, a superuser or one that reaches the server's files; give it a lesser one"
_OWN_STORE = "this database holds sessions of the runtime; sql_read never reads those, give it another database"


@dataclass(frozen=True, slots=True)
class Rows:
    """Integers, floats, booleans and nulls are JSON's, all else is text. `truncated`: rows are missing, or text is."""

    columns: list[str]
    rows: list[list[str | int | float | bool | None]]
    truncated: bool


class SqlReader:
    """The tool `sql_read`, and what is looked at when the runtime starts: that the role cannot do too much."""

    def __init__(
        self, connect: Connect, *, timeout_s: float = 10.0, max_rows: int = 200, max_bytes: int = 262_144
    ) -> None:
        self._connect = connect
        self._timeout_s = timeout_s
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.tool: Tool = tool(self.sql_read, effects="read_only", parallel_safe=True)

    async def open(self) -> tuple[Tool, ...]:
        """Look at the database. Raises ConfigurationError if it cannot be reached, or not be read like this."""
        try:
            async with self._connected():
                return ()
        except ToolError as error:
            raise ConfigurationError(f"tools.sql.dsn: {error.message}") from error

    async def close(self) -> None:
        """There is nothing to close: each query has a connection of its own."""

    async def sql_read(
        self, query: Annotated[str, "one SELECT, WITH, VALUES or TABLE, in the SQL of Postgres, without parameters"]
    ) -> Rows:
        """Ask the database. Nothing can be changed; only the first rows are given, and long texts are cut.

        `truncated` means that something is missing: ask for less, with WHERE, LIMIT, fewer columns or an aggregate.
        """
        try:
            async with self._connected() as connection, asyncio.timeout(self._timeout_s + CLOSE_S):
                return await self._ask(connection, query)
        except TimeoutError as error:
            raise ToolError("SQL_TIMEOUT", f"the query took longer than {self._timeout_s:g} s") from error

    async def _ask(self, connection: Any, query: str) -> Rows:
        query = query.strip().removesuffix(";")
        try:
            async with connection.transaction(readonly=True):
                await connection.execute(f"set local statement_timeout = {math.ceil(self._timeout_s * 1000)}")
                columns = (await connection.prepare(query)).get_attributes()
                if not columns:
                    raise ToolError("SQL_FAILED", "that is no query: it gives no columns")
                return await self._rows(connection, query, columns)
        except (ToolError, TimeoutError):
            raise
        except Exception as error:  # the driver's errors, of several families; those of the server say what is wrong
            if getattr(error, "sqlstate", None) == "57014":
                raise TimeoutError from error
            raise ToolError("SQL_FAILED", error_text(error)) from error

    async def _rows(self, connection: Any, query: str, columns: Any) -> Rows:
        room = max(self._max_bytes // len(columns), 1)
        names = [f"c{n}" for n in range(len(columns))]
        cut = ", ".join(f"left({name}::text, {room + 1})" for name in names)  # on the server: a cell may have gigabytes
        # It was a whole statement on its own, so nothing in it closes our parenthesis; a comment ends with its line.
        wrapped = f"select {cut} from (\n{query}\n) as q ({', '.join(names)})"  # noqa: S608  # running it is the point
        found = Rows([column.name for column in columns], [], truncated=False)
        size, truncated = 0, False
        async for record in connection.cursor(wrapped, prefetch=PREFETCH):
            size += sum(len(cell.encode()) for cell in record if cell is not None)
            if len(found.rows) == self._max_rows or size > self._max_bytes:
                truncated = True
                break
            truncated = truncated or any(cell is not None and len(cell) > room for cell in record)
            kinds = (column.type.name for column in columns)
            found.rows.append([_value(cell, kind, room) for cell, kind in zip(record, kinds, strict=True)])
        return Rows(found.columns, found.rows, truncated)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Any, None]:
        connection = await self._connect()
        try:
            is_too_mighty, is_own_store = await connection.fetchrow(_LOOK, timeout=self._timeout_s)
            if is_too_mighty or is_own_store:
                raise ToolError("SQL_REFUSED", _TOO_MIGHTY if is_too_mighty else _OWN_STORE)
            yield connection
        finally:
            try:
                await connection.close(timeout=CLOSE_S)
            except Exception:  # it was gone already, or does not answer: then without a goodbye
                connection.terminate()


def _value(cell: str | None, kind: str, room: int) -> str | int | float | bool | None:
    if cell is None:
        return None
    if kind == "bool":
        return cell == "true"
    if kind in ("int2", "int4", "int8", "oid"):
        return int(cell)
    if kind in ("float4", "float8") and math.isfinite(float(cell)):
        return float(cell)
    return cell[:room]
