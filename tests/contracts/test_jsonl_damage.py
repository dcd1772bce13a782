"""What becomes of a JSONL session whose bytes were changed: the rest of a cut write goes, all else is refused."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from app.session.batch import Batch
from app.session.errors import (
    CorruptLog,
    PersistenceError,
    PersistenceUnavailable,
    SessionDeleted,
    SessionNotFound,
    UnsupportedFormat,
)
from app.session.ownership import Epoch
from app.session.persistence import SessionRow, StoredLog
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.samples import message, messages, owner
from persistence.jsonl import JsonlPersistence
from persistence.jsonl.directory import name_of
from tests.support.counting import SEED, count

BATCHES, SIZE = 5, 2


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JsonlPersistence]:
    store = JsonlPersistence(tmp_path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def writers(store: JsonlPersistence) -> dict[str, Writer]:
    """The writers of sessions "a" and "b", equal but for their ids: five batches of two events each."""
    writers = {id: Writer.new(store, id) for id in "ab"}
    for batch in range(BATCHES):
        for writer in writers.values():
            await writer.write(events=[message(SIZE * batch + n, "é😀\n", id=f"m{batch}.{n}") for n in range(SIZE)])
    return writers


def closing(log: StoredLog, epoch: Epoch) -> Batch:
    """What resuming does: verify all of it, then add to it."""
    verify(log, {})
    return Batch(messages(log.next_seq, 1), log.head, "recovery")


def content(path: Path) -> bytes:
    return path.read_bytes()


async def refusal(store: JsonlPersistence, path: Path, id: str = "a") -> CorruptLog:
    """What reading and taking the session raise; fails if they changed the file."""
    before = content(path)
    with pytest.raises(CorruptLog) as taken:
        await store.acquire(id, owner("berta"), force=True, repair=closing)
    with pytest.raises(CorruptLog) as read:
        verify(await store.read(id), {})
    assert (taken.value.where, taken.value.reason) == (read.value.where, read.value.reason)
    assert content(path) == before
    return read.value


def ends(whole: bytes) -> list[int]:
    """The offsets after each batch."""
    return [found.end() for found in re.finditer(rb'\n\{"end":.*\n', whole)]


def starts(whole: bytes) -> list[int]:
    """The offsets of each batch's first event."""
    return [whole.index(b'{"seq":%d,' % (SIZE * batch)) for batch in range(BATCHES)]


# -- the end of the file -------------------------------------------------------------------------


