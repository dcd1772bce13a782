"""What becomes of a SQLite store whose bytes or rows were changed: refused, and never silently something else."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
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
from tests.support.counting import SEED, amount, count

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


def put(path: Path, database: bytes | bytearray, wal: bytes | bytearray = b"") -> None:
    """A database, and what a crash left beside it."""
    for name, content in (("", database), ("-wal", wal), ("-shm", b"")):
        path.with_name(path.name + name).write_bytes(content)


async def what_is_told(path: Path, writers: list[Writer]) -> str:
    """How it is found that something is wrong, by whoever opens, lists, reads or verifies; fails if nobody finds it."""
    store = SqlitePersistence(path)
    try:
        await store.open()
        rows = await store.list(10)
    except REFUSALS as error:
        await store.close()
        return type(error).__name__
    told = {type(row.problem).__name__ for row in rows if row.problem}
    for writer in writers:
        try:
            log = await store.read(writer.id)
            verify(log, {})
            assert (log.header_text, list(log.events), log.head) == (writer.header.text, writer.events, writer.head)
            is_whole = True
        except (CorruptLog, UnknownEventType, UnsupportedFormat) as error:
            told.add(type(error).__name__)
            is_whole = False
        except SessionNotFound:  # by the index; its row may be listed yet, under this id or another
            is_whole = False
        if (not is_whole or writer.id not in [row.session_id for row in rows]) and not told:
            try:
                assert await store.faults() != [], f"{writer.id} is gone, and nobody says so"
                told.add("a fault of the store")
            except CorruptLog:  # of the database as a whole
                told.add("CorruptLog")
    await store.close()
    return min(told, default="equal")


async def test_no_flipped_bit_gives_another_log(tmp_path: Path) -> None:
    """DIG-01: in every byte that is not NUL, and in some that are; no session is gone without a word either."""
    path = tmp_path / "s.db"
    writers = await make(path)
    whole = path.read_bytes()
    chance = random.Random(SEED)
    zeros = [at for at, byte in enumerate(whole) if not byte]
    places = [at for at, byte in enumerate(whole) if byte]
    places += chance.sample(zeros, min(amount("FLIPPED_ZEROS", 500), len(zeros)))
    outcomes = Counter[str]()
    unnoticed: list[str] = []
    copy = tmp_path / "copy.db"
    for at in places:
        flipped = bytearray(whole)
        bit = chance.randrange(8)
        flipped[at] ^= 1 << bit
        put(copy, flipped)
        try:
            outcomes[await what_is_told(copy, writers)] += 1
        except AssertionError as error:
            unnoticed.append(f"bit {bit} of byte {at}: {error}")
    acknowledged = len(places) * sum(writer.seq for writer in writers)
    runs, seeds = len(places), str(SEED)
    count("bytes flipped, sqlite", runs=runs, acknowledged=acknowledged, violations=len(unnoticed), seeds=seeds)
    assert unnoticed == []
    assert min(outcomes["equal"], outcomes["CorruptLog"], outcomes["StoreUnusable"]) > 200, outcomes


async def test_no_flipped_bit_of_what_a_crash_left_loses_what_was_committed(tmp_path: Path) -> None:
    """DIG-01: in the -wal file; of the last transaction alone nothing tells whether it had been committed.

    SQLite reads up to the first frame that is wrong, and takes what comes then for the rest of a write.
    """
    path = tmp_path / "s.db"
    wal = tmp_path / "s.db-wal"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store, "a")
    for batch in range(3):
        await writer.write(events=[message(2 * batch + n, "hello", id=f"m{batch}.{n}") for n in (0, 1)])
    sure = wal.stat().st_size
    await writer.write(1)
    database, whole = path.read_bytes(), wal.read_bytes()
    await store.close()
    chance = random.Random(SEED)
    copy = tmp_path / "copy.db"
    outcomes = Counter[str]()
    wrong: list[str] = []
    places = [*range(56), *chance.sample(range(56, len(whole)), amount("FLIPPED_WAL", 1_000))]
    for at in places:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << chance.randrange(8)
        put(copy, database, flipped)
        try:
            found = list((await load(copy, "a")).events)
        except StoreUnusable:
            outcome = "told"
            assert copy.with_name("copy.db-wal").read_bytes() == flipped
        else:
            outcome = {7: "equal", 6: "without the last"}.get(len(found), "less")
            if found != writer.events[: len(found)] or (outcome != "equal" and at < sure) or outcome == "less":
                wrong.append(f"byte {at} of {sure} and {len(whole)}: {len(found)} events")
        outcomes[outcome] += 1
    runs, acknowledged, seeds = len(places), len(places) * 6, str(SEED)
    count("bytes flipped, sqlite -wal", runs=runs, acknowledged=acknowledged, violations=len(wrong), seeds=seeds)
    assert wrong == []
    assert outcomes["told"] > len(places) / 2, outcomes


@pytest.mark.parametrize("begun_anew", [False, True], ids=["", "after an older journal"])
async def test_the_rest_of_a_write_is_no_damage(tmp_path: Path, begun_anew: bool) -> None:
    """ST-07 for SQLite: a last transaction any part of which is missing, also where older ones stand behind it."""
    path, copy = tmp_path / "s.db", tmp_path / "copy.db"
    wal = tmp_path / "s.db-wal"
    store = SqlitePersistence(path)
    await store.open()
    writer = Writer.new(store, "a")
    for _ in range(5):
        await writer.write(2)
    if begun_anew:
        change_journal(path)
    before = wal.read_bytes()
    await writer.write(2)
    database, whole = path.read_bytes(), wal.read_bytes()
    await store.close()
    last = [at for at in range(len(whole)) if at >= len(before) or whole[at] != before[at]]
    assert (last[-1] < len(before)) is begun_anew
    for at in range(last[0] if begun_anew else last[0] + 32, last[-1], 301):
        older = before[at:] if begun_anew else b""
        for torn in (whole[:at] + older, whole[:at] + bytes(512) + whole[at + 512 :]):
            put(copy, database, torn)
            log = await load(copy, "a")
            assert list(log.events) in (writer.events, writer.events[:-2])


def change_journal(path: Path) -> None:
    """Have the next transaction begin the -wal file anew: what is in it stays until it is written over."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0


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
