"""A long log costs what it holds, and only where it is read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.session import events as ev
from persistence.sqlite import SqlitePersistence
from tests.support.house import House

NOTE = ev.ExtensionType("test/note", ignorable=True)


async def test_a_list_reads_no_event_and_the_end_of_a_long_log_is_read_alone(tmp_path: Path):
    """BIG-04: 200 000 events load; the last ones are read without the others; a list does with the sessions' rows."""
    house = House(persistence=SqlitePersistence(tmp_path / "s.db"), extensions=[NOTE])
    async with house.opened():
        session = await house.sessions.create("long")
        for n in range(200_000):
            session.append(ev.Extension(NOTE, {"n": n}))
        await house.sessions.flush(session)
        assert [event.data["n"] for event in await house.sessions.read_from("long", 199_997)] == [
            199_997,
            199_998,
            199_999,
        ]
        await house.sessions.release(session)
        resumed = await house.sessions.resume("long")
        assert (len(resumed), resumed.durable) == (200_000, 200_000)
        await house.sessions.release(resumed)
        with sqlite3.connect(tmp_path / "s.db") as connection:
            connection.execute("DROP TABLE events")
        connection.close()
        assert [(row.session_id, row.next_seq) for row in await house.sessions.list()] == [("long", 200_000)]
