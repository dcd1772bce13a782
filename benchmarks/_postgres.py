"""What a checkpoint costs on Postgres: a throw-away server, and bare inserts on it as the floor."""

import asyncio
import statistics
import time
from collections.abc import Awaitable
from typing import TypeAlias

import asyncpg

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import this_owner
from app.session.session import Session
from app.session.store import SessionStore
from benchmarks._parts import BLOCK, BODIES, ROUNDS, WARM_UP, Appending, Call, Case, flatness, in_turns, table, us
from persistence.postgres import PostgresPersistence
from tests.support.pg_proxy import PgProxy
from tests.support.postgres_local import LocalServer

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

NOTE = ev.ExtensionType("bench/note", ignorable=True)
SIZES = (1, 8)
SESSIONS = (1, 8, 32, 128)
POOL = 16
APPENDS = 6_000
"""By all sessions together, each time that their rate is measured."""
TIMES = 3

FLOOR = "create table floor (id bigint generated always as identity primary key, data text not null)"
INSERT = "insert into floor (data) values ($1)"
WAL = "select pg_current_wal_insert_lsn() - '0/0'"
TABLES = """
select pg_total_relation_size('beforehand.events') + pg_total_relation_size('beforehand.sessions'),
    pg_total_relation_size('floor')
"""


class Flushing:
    """A live session, flushed after each `size` events of 1 KB."""

    def __init__(self, sessions: SessionStore, session: Session, size: int) -> None:
        self._sessions, self._session, self._size = sessions, session, size

    def prepare(self) -> None:
        self._session.append(*(ev.Extension(NOTE, {"text": BODIES[n]}) for n in range(self._size)))

    async def flush(self) -> None:
        await self._sessions.flush(self._session)


async def cost(store: PostgresPersistence, floor: Connection) -> None:
    """One checkpoint at a time, on the store alone and through the whole session."""
    sessions = SessionStore(store, this_owner(), extensions=[NOTE], drain_limits=DrainLimits(write_behind_ms=None))
    cases: dict[str, Case] = {}
    for size in SIZES:
        text = "".join(BODIES[:size])
        appending, flushing = (
            Appending(store, f"append {size}", size),
            Flushing(sessions, await sessions.create(), size),
        )
        cases[f"insert {size}"] = (lambda: None), lambda text=text: floor.execute(INSERT, text)  # type: ignore[misc]
        cases[f"append {size}"] = appending.prepare, appending.append
        cases[f"flush {size}"] = flushing.prepare, flushing.flush
    found = await in_turns(cases)
    rows = []
    for size in SIZES:
        insert, append, flush = (found[f"{what} {size}"] for what in ("insert", "append", "flush"))
        rows.append(
            (str(size), us(insert), us(append), us(flush), f"{append / insert:.2f} x", f"{flush / insert:.2f} x")
        )
    table(
        f"one checkpoint, medians of {ROUNDS * BLOCK}; the floor: one bare row of as many bytes, committed by itself",
        ("events of 1 KB", "insert (floor)", "append", "flush", "append/floor", "flush/floor"),
        rows,
    )


async def amounts(dsn: str, floor: Connection) -> None:
    """What a checkpoint sends and stores: counted on the wire, and by the server."""

    async def grown(write: Call, times: int = 1_000) -> tuple[int, int]:
        """Bytes of WAL and of tables that so many calls add."""
        wal, tables = await floor.fetchval(WAL), sum(await floor.fetchrow(TABLES) or ())
        for _ in range(times):
            await write()
        return int(await floor.fetchval(WAL) - wal), sum(await floor.fetchrow(TABLES) or ()) - tables

    rows = []
    async with PgProxy(dsn) as proxy:
        store = PostgresPersistence(proxy.dsn)
        await store.open()
        for size in SIZES:
            appending = Appending(store, f"counted {size}", size)

            async def append(appending: Appending = appending) -> None:
                appending.prepare()
                await appending.append()

            for _ in range(WARM_UP):  # each connection prepares its statements once
                await append()
            statements, round_trips = proxy.statements, proxy.round_trips
            await append()
            counted = proxy.statements - statements, proxy.round_trips - round_trips
            text = "".join(BODIES[:size])
            wal, tables = await grown(append)
            floor_wal, floor_tables = await grown(lambda text=text: floor.execute(INSERT, text))  # type: ignore[misc]
            per_byte = (f"{amount / 1_000 / len(text):.2f}" for amount in (wal, floor_wal, tables, floor_tables))
            rows.append((str(size), *map(str, counted), *per_byte))
        await store.close()
    columns = "events of 1 KB", "statements", "round trips", "WAL", "WAL of floor", "tables", "tables of floor"
    table("one checkpoint, counted on the wire; bytes of WAL and tables for each byte of text", columns, rows)


async def concurrency(store: PostgresPersistence, dsn: str) -> None:
    """Many sessions at once, against as many who insert a row each."""

    async def nothing(_: object) -> None:
        """In place of the statements by which the driver's pool cleans a connection: that would raise the floor."""

    async def insert(times: int) -> None:
        for n in range(times):
            await pool.execute(INSERT, BODIES[n % len(BODIES)])

    async def append(writer: Appending, times: int) -> None:
        for _ in range(times):
            await writer.append()

    async def rate(*work: Awaitable[None]) -> float:
        start = time.perf_counter()
        await asyncio.gather(*work)
        return len(work) * each / (time.perf_counter() - start)

    rows = []
    async with asyncpg.create_pool(dsn, min_size=POOL, max_size=POOL, reset=nothing) as pool:
        for sessions in SESSIONS:
            each = APPENDS // sessions
            writers = [Appending(store, f"{n} of {sessions}") for n in range(sessions)]
            for writer in writers:
                writer.prepare(1 + TIMES * each)
                await writer.append()
            inserts, appends = [], []
            for _ in range(TIMES):
                inserts.append(await rate(*(insert(each) for _ in writers)))
                appends.append(await rate(*(append(writer, each) for writer in writers)))
            slow, fast = statistics.median(inserts), statistics.median(appends)
            rows.append((str(sessions), f"{slow:,.0f}/s", f"{fast:,.0f}/s", f"{fast / slow:.2f} x"))
    table(
        f"appends of 1 KB by many sessions, against bare inserts by as many tasks through a pool of {POOL}",
        ("sessions", "inserts", "appends", "appends/inserts"),
        rows,
    )


async def main() -> None:
    with LocalServer() as server:
        print(f"Postgres {server.version} through a Unix socket, every commit durable")
        store = PostgresPersistence(server.dsn(), migrate_on_start=True)
        await store.open()
        floor = await asyncpg.connect(server.dsn())
        await floor.execute(FLOOR)
        await cost(store, floor)
        await amounts(server.dsn(), floor)
        await flatness(store)
        await concurrency(store, server.dsn())
        await floor.close()
        await store.close()
