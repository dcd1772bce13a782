"""A long log costs what it holds, and only where it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.session import events as ev
from tests.support.house import House
from tests.support.rows import ROWS
from tests.support.stores import KINDS, Kind, Place

NOTE = ev.ExtensionType("test/note", ignorable=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ROWS], ids=lambda kind: kind.name)
async def test_a_list_reads_no_event_and_the_end_of_a_long_log_is_read_alone(
    kind: Kind, new_place: Callable[[Kind], Place]
):
    """BIG-04: 200 000 events load; the last ones are read without the others; a list does with the sessions' rows."""
    place = new_place(kind)
    house = House(persistence=place.persistence(), extensions=[NOTE])
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
        await ROWS[kind.name](place).run("DROP TABLE events")
        assert [(row.session_id, row.next_seq) for row in await house.sessions.list()] == [("long", 200_000)]
