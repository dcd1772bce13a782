"""Durability: what was acknowledged is there for every other process at once, and after each of them has ended.

What a power cut leaves no test on a running machine can show: docs/backends.md says what it takes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import pytest

from app.session.persistence import SessionPersistence, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence.contract.base import Stores
from persistence.contract.crash import read
from persistence.contract.processes import AmongProcesses, Line, OtherProcess
from persistence.contract.samples import Writer
from persistence.contract.telling import Known, draw, send, take

BATCHES = 20
Ending: TypeAlias = Literal["in good order", "without closing", "killed"]


async def write_and_end(store: SessionPersistence, line: Line, seed: str, ending: Ending) -> None:
    """Write twenty batches to each of two sessions, release one of them, and end."""
    lots = random.Random(seed)  # noqa: S311  # a schedule, no secret
    writers = [await take(store, line, session_id) for session_id in ("s1", "s2")]
    for _ in range(BATCHES):
        for writer in writers:
            await send(writer, line, draw(writer, lots))
    await store.release("s1", writers[0].epoch)
    if ending != "in good order":
        line.say("idle")
        await line.wait_for_word()
        os._exit(0)


async def read_when_asked(store: SessionPersistence, line: Line) -> None:
    """Tell what is stored of session "s" whenever that is asked."""
    while await line.wait_for_word():
        line.say(await read(store, "s"), await store.read_from("s", 0), list(await store.list(10)))


async def write_when_asked(store: SessionPersistence, line: Line, seed: str) -> None:
    """Write one batch to session "s" whenever that is asked."""
    lots = random.Random(seed)  # noqa: S311  # a schedule, no secret
    writer = await take(store, line, "s")
    while await line.wait_for_word():
        await send(writer, line, draw(writer, lots))
        line.say("done")


class DurabilityContract(AmongProcesses):
    """An acknowledgement is a promise to everybody, and outlives whoever got it. `seed` draws what is written."""

    @pytest.mark.parametrize("ending", ["in good order", "without closing", "killed"])
    async def test_what_was_acknowledged_is_there_when_its_process_has_ended(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess], ending: Ending
    ) -> None:
        """Twice at the same place: header, events, ends of batches, epochs; a released session is free."""
        known = {session_id: Known(session_id) for session_id in ("s1", "s2")}
        wrong: list[str] = []
        for life in range(2):
            async with elsewhere(write_and_end, f"{self.seed} {life}", ending) as process:
                heard = await process.hear_until("idle")
                if ending == "killed":
                    process.kill()
                elif ending == "without closing":
                    process.say()
                assert await process.hear_rest() == []
            for words in heard:
                wrong += known[words[1]].hear(words)
            assert all(one.unknown is None for one in known.values())
            for _ in range(2):  # opening it may not take anything away either
                store = await stores.open()
                for one in known.values():
                    wrong += one.compare(await read(store, one.session_id))
                released = (await store.read("s1")).holder
                rows = {row.session_id: row.next_seq for row in await store.list(10)}
                await stores.close()
                if released.owner is not None or released.lease_left_s > 0:
                    wrong.append(f"s1 was released, and is held: {released}")
                if rows != {one.session_id: one.acknowledged for one in known.values()}:
                    wrong.append(f"the list shows {rows}")
        acknowledged = sum(one.acknowledged for one in known.values())
        self.tally("durable", runs=2, acknowledged=acknowledged, violations=len(wrong))
        assert wrong == [], "\n".join(wrong)

    async def test_what_was_acknowledged_is_there_for_another_process_at_once(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess]
    ) -> None:
        """In both directions, each store open all the time."""
        lots = random.Random(f"at once {self.seed}")  # noqa: S311  # a schedule, no secret
        store = await stores.open()
        known = Known("s")
        writer = Writer.new(store, "s")
        wrong: list[str] = []
        async with elsewhere(read_when_asked) as reading:
            for _ in range(BATCHES):
                batch = draw(writer, lots)
                await writer.send(batch)
                known.stored(batch)
                reading.say(True)
                words = await reading.hear()
                assert words is not None
                wrong += shown(known, *words)
        async with elsewhere(write_when_asked, str(self.seed)) as writing:
            for _ in range(BATCHES):
                writing.say(True)
                for words in await writing.hear_until("done"):
                    wrong += known.hear(words)
                wrong += shown(known, await read(store, "s"), await store.read_from("s", 0), await store.list(10))
        self.tally("durable", runs=2 * BATCHES, acknowledged=known.acknowledged, violations=len(wrong))
        assert wrong == [], "\n".join(wrong)


def shown(known: Known, log: StoredLog | None, events: Sequence[SessionEvent], rows: Sequence[SessionRow]) -> list[str]:
    """What is wrong with what a store shows of a session, in any of its ways."""
    wrong = known.compare(log)
    if log is not None and list(events) != list(log.events):
        wrong.append(f"{len(events)} events can be read in pages, and {len(log.events)} at once")
    if [(row.session_id, row.next_seq) for row in rows] != [(known.session_id, known.acknowledged)]:
        wrong.append(f"the list shows {rows}")
    return wrong
