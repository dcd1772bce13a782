"""What loading a stored session costs, and what reading it page by page holds in memory.

The floor is what the store's driver needs to bring the same rows, and to parse their JSON; nothing is checked there.
Loading claims the session, reads it, verifies every digest and the grammar, and derives what the model sees.
"""

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import asyncpg

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import this_owner
from app.session.persistence import SessionPersistence
from app.session.store import SessionStore
from persistence.jsonl import JsonlPersistence
from persistence.jsonl.directory import name_of
from persistence.postgres import PostgresPersistence
from persistence.sqlite import SqlitePersistence
from tests.support.postgres_local import LocalServer

LENGTHS = (10_000, 100_000)
PAGE = 1_000
TIMES = 3
Read: TypeAlias = Callable[[str], Awaitable[object]]
"""Reads the session of that id."""


async def store_log(sessions: SessionStore, session_id: str, length: int) -> None:
    """Turns of one answer each, of twenty chunks, until there are so many events."""
    session = await sessions.create(session_id)
    turn = 0
    while len(session) < length:
        turn += 1
        message = {"id": f"m{turn}", "content": "x" * 200}
        session.append(ev.InboxAccepted(message, "next_turn"))
        session.append(ev.TurnStart(turn, [message["id"]]), ev.UserMessage(turn, message, "next_turn"))
        session.append(ev.StepStart(turn, 1))
        chunks = [
            session.append(ev.AssistantChunk(turn, 1, {"kind": "text_delta", "index": 0, "text": "word " * 8}))
            for _ in range(20)
        ]
        content = [{"type": "text", "text": "word " * 160}]
        model = {"adapter": "script", "model": "bench"}
        ranges = [[chunks[0][0].seq, chunks[-1][0].seq]]
        session.append(ev.AssistantMessage(turn, 1, content, ranges, model, "stop"))
        session.append(ev.StepEnd(turn, 1))
        session.append(ev.TurnEnd(turn, "completed"))
        await sessions.flush(session)
    await sessions.release(session)


async def least(call: Read, session_id: str) -> float:
    """Seconds of the fastest of a few calls."""
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        await call(session_id)
        times.append(time.perf_counter() - start)
    return min(times)


async def peak_of_pages(store: SessionPersistence, session_id: str) -> int:
    """The most bytes that reading a log page by page holds at a time."""
    tracemalloc.start()
    seq = 0
    while page := await store.read_from(session_id, seq, PAGE):
        seq = page[-1].seq + 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


async def measure(store: SessionPersistence, floor: Read) -> None:
    await store.open()
    sessions = SessionStore(store, this_owner(), drain_limits=DrainLimits(write_behind_ms=None))
    print(f"loading a session stored on {store.kind}: the fastest of {TIMES}; pages of {PAGE:,} events")
    print(f"  {'events':>8} {'load':>8} {'an event':>10} {'floor':>8} {'load/floor':>11} {'peak of pages':>15}")
    for length in LENGTHS:
        session_id = f"bench-{length}"
        await store_log(sessions, session_id, length)

        async def load(session_id: str) -> None:
            await sessions.release(await sessions.resume(session_id))

        load_s, floor_s = await least(load, session_id), await least(floor, session_id)
        peak = await peak_of_pages(store, session_id)
        print(
            f"  {length:>8,} {load_s:>6.2f} s {load_s / length * 1e6:>7.1f} us {floor_s:>6.2f} s"
            f" {load_s / floor_s:>9.1f} x {peak / 2**20:>11.1f} MB"
        )
    await store.close()


async def on_sqlite(directory: Path) -> None:
    path = directory / "bench.db"

    async def floor(session_id: str) -> None:
        with sqlite3.connect(path) as connection:
            (key,) = connection.execute("SELECT key FROM sessions WHERE id = ?", (session_id,)).fetchone()
            query = "SELECT seq, time, type, data FROM events WHERE place BETWEEN ? AND ? ORDER BY place"
            for row in connection.execute(query, (key << 32, (key + 1 << 32) - 1)).fetchall():
                json.loads(row[3])

    await measure(SqlitePersistence(path), floor)


async def on_jsonl(directory: Path) -> None:
    def parse(path: Path) -> None:
        for line in path.read_text().splitlines():
            json.loads(line)

    async def floor(session_id: str) -> None:
        parse(directory / name_of(session_id))

    await measure(JsonlPersistence(directory), floor)


async def on_postgres(_: Path) -> None:
    with LocalServer() as server:
        connection = await asyncpg.connect(server.dsn())

        async def floor(session_id: str) -> None:
            query = "select seq, time, type, data from beforehand.events where session_id = $1 order by seq"
            for row in await connection.fetch(query, session_id):
                json.loads(row[3])

        await measure(PostgresPersistence(server.dsn(), migrate_on_start=True), floor)
        await connection.close()


STORES = {"sqlite": on_sqlite, "jsonl": on_jsonl, "postgres": on_postgres}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(STORES[parser.parse_args().store](Path(place)))
