"""Moving a session to another store: whole, equal byte for byte, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.session.errors import CorruptLog, SessionDeleted, SessionExists
from app.session.recovery import close_interrupted_turn
from persistence.memory import MemoryPersistence
from tests.support.house import House
from tests.support.interrupted import Open, leave
from tests.support.logs import random_walk
from tests.support.recording import EXTENSIONS
from tests.support.stores import KINDS, Kind, Place


def house_over(place: Place) -> House:
    return House(persistence=place.persistence(), extensions=EXTENSIONS)


async def rich_log(house: House) -> list[str]:
    """Store a session with events of every kind; its export."""
    session = await house.sessions.create("rich", meta={"n": [1, 1.0, -0.0, 2**64], "t": "\0\udc81é"})
    for event in random_walk(seed=11, length=600).events:
        session.append(event)
    assert len({event.type for event in session.events}) >= 14
    await house.sessions.release(session)
    return [line async for line in await house.sessions.export("rich")]


@pytest.mark.parametrize("target", KINDS, ids=lambda kind: f"to-{kind.name}")
async def test_an_export_is_the_same_again_from_another_store(
    place: Place, target: Kind, new_place: Callable[[Kind], Place]
):
    """XIO-01: every event type and the values that are hard to keep."""
    source, other = house_over(place), house_over(new_place(target))
    async with source.opened(), other.opened():
        exported = await rich_log(source)
        if other.persistence is source.persistence:
            pytest.fail("the two stores have to be two")
        assert await other.sessions.import_(exported) == "rich"
        assert [line async for line in await other.sessions.export("rich")] == exported


async def test_an_export_that_is_cut_or_changed_anywhere_is_refused_and_leaves_nothing(place: Place):
    """XIO-02: each line dropped, doubled or altered; a wrong number; the error names the line."""
    house = House(persistence=MemoryPersistence(), extensions=EXTENSIONS)
    async with house.opened():
        session = await house.sessions.create("s")
        for event in random_walk(seed=3, length=60).events:
            session.append(event)
        await house.sessions.release(session)
        exported = [line async for line in await house.sessions.export("s")]
    broken = [exported[:cut] for cut in range(len(exported))]
    broken += [exported[:n] + exported[n + 1 :] for n in range(1, len(exported) - 1)]
    broken += [exported[: n + 1] + exported[n:] for n in range(len(exported))]
    broken += [[*exported[:n], exported[n][:-1], *exported[n + 1 :]] for n in range(len(exported))]
    broken += [[*exported[:-1], '{"events":1}'], [*exported[:-1], '{"events":60,"more":1}']]
    target = house_over(place)
    async with target.opened():
        for lines in broken:
            with pytest.raises(CorruptLog, match=r"at (line \d+|seq \d+|the header)"):
                await target.sessions.import_(lines)
            assert list(await target.sessions.list()) == []


@pytest.mark.parametrize(
    "envelope", ['"ignorable":false', '"ignorable":1', '"ignorable":"true"', '"epoch":3'], ids=lambda text: text
)
async def test_an_envelope_that_no_event_has_is_refused(envelope: str):
    """VER-08: `ignorable` with any other value than true; an unknown key."""
    line = f'{{"seq":0,"type":"inbox/accepted","time":1,"data":{{"message":{{}},"placement":"context"}},{envelope}}}'
    house = House()
    async with house.opened():
        with pytest.raises(CorruptLog, match="at line 2"):
            await house.sessions.import_(['{"format":1,"id":"s","created_at":1}', line, '{"events":1}'])


async def test_an_import_into_a_taken_or_deleted_id_is_refused(place: Place):
    """XIO-03: SessionExists; SessionDeleted."""
    house = house_over(place)
    async with house.opened():
        exported = await rich_log(house)
        with pytest.raises(SessionExists):
            await house.sessions.import_(exported)
        await house.sessions.delete("rich")
        with pytest.raises(SessionDeleted):
            await house.sessions.import_(exported)


async def test_an_open_turn_is_moved_as_it_is_and_closed_where_it_arrives(
    durable_place: Place, new_place: Callable[[Kind], Place]
):
    """XIO-04: the closers are those that it would have had at home."""
    events = await leave(durable_place.persistence(), Open("c1"), Open("c2", effects=None))
    home, away = house_over(durable_place), house_over(new_place(durable_place.kind))
    async with home.opened(), away.opened():
        await away.sessions.import_([line async for line in await home.sessions.export("s")])
        resumed = await away.sessions.resume("s")
        assert resumed.closers == close_interrupted_turn(events)
        assert [event.data["reason"] for event in resumed.closers if event.type == "turn/end"] == ["interrupted"]
        await away.sessions.release(resumed)
