"""What becomes of a SQLite store whose bytes or rows were changed: refused, and never silently something else."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.session.errors import CorruptLog, SessionNotFound, StoreUnusable, UnknownEventType, UnsupportedFormat
from app.session.ownership import Epoch
from app.session.persistence import StoredLog
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.samples import message, owner
from persistence.sqlite import SqlitePersistence

REFUSALS = (CorruptLog, SessionNotFound, StoreUnusable, UnknownEventType, UnsupportedFormat)


async def make(path: Path) -> list[Writer]:
    """A database of two sessions, "a" and "b", of four batches of two events each; closed."""
    store = SqlitePersistence(path)
    await store.open()
    writers = [Writer.new(store, id) for id in ("a", "b")]
    for batch in range(4):
        for writer in writers:
            await writer.write(events=[message(2 * batch + n, f"of {writer.id}", id=f"m{batch}.{n}") for n in (0, 1)])
    await store.close()
    return writers


async def load(path: Path, session_id: str) -> StoredLog:
    """The log, verified, as resuming reads it."""
    store = SqlitePersistence(path)
    await store.open()
    try:
        log = await store.read(session_id)
        verify(log, {})
        return log
    finally:
        await store.close()


def change(path: Path, *statements: str) -> None:
    """Tamper with the rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0


async def test_no_flipped_bit_gives_another_log(tmp_path: Path) -> None:
    """DIG-01."""
    path = tmp_path / "s.db"
    writers = await make(path)
    whole = path.read_bytes()
    chance = random.Random(1)
    filled = [n for n, byte in enumerate(whole) if byte]
    outcomes: dict[str, int] = {}
    for n, at in enumerate([*range(100), *chance.sample(filled, 500)]):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << chance.randrange(8)
        copy = tmp_path / f"{n}.db"
        copy.write_bytes(flipped)
        for writer in writers:
            try:
                log = await load(copy, writer.id)
            except REFUSALS as error:
                outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
            else:
                assert (log.header_text, list(log.events)) == (writer.header.text, writer.events), f"bit at {at}"
                assert log.head == writer.head
                outcomes["equal"] = outcomes.get("equal", 0) + 1
    assert min(outcomes["equal"], outcomes["CorruptLog"]) > 50, outcomes


A, B = (f"(SELECT key FROM sessions WHERE id = '{id}') * 4294967296" for id in "ab")
MOVED = "type, time, ignorable, data, reason, written_at, digest"


def copied(source: str, target: str, first: int) -> str:
    """The batch of two at `first` of one session, over that of another."""
    return (
        f"INSERT OR REPLACE INTO events (place, {MOVED}) SELECT place - {source} + {target}, {MOVED} "
        f"FROM events WHERE place BETWEEN {source} + {first} AND {source} + {first} + 1"
    )


TAMPERED = {
    "first batch dropped": (0, [f"DELETE FROM events WHERE place BETWEEN {A} AND {A} + 1"]),
    "batch dropped": (2, [f"DELETE FROM events WHERE place BETWEEN {A} + 2 AND {A} + 3"]),
    "batch dropped, the rest moved up": (
        2,
        [
            f"DELETE FROM events WHERE place BETWEEN {A} + 2 AND {A} + 3",
            f"UPDATE events SET place = place - 2 WHERE place BETWEEN {A} + 4 AND {A} + 7",
            "UPDATE sessions SET next_seq = 6 WHERE id = 'a'",
        ],
    ),
    "last batch dropped": (6, [f"DELETE FROM events WHERE place BETWEEN {A} + 6 AND {A} + 7"]),
    "last batch dropped, the count too": (
        6,
        [
            f"DELETE FROM events WHERE place BETWEEN {A} + 6 AND {A} + 7",
            "UPDATE sessions SET next_seq = 6 WHERE id = 'a'",
        ],
    ),
    "batch doubled": (
        8,
        [
            f"INSERT INTO events (place, {MOVED}) SELECT place + 2, {MOVED} FROM events WHERE place >= {A} + 6 LIMIT 2",
            "UPDATE sessions SET next_seq = 10 WHERE id = 'a'",
        ],
    ),
    "batches swapped": (
        2,
        [
            f"UPDATE events SET place = place + 1000 WHERE place BETWEEN {A} + 2 AND {A} + 3",
            f"UPDATE events SET place = place - 2 WHERE place BETWEEN {A} + 4 AND {A} + 5",
            f"UPDATE events SET place = place - 998 WHERE place BETWEEN {A} + 1002 AND {A} + 1003",
        ],
    ),
    "batch copied from the other session": (4, [copied(B, A, 4)]),
    "first batch copied from the other session": (0, [copied(B, A, 0)]),
}


