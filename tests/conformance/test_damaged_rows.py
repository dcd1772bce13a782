"""A database whose rows were changed behind the store's back: told with the place, never loaded as something else."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from app.entrypoints.exits import CORRUPT, DONE
from app.entrypoints.output import Output
from app.entrypoints.verifying import verify
from app.session.errors import CorruptLog, PersistenceError
from app.session.persistence import StoredLog
from persistence.contract.samples import messages
from tests.support.house import House
from tests.support.logs import random_walk
from tests.support.recording import EXTENSIONS, MARK, data_of_event
from tests.support.rows import COLUMNS, ROWS, Row, Rows
from tests.support.stores import KINDS, Kind, Place

BATCHES = 4
SIZE = 3


@dataclass
class Damaged:
    """A store, its rows, and another place that keeps what was stored before any damage."""

    rows: Rows
    whole: Place

    async def keep(self) -> None:
        await self.rows.place.copy_to(self.whole)

    async def restore(self) -> None:
        await self.whole.copy_to(self.rows.place)


@pytest.fixture(params=[kind for kind in KINDS if kind.name in ROWS], ids=lambda kind: kind.name)
def store(request: pytest.FixtureRequest, new_place: Callable[[Kind], Place]) -> Damaged:
    """Each kind of store that has rows."""
    return Damaged(ROWS[request.param.name](new_place(request.param)), new_place(request.param))


@asynccontextmanager
async def opened(store: Damaged) -> AsyncIterator[House]:
    house = House(persistence=store.rows.place.persistence(), extensions=EXTENSIONS)
    async with house.opened():
        yield house


async def store_batches(store: Damaged, *ids: str) -> None:
    """Sessions of four batches with three events each, equal in all of them but for the ids of their headers."""
    async with opened(store) as house:
        for id in ids:
            session = await house.sessions.create(id)
            for event in messages(0, BATCHES * SIZE):
                session.append(data_of_event(event))
                if event.seq % SIZE == SIZE - 1:
                    await house.sessions.flush(session)
            await house.sessions.release(session)
    await store.keep()


async def store_turns(store: Damaged) -> int:
    """A session of several turns, the last one open, written event by event; the number of its events."""
    walk = random_walk(2, 36)
    async with opened(store) as house:
        session = await house.sessions.create("s")
        for event in walk.events:
            session.append(event)
            await house.sessions.flush(session)
        await house.sessions.release(session)
        types = [event.type for event in session.events]
        assert walk.state != "IDLE"
        assert types.count("turn/end") > 1
    await store.keep()
    return len(types)


async def damage(store: Damaged, id: str = "s") -> CorruptLog:
    """What loading raises, and looking reports or raises too; fails if the store was changed by that."""
    before = await store.rows.everything()
    async with opened(store) as house:
        with pytest.raises(CorruptLog) as refused:
            await house.sessions.resume(id)
        try:
            problem: BaseException | None = (await house.sessions.inspect(id)).problem
        except CorruptLog as error:
            problem = error
        assert (type(problem), str(problem)) == (CorruptLog, str(refused.value))
        assert house.sessions.live == ()
    assert await store.rows.everything() == before
    return refused.value


# -- rows ----------------------------------------------------------------------------------------

UNREADABLE = [
    "data = 'x'",
    "data = substr(data, 1, length(data) / 2)",
    "data = ''",
    "data = '[]'",
    "data = '{\"é\":1}'",
    "type = ''",
    "time = -1",
]
NO_UTF8 = {"sqlite": ["data = CAST(X'FF' AS TEXT)"], "postgres": []}  # which Postgres never stores


async def test_a_row_that_cannot_be_read_is_told_wherever_it_is(store: Damaged):
    """ST-02: with its seq or the first one of its batch; the good rows after it are not touched."""
    await store_batches(store, "s")
    for change in UNREADABLE + NO_UTF8[store.rows.place.kind.name]:
        for seq in range(BATCHES * SIZE):
            await store.rows.change("s", seq, change)
            assert (await damage(store)).where in (f"seq {seq}", f"seq {seq - seq % SIZE}")
            await store.restore()


async def test_a_missing_row_is_told_wherever_it_was(store: Damaged):
    """ST-03: before the last `turn/end`, at it, and after it to the very end."""
    for seq in range(await store_turns(store)):
        await store.rows.drop("s", seq)
        assert (await damage(store)).where == f"seq {seq}"
        await store.restore()


async def test_a_row_too_many_is_told(store: Damaged):
    """ST-03: after the last one, where no batch ends; though it would be legal there."""
    await store_batches(store, "s")
    end = BATCHES * SIZE
    await store.rows.insert("s", end, (MARK.name, 1, True, "{}", None, None, None))
    assert (await damage(store)).where == f"seq {end}"


async def test_what_was_closed_before_the_damage_can_be_forked(store: Damaged):
    """ST-02: the rows after the boundary are not even read."""
    await store_turns(store)
    async with opened(store) as house:
        events = (await house.persistence.read("s")).events
    boundary = next(event.seq for event in events if event.type == "turn/end")
    for change in UNREADABLE:
        await store.rows.change("s", boundary + 1, change)
        await damage(store)
        async with opened(store) as house:
            child = await house.sessions.resume(await house.sessions.fork("s", boundary))
            assert child.events[: boundary + 1] == events[: boundary + 1]


# -- digests -------------------------------------------------------------------------------------

Change: TypeAlias = Callable[[list[list[Row]], list[list[Row]], int], list[list[Row]]]

CHANGES: dict[str, tuple[Change, int]] = {
    "dropped": (lambda own, other, n: own[:n] + own[n + 1 :], 0),
    "doubled": (lambda own, other, n: own[: n + 1] + own[n:], 1),
    "swapped": (lambda own, other, n: [*own[:n], own[n + 1], own[n], *own[n + 2 :]], 0),
    "copied": (lambda own, other, n: [*own[:n], other[n], *own[n + 1 :]], 0),
}
"""What is done to a batch; the second number is how many batches after it the first wrong one is."""


async def batches(rows: Rows, id: str) -> list[list[Row]]:
    found = await rows.events(id)
    return [found[start : start + SIZE] for start in range(0, len(found), SIZE)]


@pytest.mark.parametrize("with_head", [False, True], ids=["as it was", "made to agree"])
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_batch_in_the_wrong_place_is_told(store: Damaged, kind: str, with_head: bool):
    """DIG-02: dropped, doubled, swapped or copied from elsewhere: the first batch that is wrong is named.

    Also where the session's row was made to agree; then alone, nothing can show that the last batch was dropped.
    """
    await store_batches(store, "s", "t")
    change, further = CHANGES[kind]
    last = BATCHES - 1 if kind == "swapped" or (kind == "dropped" and with_head) else BATCHES
    for n in range(last):
        changed = change(await batches(store.rows, "s"), await batches(store.rows, "t"), n)
        await store.rows.replace("s", [row for batch in changed for row in batch], with_head=with_head)
        assert (await damage(store)).where == f"seq {SIZE * (n + further)}"
        async with opened(store) as house:
            text = io.StringIO()
            assert await verify(house.sessions, "s", None, Output(out=text)) == CORRUPT
            assert f"at seq {SIZE * (n + further)}: " in text.getvalue()
            assert await verify(house.sessions, "t", None, Output(out=io.StringIO())) == DONE
        await store.restore()


async def test_a_whole_log_of_another_session_is_told(store: Damaged):
    """DIG-02: every batch of it, its head too."""
    await store_batches(store, "s", "t")
    await store.rows.replace("s", await store.rows.events("t"), with_head=True)
    assert (await damage(store)).where == "seq 0"


async def test_an_older_copy_of_the_whole_store_only_a_known_head_can_show(store: Damaged):
    """DIG-04: after a restart it loads, and `verify` finds no fault in it; with the head that was known it does."""
    await store_batches(store, "s")
    async with opened(store) as house:
        session = await house.sessions.resume("s")
        for event in messages(BATCHES * SIZE, 5):
            session.append(data_of_event(event))
        await house.sessions.release(session)
        head = (await house.sessions.inspect("s")).head
        assert await verify(house.sessions, "s", head, Output(out=io.StringIO())) == DONE
    await store.restore()
    async with opened(store) as house:
        assert (await house.sessions.resume("s")).events == session.events[: BATCHES * SIZE]
        assert await verify(house.sessions, "s", None, Output(out=io.StringIO())) == DONE
        text = io.StringIO()
        assert await verify(house.sessions, "s", head, Output(out=text)) == CORRUPT
        assert head.hex() in text.getvalue()


# -- bits ----------------------------------------------------------------------------------------

FLIPS = 100


async def test_one_flipped_bit_of_a_value_is_told_or_changes_nothing(store: Damaged):
    """DIG-01: what loads equals what was stored, or loading refuses."""
    length = await store_turns(store)
    async with opened(store) as house:
        stored = await house.persistence.read("s")
    chance = random.Random(1)
    outcomes: dict[str, int] = {}
    for _ in range(FLIPS):
        if chance.random() < 0.2:
            column = chance.choice(["header", "head", "next_seq", "epoch", "created_at"])
            value = (await store.rows.run(f"SELECT {column} FROM sessions"))[0][0]
            await store.rows.run(f"UPDATE sessions SET {column} = ?", flipped(value, chance))
        else:
            place, seq = chance.randrange(7), chance.randrange(length)
            value = (await store.rows.events("s"))[seq][place]
            await store.rows.change("s", seq, f"{COLUMNS.split(', ')[place]} = ?", flipped(value, chance))
        outcome = await load(store, stored)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        await store.restore()
    assert outcomes.keys() <= {"equal", "CORRUPT_LOG", "UNSUPPORTED_FORMAT"}
    assert outcomes["equal"] > FLIPS / 20
    assert outcomes["CORRUPT_LOG"] > FLIPS / 2


def flipped(value: Any, chance: random.Random) -> Any:
    """The same but for one bit; no other text holds a NUL."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1 << chance.randrange(40)
    if isinstance(value, bytes):
        return flipped(int.from_bytes(value), chance).to_bytes(len(value))
    place = chance.randrange(len(value))
    return value[:place] + (chr(ord(value[place]) ^ 1 << chance.randrange(7)).replace("\0", " ")) + value[place + 1 :]


async def load(store: Damaged, stored: StoredLog) -> str:
    """How it went; fails if it loaded something else."""
    try:
        async with opened(store) as house:
            session = await house.sessions.resume("s", force=True)
            assert session.header.text == stored.header_text
            assert session.events[: stored.next_seq] == stored.events
            assert session.closers == session.events[stored.next_seq :]
    except PersistenceError as refused:
        return refused.code
    return "equal"
