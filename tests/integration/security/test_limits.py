"""Limits hold to the unit on each store: one below and just at it is stored and read back, one above is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import LimitExceeded
from app.session.session import LogLimits
from app.session.values import ValueLimits
from persistence.contract import Writer
from persistence.contract.samples import messages
from tests.support.checkpoints import pend
from tests.support.house import House
from tests.support.stores import Place

NOTE = ev.ExtensionType("test/note")
LIMIT = 60


def nested(levels: int) -> Any:
    """An object of so many levels, itself the first."""
    value: Any = []
    for _ in range(levels - 2):
        value = [value]
    return {"value": value}


SIZES: dict[str, tuple[str, LogLimits, Callable[[int], Any]]] = {
    "depth": ("max_depth", LogLimits(values=ValueLimits(max_depth=LIMIT)), nested),
    "digits": (
        *("max_integer_digits", LogLimits(values=ValueLimits(max_integer_digits=LIMIT))),
        lambda size: {"value": -(10 ** (size - 1))},
    ),
    "bytes": ("max_event_bytes", LogLimits(max_event_bytes=LIMIT + 200), lambda size: {"value": "x" * size}),
}


@pytest.mark.parametrize("kind", SIZES)
async def test_a_value_is_as_large_as_the_limit_says_and_no_larger(place: Place, kind: str) -> None:
    setting, limits, make = SIZES[kind]
    house = House(persistence=place.persistence(), extensions=[NOTE], log_limits=limits)
    async with house.opened():
        session = await house.sessions.create("s")
        session.append(ev.Extension(NOTE, {}))
        at = LIMIT
        if kind == "bytes":  # the limit is that of the whole event's text
            session.append(ev.Extension(NOTE, make(1)))
            at = limits.max_event_bytes - len(session.events[1].line) + 1
        for size in (at - 1, at):
            session.append(ev.Extension(NOTE, make(size)))
        length = len(session)
        with pytest.raises(LimitExceeded) as refused:
            session.append(ev.Extension(NOTE, make(at + 1)))
        assert (refused.value.setting, len(session)) == (setting, length)
        await house.sessions.flush(session)
        stored = (await house.persistence.read("s")).events
        assert stored == session.events
        assert [event.data for event in stored[-2:]] == [make(at - 1), make(at)]


async def test_a_log_takes_as_many_messages_as_the_limit_says(place: Place) -> None:
    house = House(persistence=place.persistence(), log_limits=LogLimits(max_session_events=3))
    async with house.opened():
        session = await house.sessions.create("s")
        pend(session, "m1", "m2", "m3")
        with pytest.raises(LimitExceeded) as refused:
            pend(session, "m4")
        assert (refused.value.setting, refused.value.limit) == ("max_session_events", 3)
        await house.sessions.flush(session)
        assert len((await house.persistence.read("s")).events) == 3


@pytest.mark.parametrize("by", ["events", "bytes"])
async def test_a_batch_holds_as_much_as_the_limit_says(place: Place, by: str) -> None:
    size = len('{"text":"x"}')
    limits = DrainLimits(
        max_batch_events=4 if by == "events" else 100,
        max_batch_bytes=4 * size if by == "bytes" else 10_000,
        write_behind_ms=None,
    )
    house = House(persistence=place.persistence(), extensions=[NOTE], drain_limits=limits)
    async with house.opened():
        for count, ends in ((3, [2]), (4, [3]), (5, [3, 4])):
            session = await house.sessions.create(f"s{count}")
            for _ in range(count):
                session.append(ev.Extension(NOTE, {"text": "x"}))
            await house.sessions.flush(session)
            assert [end.seq for end in (await house.persistence.read(session.id)).ends] == ends


async def test_an_export_keeps_a_page_in_memory_and_not_the_log(durable_place: Place) -> None:
    """Semantics 19.3: some 20 MB of events, which arrive whole."""
    house = House(persistence=durable_place.persistence())
    async with house.opened():
        writer = Writer.new(house.persistence, "s")
        for _ in range(40):
            await writer.write(events=messages(writer.seq, 100, "x" * 5000))
        size, writer.events, writer.batches = sum(len(event.line) for event in writer.events), [], []
        tracemalloc.start()
        read = 0
        async for line in await house.sessions.export("s"):
            read += len(line)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert read > size > 20_000_000
    assert peak < size / 4