async def test_a_file_that_is_cut_anywhere_keeps_its_whole_batches(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """ST-05, ST-01: the rest is told with its place, gone before anything is added, and nothing is glued to it."""
    other = JsonlPersistence(tmp_path)
    await other.open()
    path = tmp_path / name_of("a")
    whole, events = path.read_bytes(), writers["a"].events
    after = ends(whole)
    assert after[-1] == len(whole)
    sizes = range(after[-4], len(whole) + 1)
    for size in sizes:
        path.write_bytes(whole[:size])
        batches = sum(end <= size for end in after)
        kept = after[batches - 1]
        log = await store.read("a")
        assert list(log.events) == events[: SIZE * batches]
        told = (
            f"{size - kept} bytes at offset {kept} hold no complete batch; they are cut before anything else is written"
        )
        assert log.torn == (told if size > kept else None)
        assert path.read_bytes() == whole[:size]
        epoch, log = await store.acquire("a", owner("berta"), force=True, repair=closing)
        assert path.read_bytes().startswith(whole[:kept] + b'{"claim":2,')
        taken = Writer(store, writers["a"].header, epoch, Batch(messages(log.next_seq, 1), log.head, "recovery").digest)
        taken.events = [*log.events, *messages(log.next_seq, 1)]
        await taken.write(1)
        log = await other.read("a")
        assert (list(log.events), log.torn) == (taken.events, None)
        verify(log, {})
    count("cut at each byte, jsonl", runs=len(sizes), acknowledged=len(sizes) * len(events))
    await other.close()


@pytest.mark.parametrize("seq", [0, 4])
async def test_a_first_batch_that_is_cut_is_no_session(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path, seq: int
) -> None:
    """K0: at every byte; the id is free, and the list goes on without it."""
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    for size in range(seq, ends(whole)[0], 5):
        path.write_bytes(whole[:size])
        with pytest.raises(SessionNotFound):
            await store.read("a")
        assert [row.session_id for row in await store.list(10)] == ["b"]
    again = Writer.new(store, "a")
    await again.write(2)
    await again.check()


@pytest.mark.parametrize("size", [1, 511, 4096, 70_000])
async def test_nul_bytes_at_the_end_are_a_rest(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path, size: int
) -> None:
    """ST-07: alone, after a piece of a line, and with such a piece after them."""
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    for rest in (b"\0" * size, b'{"seq":10,"ty' + b"\0" * size, b"\0" * size + b'":"x"}', b"\0" * size + b"\nabc"):
        path.write_bytes(whole + rest)
        log = await store.read("a")
        assert list(log.events) == writers["a"].events
        assert log.torn is not None
        assert f"{len(rest)} bytes at offset {len(whole)} " in log.torn
    batch = await writers["a"].write(1)
    assert path.read_bytes()[: len(whole)] == whole
    assert json.loads(path.read_bytes()[len(whole) :].splitlines()[0]) == json.loads(batch.events[0].line)
    await writers["a"].check()


async def test_events_without_an_end_are_a_rest_however_complete(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    path.write_bytes(whole + b"".join(event.line.encode() + b"\n" for event in messages(10, 3)))
    log = await store.read("a")
    assert list(log.events) == writers["a"].events
    assert log.torn is not None
    assert await store.read_from("a", 9) == writers["a"].events[9:]
    await writers["a"].write(1)
    await writers["a"].check()


# -- damage --------------------------------------------------------------------------------------

BLOCKS: dict[str, Callable[[bytes], bytes]] = {
    "NUL bytes": lambda line: b"\0" * len(line),
    "NUL bytes, the line's end kept": lambda line: b"\0" * (len(line) - 1) + b"\n",
    "another line": lambda line: b"x" * (len(line) - 1) + b"\n",
    "no UTF-8": lambda line: b"\xff" + line[1:],
    "JSON, but not ours": lambda line: line[:1] + b" " + line[1:],
    "no line at all": lambda line: b"",
}


@pytest.mark.parametrize("kind", BLOCKS)
async def test_a_bad_line_before_good_ones_is_told_with_its_offset(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path, kind: str
) -> None:
    """ST-06: of any line but the first two and the last; it is not cut, and what was closed before it can be read."""
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for n in range(2, len(lines) - 1):
        at = sum(map(len, lines[:n]))
        path.write_bytes(b"".join([*lines[:n], BLOCKS[kind](lines[n]), *lines[n + 1 :]]))
        where = (await refusal(store, path)).where
        if kind == "no line at all" and lines[n].startswith(b'{"end":'):
            assert where.startswith("seq ")  # two batches have become one, whose digest does not fit
        else:
            assert where == f"offset {at}"
        batches = sum(end <= at for end in ends(whole))
        if batches and where.startswith("offset"):
            log = await store.read("a", before=SIZE * batches)
            assert list(log.events) == writers["a"].events[: SIZE * batches]
        assert len((await store.read("b")).events) == BATCHES * SIZE


async def test_no_flipped_bit_gives_another_log_or_cuts_one(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """DIG-01: in every byte of the file; a batch that was acknowledged is never taken for a rest."""
    path, chance = tmp_path / name_of("a"), random.Random(SEED)
    whole, writer = path.read_bytes(), writers["a"]
    outcomes: dict[str, int] = {}
    unnoticed: list[str] = []
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            log = await store.read("a")
            verify(log, {})
        except (CorruptLog, UnsupportedFormat) as error:
            outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
            with pytest.raises(type(error)):
                await store.acquire("a", owner("berta"), force=True, repair=closing)
        else:
            changed = f"{whole[at : at + 1]!r} to {bytes(flipped[at : at + 1])!r} at {at} of {len(whole)}"
            unnoticed.append(f"{changed}: {log.torn}, {log.next_seq} of {writer.seq} events")
        assert path.read_bytes() == flipped
    runs, acknowledged = len(whole), len(whole) * writer.seq
    count("bytes flipped, jsonl", runs=runs, acknowledged=acknowledged, violations=len(unnoticed), seeds=str(SEED))
    assert unnoticed == []
    assert outcomes["CorruptLog"] > len(whole) - 20


async def test_no_end_of_a_line_that_was_flipped_makes_a_rest_of_what_was_acknowledged(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """DIG-01: every bit of each; two lines that have become one may still look like an event."""
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    for found in re.finditer(rb"\n", whole):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[found.start()] ^= 1 << bit
            path.write_bytes(flipped)
            await refusal(store, path)


TAMPERED: dict[str, tuple[Callable[[list[bytes], list[bytes], int], list[bytes]], int]] = {
    "dropped": (lambda own, other, n: own[:n] + own[n + 1 :], 0),
    "doubled": (lambda own, other, n: own[: n + 1] + own[n:], 1),
    "swapped": (lambda own, other, n: [*own[:n], own[n + 1], own[n], *own[n + 2 :]], 0),
    "copied": (lambda own, other, n: [*own[:n], other[n], *own[n + 1 :]], 0),
}
"""What is done to a batch; the second number is how many batches after it the first wrong one is."""


@pytest.mark.parametrize("kind", TAMPERED)
async def test_a_batch_in_the_wrong_place_is_told(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path, kind: str
) -> None:
    """DIG-02: the offset is that of a line of the first batch that is wrong."""
    path = tmp_path / name_of("a")
    pieces: dict[str, tuple[bytes, list[bytes]]] = {}
    for id in "ab":
        whole = (tmp_path / name_of(id)).read_bytes()
        at = starts(whole)
        pieces[id] = whole[: at[0]], [whole[a:b] for a, b in zip(at, ends(whole), strict=True)]
    head, own = pieces["a"]
    change, further = TAMPERED[kind]
    for n in range(BATCHES - 1 if kind in ("dropped", "swapped") else BATCHES):
        batches = change(own, pieces["b"][1], n)
        path.write_bytes(head + b"".join(batches))
        told = await refusal(store, path)
        first = n + further
        bounds = [len(head) + len(b"".join(batches[:k])) for k in (first, first + 1)]
        assert bounds[0] <= int(told.where.removeprefix("offset ")) < bounds[1]


async def test_a_digest_that_does_not_fit_is_damage_in_the_last_batch_too(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """DIG-01: by somebody who can make an end, with events that are none of its."""
    path = tmp_path / name_of("a")
    whole = path.read_bytes()
    for batch in range(BATCHES):
        path.write_bytes(whole.replace(b'"m%d.1"' % batch, b'"m%d.7"' % batch))
        assert (await refusal(store, path)).where == f"seq {SIZE * batch}"


async def test_a_file_of_another_session_is_told(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """SID-01: the id inside is what counts, not the name, whatever line stands last."""
    path = tmp_path / name_of("a")
    for claim_is_last in (False, True):
        if claim_is_last:
            await store.renew("b", writers["b"].epoch)
        path.write_bytes((tmp_path / name_of("b")).read_bytes())
        for attempt in (store.read("a"), store.read_from("a", 0), store.renew("a", writers["b"].epoch)):
            with pytest.raises(CorruptLog) as told:
                await attempt
            assert told.value.session_id == "a"
            assert told.value.reason.endswith("of session 'b'")
        with pytest.raises(PersistenceError):
            await writers["a"].write(1)
        problems = {row.session_id: row.problem for row in await store.list(10)}
        assert problems.keys() == {"b", name_of("a")}
        assert problems["b"] is None
        assert "it is the file of session 'b' under another name" in str(problems[name_of("a")])


SPOILED: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "the header": (lambda whole: b"?" + whole[1:], False),
    "the claim": (lambda whole: whole.replace(b'{"claim"', b'{"clamb"', 1), True),
    "header and claim are one line": (lambda whole: whole.replace(b"\n", b" ", 1), False),
    "a format of the future": (lambda whole: b'{"format":2,"id":"a","created_at":7}\n[1]\n[2]\n', True),
}
"""What is done to a file, and whether it still tells the id."""


@pytest.mark.parametrize("kind", SPOILED)
async def test_a_file_that_cannot_be_read_hides_no_other_from_the_list(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path, kind: str
) -> None:
    spoil, tells_its_id = SPOILED[kind]
    path = tmp_path / name_of("a")
    path.write_bytes(spoil(path.read_bytes()))
    (tmp_path / name_of("planted")).symlink_to("/etc/hostname")
    rows: list[SessionRow] = []
    while page := await store.list(1, (rows and (rows[-1].created_at, rows[-1].session_id)) or None):
        rows += page
    problems = {row.session_id: row.problem for row in rows}
    assert problems.keys() == {"b", name_of("planted"), "a" if tells_its_id else name_of("a")}
    assert [id for id, problem in problems.items() if problem is None] == ["b"]
    assert all(isinstance(problem, CorruptLog | UnsupportedFormat | None) for problem in problems.values())


async def test_what_was_never_completed_is_no_session_and_no_damage(store: JsonlPersistence, tmp_path: Path) -> None:
    await Writer.new(store, "whole").write()
    for n, content in enumerate((b"", b'{"format', b"\0" * 40 + b"\n", b'{"format":1}\n\0\0\0\n', b"\0\n\0\n")):
        (tmp_path / name_of(f"torn {n}")).write_bytes(content)
    assert [(row.session_id, row.problem) for row in await store.list(10)] == [("whole", None)]


async def test_a_newer_format_is_told_whatever_its_lines_look_like(store: JsonlPersistence, tmp_path: Path) -> None:
    """VER-01."""
    (tmp_path / name_of("a")).write_bytes(b'{"format":2,"id":"a"}\n[1]\n[2]\n')
    with pytest.raises(UnsupportedFormat):
        await store.read("a")
    with pytest.raises(UnsupportedFormat):
        await store.acquire("a", owner())


async def test_a_damaged_session_can_be_deleted(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    path = tmp_path / name_of("a")
    path.write_bytes(path.read_bytes()[3:])
    await store.delete("a")
    with pytest.raises(SessionDeleted):
        await store.read("a")
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(CorruptLog) as told:
        await store.read("a")
    assert told.value.where == "the tombstone"


# -- what is no file -----------------------------------------------------------------------------

PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a symbolic link": lambda path, target: path.symlink_to(target),
    "a link to nothing": lambda path, target: path.symlink_to(target.with_name("nothing")),
    "a directory": lambda path, target: path.mkdir(),
    "a pipe": lambda path, target: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", PLANTED)
async def test_what_was_planted_in_the_place_of_a_file_is_refused(
    store: JsonlPersistence, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """SID-01: for reading and for creating; nothing outside the store is touched."""
    outside = tmp_path_factory.mktemp("outside")
    target = outside / "target"
    target.write_bytes(b"mine")
    PLANTED[kind](tmp_path / name_of("a"), target)
    for attempt in (store.read("a"), store.check_free("a"), Writer.new(store, "a").write(), store.delete("a")):
        with pytest.raises(CorruptLog) as told:
            await attempt
        assert told.value.reason == "it is not a regular file"
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"target": b"mine"}


async def test_what_was_planted_where_a_new_file_is_made_is_not_written_through(
    store: JsonlPersistence, writers: dict[str, Writer], tmp_path: Path
) -> None:
    """SID-01: deleting makes a file beside the old one first."""
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / f"{name_of('a')}.new").symlink_to(target)
    with pytest.raises(PersistenceUnavailable, match="ELOOP"):
        await store.delete("a")
    assert target.read_bytes() == b"mine"
    await writers["a"].check()