@pytest.mark.parametrize("kind", TAMPERED)
async def test_batches_that_were_moved_are_found(tmp_path: Path, kind: str) -> None:
    """DIG-02: the first wrong batch is named."""
    path = tmp_path / "s.db"
    await make(path)
    seq, statements = TAMPERED[kind]
    change(path, *statements)
    with pytest.raises(CorruptLog) as raised:
        await load(path, "a")
    assert raised.value.where == f"seq {seq}"
    assert (await load(path, "b")).next_seq == 8


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        return [repr(row) for table in ("sessions", "events") for row in connection.execute(f"SELECT * FROM {table}")]


UNREADABLE = {
    "data is not UTF-8": f"UPDATE events SET data = CAST(x'7bff7d' AS TEXT) WHERE place = {A} + 3",
    "data is not ASCII": f"UPDATE events SET data = '{{\"ä\":1}}' WHERE place = {A} + 3",
    "data is not JSON": f"UPDATE events SET data = '{{' WHERE place = {A} + 3",
    "data is altered": f"UPDATE events SET data = replace(data, 'of a', 'of A') WHERE place = {A} + 3",
    "type is altered": f"UPDATE events SET type = 'inbox/discarded' WHERE place = {A} + 3",
    "time is altered": f"UPDATE events SET time = time + 1 WHERE place = {A} + 3",
    "time is negative": f"UPDATE events SET time = -1 WHERE place = {A} + 3",
    "ignorable is altered": f"UPDATE events SET ignorable = 1 WHERE place = {A} + 3",
    "digest is altered": f"UPDATE events SET digest = x'00' WHERE place = {A} + 3",
    "digest is gone": f"UPDATE events SET digest = NULL WHERE place = {A} + 3",
    "reason is gone": f"UPDATE events SET reason = NULL WHERE place = {A} + 3",
    "a row is gone before the end": f"DELETE FROM events WHERE place = {A} + 3",
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_a_row_that_was_changed_is_told_with_its_seq_and_nothing_is_changed(tmp_path: Path, kind: str) -> None:
    """ST-02, ST-03: also to who wants to take the session over."""
    path = tmp_path / "s.db"
    await make(path)
    change(path, UNREADABLE[kind])
    before = dump(path)
    store = SqlitePersistence(path)
    await store.open()

    def repair(log: StoredLog, epoch: Epoch) -> None:
        verify(log, {})

    for _ in range(2):
        with pytest.raises(CorruptLog) as raised:
            verify(await store.read("a"), {})
        assert raised.value.where in ("seq 2", "seq 3", "seq 4")
        with pytest.raises(CorruptLog) as raised:
            await store.acquire("a", owner(), force=True, repair=repair)
        assert raised.value.where in ("seq 2", "seq 3", "seq 4")
    assert len(await store.read_from("b", 0)) == 8
    assert [row.session_id for row in await store.list(10)] == ["b", "a"]
    await store.close()
    assert dump(path) == before


ROWS = {
    "header is not UTF-8": "UPDATE sessions SET header = CAST(x'7bff7d' AS TEXT) WHERE id = 'a'",
    "header is that of another": "UPDATE sessions SET header = replace(header, '\"a\"', '\"b\"') WHERE id = 'a'",
    "header is not ASCII": """UPDATE sessions SET header = replace(header, '{', '{"meta":{"ä":1},') WHERE id = 'a'""",
    "header is no object": "UPDATE sessions SET header = '[]' WHERE id = 'a'",
    "head is too short": "UPDATE sessions SET head = x'00' WHERE id = 'a'",
    "head is another": "UPDATE sessions SET head = zeroblob(32) WHERE id = 'a'",
    "next seq is lower": "UPDATE sessions SET next_seq = 7 WHERE id = 'a'",
    "next seq is higher": "UPDATE sessions SET next_seq = 9 WHERE id = 'a'",
}


@pytest.mark.parametrize("kind", ROWS)
async def test_a_session_whose_own_row_was_changed_is_refused(tmp_path: Path, kind: str) -> None:
    """CRD-41, VER-04: load and inspect; it hides no other session from the list, and can still be deleted."""
    path = tmp_path / "s.db"
    await make(path)
    change(path, ROWS[kind])
    before = dump(path)
    with pytest.raises(CorruptLog):
        await load(path, "a")
    store = SqlitePersistence(path)
    await store.open()

    def repair(log: StoredLog, epoch: Epoch) -> None:
        verify(log, {})

    with pytest.raises(CorruptLog):
        await store.acquire("a", owner(), force=True, repair=repair)
    assert dump(path) == before
    problems = {row.session_id: row.problem for row in await store.list(10)}
    assert problems.keys() == {"a", "b"}
    assert [id for id, problem in problems.items() if problem] == (["a"] if kind == "header is not UTF-8" else [])
    await store.delete("a")
    await store.close()
    assert (await load(path, "b")).next_seq == 8


async def test_events_beyond_the_end_are_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store, "a")
    await writer.write(2)
    change(path, f"INSERT INTO events (place, type, time, ignorable, data) VALUES ({A} + 3, 'my/word', 0, 0, '{{}}')")
    before = dump(path)
    with pytest.raises(CorruptLog):
        await writer.write(3)
    assert dump(path) == before
    await store.close()
