"""A SQLite file that was changed behind the store's back: told with the place, never loaded as something else."""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from app.entrypoints.exits import CORRUPT, DONE
from app.entrypoints.output import Output
from app.entrypoints.verifying import verify
from app.session.errors import CorruptLog, PersistenceError
from app.session.record import SessionEvent
from persistence.contract.samples import messages
from persistence.sqlite import SqlitePersistence
from tests.support.house import House
from tests.support.logs import random_walk
from tests.support.recording import EXTENSIONS, MARK, data_of_event

Row: TypeAlias = tuple[Any, ...]
"""Of an event, without its place: type, time, ignorable, data, reason, written_at, digest."""

BATCHES = 4
SIZE = 3


@dataclass
class File:
    """The file of a store, and what is done to it while nobody has it open."""

    path: Path

    def sql(self, statement: str, *values: Any) -> list[Row]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def everything(self) -> str:
        """Every row of every table."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.text_factory = bytes
            return repr([connection.execute(f"SELECT * FROM {name}").fetchall() for name in ("sessions", "events")])

    def key(self, id: str) -> int:
        return int(self.sql("SELECT key FROM sessions WHERE id = ?", id)[0][0])

    def batches(self, id: str) -> list[list[Row]]:
        """The rows of each batch."""
        columns = "type, time, ignorable, data, reason, written_at, digest"
        rows = self.sql(f"SELECT {columns} FROM events WHERE session = ? ORDER BY seq", self.key(id))
        return [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]

    def replace(self, id: str, batches: list[list[Row]], *, with_head: bool) -> None:
        """Put other rows in the place of a session's, without gaps; `with_head`: the session's row agrees with them."""
        key = self.key(id)
        self.sql("DELETE FROM events WHERE session = ?", key)
        rows = [row for batch in batches for row in batch]
        for seq, row in enumerate(rows):
            self.sql(
                "INSERT INTO events (place, type, time, ignorable, data, reason, written_at, digest) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (key << 32) + seq,
                *row,
            )
        if with_head:
            self.sql("UPDATE sessions SET next_seq = ?, head = ? WHERE key = ?", len(rows), rows[-1][-1], key)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "sessions.db")


@asynccontextmanager
async def opened(file: File) -> AsyncIterator[House]:
    house = House(persistence=SqlitePersistence(file.path), extensions=EXTENSIONS)
    async with house.opened():
        yield house


async def store_batches(file: File, *ids: str) -> None:
    """Sessions of four batches with three events each, equal in all of them but for the ids of their headers."""
    async with opened(file) as house:
        for id in ids:
            session = await house.sessions.create(id)
            for event in messages(0, BATCHES * SIZE):
                session.append(data_of_event(event))
                if event.seq % SIZE == SIZE - 1:
                    await house.sessions.flush(session)
            await house.sessions.release(session)


async def damage(file: File, id: str = "s") -> CorruptLog:
    """What loading raises, and looking reports or raises too; fails if the store was changed by that."""
    before = file.everything()
    async with opened(file) as house:
        with pytest.raises(CorruptLog) as refused:
            await house.sessions.resume(id)
        try:
            problem: BaseException | None = (await house.sessions.inspect(id)).problem
        except CorruptLog as error:
            problem = error
        assert (type(problem), str(problem)) == (CorruptLog, str(refused.value))
        assert house.sessions.live == ()
    assert file.everything() == before
    return refused.value


# -- rows ----------------------------------------------------------------------------------------

UNREADABLE = {
    "no JSON": "UPDATE events SET data = 'x' WHERE place = ?",
    "half of it": "UPDATE events SET data = substr(data, 1, length(data) / 2) WHERE place = ?",
    "nothing": "UPDATE events SET data = '' WHERE place = ?",
    "no object": "UPDATE events SET data = '[]' WHERE place = ?",
    "no UTF-8": "UPDATE events SET data = CAST(X'FF' AS TEXT) WHERE place = ?",
    "not ASCII": "UPDATE events SET data = '{\"é\":1}' WHERE place = ?",
    "no type": "UPDATE events SET type = '' WHERE place = ?",
    "a time below 0": "UPDATE events SET time = -1 WHERE place = ?",
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_a_row_that_cannot_be_read_is_told_wherever_it_is(file: File, kind: str):
    """ST-02: with its seq or the first one of its batch; the good rows after it are not touched."""
    await store_batches(file, "s")
    whole = file.path.read_bytes()
    for seq in range(BATCHES * SIZE):
        file.sql(UNREADABLE[kind], (file.key("s") << 32) + seq)
        told = await damage(file)
        assert told.where in (f"seq {seq}", f"seq {seq - seq % SIZE}")
        file.path.write_bytes(whole)


async def store_turns(file: File) -> int:
    """A session of several turns, the last one open, written event by event; the number of its events."""
    walk = random_walk(617, 70)
    async with opened(file) as house:
        session = await house.sessions.create("s")
        for event in walk.events:
            session.append(event)
            await house.sessions.flush(session)
        await house.sessions.release(session)
        types = [event.type for event in session.events]
        assert walk.state != "IDLE"
        assert types.count("turn/end") > 1
    return len(types)


async def test_a_missing_row_is_told_wherever_it_was(file: File):
    """ST-03: before the last `turn/end`, at it, and after it to the very end."""
    length = await store_turns(file)
    whole = file.path.read_bytes()
    for seq in range(length):
        file.sql("DELETE FROM events WHERE place = ?", (file.key("s") << 32) + seq)
        assert (await damage(file)).where == f"seq {seq}"
        file.path.write_bytes(whole)


async def test_a_row_too_many_is_told(file: File):
    """ST-03: after the last one, where no batch ends; though it would be legal there."""
    await store_batches(file, "s")
    end = BATCHES * SIZE
    file.sql(
        "INSERT INTO events (place, type, time, ignorable, data) VALUES (?, ?, 1, 1, '{}')",
        (file.key("s") << 32) + end,
        MARK.name,
    )
    assert (await damage(file)).where == f"seq {end}"


async def test_what_was_closed_before_the_damage_can_be_forked(file: File):
    """ST-02: the rows after the boundary are not even read."""
    await store_turns(file)
    async with opened(file) as house:
        events = (await house.persistence.read("s")).events
    boundary = next(event.seq for event in events if event.type == "turn/end")
    for statement in UNREADABLE.values():
        file.sql(statement, (file.key("s") << 32) + boundary + 1)
        await damage(file)
        async with opened(file) as house:
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


@pytest.mark.parametrize("with_head", [False, True], ids=["as it was", "made to agree"])
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_batch_in_the_wrong_place_is_told(file: File, kind: str, with_head: bool):
    """DIG-02: dropped, doubled, swapped or copied from elsewhere: the first batch that is wrong is named.

    Also where the session's row was made to agree; then alone, nothing can show that the last batch was dropped.
    """
    await store_batches(file, "s", "t")
    whole = file.path.read_bytes()
    change, further = CHANGES[kind]
    last = BATCHES - 1 if kind == "swapped" or (kind == "dropped" and with_head) else BATCHES
    for n in range(last):
        file.replace("s", change(file.batches("s"), file.batches("t"), n), with_head=with_head)
        told = await damage(file)
        assert told.where == f"seq {SIZE * (n + further)}"
        async with opened(file) as house:
            text = io.StringIO()
            assert await verify(house.sessions, "s", None, Output(out=text)) == CORRUPT
            assert f"at seq {SIZE * (n + further)}: " in text.getvalue()
            assert await verify(house.sessions, "t", None, Output(out=io.StringIO())) == DONE
        file.path.write_bytes(whole)


async def test_a_whole_log_of_another_session_is_told(file: File):
    """DIG-02: every batch of it, its head too."""
    await store_batches(file, "s", "t")
    file.replace("s", file.batches("t"), with_head=True)
    assert (await damage(file)).where == "seq 0"


async def test_an_older_copy_of_the_whole_store_only_a_known_head_can_show(file: File):
    """DIG-04: after a restart it loads, and `verify` finds no fault in it; with the head that was known it does."""
    async with opened(file) as house:
        session = await house.sessions.create("s")
        for event in messages(0, 5):
            session.append(data_of_event(event))
        await house.sessions.release(session)
    older = file.path.read_bytes()
    async with opened(file) as house:
        session = await house.sessions.resume("s")
        for event in messages(5, 5):
            session.append(data_of_event(event))
        await house.sessions.release(session)
        head = (await house.sessions.inspect("s")).head.hex()
        assert await verify(house.sessions, "s", head, Output(out=io.StringIO())) == DONE
    file.path.write_bytes(older)
    async with opened(file) as house:
        assert (await house.sessions.resume("s")).events == session.events[:5]
        assert await verify(house.sessions, "s", None, Output(out=io.StringIO())) == DONE
        text = io.StringIO()
        assert await verify(house.sessions, "s", head, Output(out=text)) == CORRUPT
        assert head in text.getvalue()


# -- bits ----------------------------------------------------------------------------------------

FLIPS = 300


async def test_one_flipped_bit_is_told_or_changes_nothing(file: File, tmp_path: Path):
    """DIG-01: what loads equals what was stored, or opening or loading refuses."""
    await store_turns(file)
    async with opened(file) as house:
        stored = await house.persistence.read("s")
    whole, chance = file.path.read_bytes(), random.Random(1)
    outcomes: dict[str, int] = {}
    for n in range(FLIPS):
        position, bit = chance.randrange(len(whole)), chance.randrange(8)
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        copy = File(tmp_path / f"{n}" / "sessions.db")
        copy.path.parent.mkdir()
        copy.path.write_bytes(flipped)
        outcome = await load(copy, stored.header_text, stored.events)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(copy.path.parent)
    assert outcomes["equal"] > FLIPS / 10
    assert outcomes["CORRUPT_LOG"] > FLIPS / 10


async def load(file: File, header_text: str, events: tuple[SessionEvent, ...]) -> str:
    """How it went; fails if it loaded something else."""
    try:
        async with opened(file) as house:
            session = await house.sessions.resume("s", force=True)
            assert session.header.text == header_text
            assert session.events[: len(events)] == events
            assert session.closers == session.events[len(events) :]
    except PersistenceError as refused:
        return refused.code
    return "equal"
