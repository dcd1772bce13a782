"""The files of the JSONL store: what a person finds in them, who may read them, and who has one to himself."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.session.errors import (
    PersistenceUnavailable,
    SequenceConflict,
    SessionDeleted,
    SessionFenced,
    SessionNotFound,
    Stored,
    StoreUnusable,
)
from app.session.ownership import Epoch
from persistence.contract import Writer
from persistence.contract.base import contents
from persistence.contract.samples import message, owner, title
from persistence.jsonl import JsonlPersistence
from persistence.jsonl.directory import Directory, name_of
from persistence.jsonl.lines import tombstone_line


def modes(*folders: Path) -> dict[str, str]:
    """The permissions of folders and of what is in them."""
    found = [path for folder in folders for path in (folder, *folder.iterdir())]
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in found if not path.name.startswith("deep")}


def file_of(folder: Path, id: str = "s") -> Path:
    return folder / name_of(id)


async def opened(folder: Path, **options: float) -> JsonlPersistence:
    store = JsonlPersistence(folder, **options)
    await store.open()
    return store


@contextmanager
def held(path: Path) -> Iterator[None]:
    """While inside, somebody else has the file to himself."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- what a person finds -------------------------------------------------------------------------


async def test_a_session_is_a_file_of_lines_that_a_person_can_read(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    writer = Writer.new(store, "s", meta={"who": "anna"})
    await writer.write(events=[message(0), title(1, "Erste")], reason="request")
    await store.renew("s", writer.epoch)
    await writer.write(1, "tool")
    await store.release("s", writer.epoch)
    await store.close()
    text = file_of(tmp_path).read_text()
    lines = text.splitlines()
    parsed = [json.loads(line) for line in lines]
    assert [next(iter(line)) for line in parsed] == [
        "format",
        "claim",
        "seq",
        "seq",
        "end",
        "claim",
        "seq",
        "end",
        "claim",
    ]
    assert lines[0] == writer.header.text
    assert [line for line in lines if line.startswith('{"seq"')] == [event.line for event in writer.events]
    assert [(line["end"], line["reason"], line["digest"]) for line in parsed if "end" in line] == [
        (1, "request", writer.batches[0].digest.hex()),
        (2, "tool", writer.head.hex()),
    ]
    assert [line["owner"] for line in parsed if "claim" in line] == ["anna", "anna", None]
    assert text[parsed[7]["title_at"] :].startswith(lines[3])


async def test_deleting_leaves_a_tombstone_and_nothing_else(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await Writer.new(store, "s").write(3)
    file_of(tmp_path).chmod(0o640)
    await store.delete("s")
    assert modes(tmp_path).keys() == {tmp_path.name, name_of("s")}
    (line,) = file_of(tmp_path).read_text().splitlines()
    assert json.loads(line)["deleted"] == "s"
    assert modes(tmp_path)[name_of("s")] == "0o640"
    await store.close()


async def test_what_is_committed_is_never_written_again(tmp_path: Path) -> None:
    """ST-25: byte for byte, whatever is done later."""
    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    await writer.write(3)
    written = file_of(tmp_path).read_bytes()
    for act in (
        lambda: writer.write(2),
        lambda: writer.send(writer.batches[0]),
        lambda: store.renew("s", writer.epoch),
        lambda: store.acquire("s", owner("berta"), force=True),
        lambda: store.list(10),
        lambda: store.read("s"),
    ):
        await act()
        assert file_of(tmp_path).read_bytes().startswith(written)
        written = file_of(tmp_path).read_bytes()
    await store.close()


# -- whose it is ---------------------------------------------------------------------------------


async def test_a_new_store_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """ST-14."""
    before = os.umask(0)
    try:
        store = await opened(tmp_path / "new" / "sessions")
        await Writer.new(store, "s").write()
        await store.close()
    finally:
        os.umask(before)
    assert modes(tmp_path / "new", tmp_path / "new" / "sessions") == {
        "new": "0o700",
        "sessions": "0o700",
        name_of("s"): "0o600",
    }


async def test_an_existing_mode_is_kept(tmp_path: Path) -> None:
    """ST-14: of the directory, and of a file that is written to."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o775)
    store = await opened(folder)
    writer = Writer.new(store, "s")
    await writer.write()
    file_of(folder).chmod(0o660)
    await writer.write()
    await store.acquire("s", owner("berta"), force=True)
    await store.close()
    assert modes(folder) == {"shared": "0o775", name_of("s"): "0o660"}


async def test_a_directory_whose_lock_does_not_exclude_a_second_opener_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlPersistence(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda file, kind: None)
        with pytest.raises(StoreUnusable, match="does not exclude a second one"):
            await store.open()
    assert modes(tmp_path).keys() == {tmp_path.name}
    with pytest.raises(PersistenceUnavailable) as told:
        await store.list(1)
    assert told.value.reason == "the store is not open"


async def test_a_place_where_no_directory_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, reason in (
        (tmp_path / "file", "Not a directory (ENOTDIR)"),
        (tmp_path / "file" / "sessions", "Not a directory (ENOTDIR)"),
        (Path("/proc/sessions"), "there is no such directory (ENOENT)"),
    ):
        with pytest.raises(StoreUnusable) as told:
            await JsonlPersistence(path).open()
        assert (told.value.where, told.value.reason) == (str(path), reason)


async def test_a_directory_that_was_put_in_the_place_of_another_is_seen(tmp_path: Path) -> None:
    """DIG-03: what the store says; the live session makes a StoreRegressed of it."""
    folder, away = tmp_path / "sessions", tmp_path / "away"
    store = await opened(folder)
    writer = Writer.new(store, "s")
    await writer.write(2)
    folder.rename(away)
    for _ in range(2):
        with pytest.raises(PersistenceUnavailable) as told:
            await writer.write(1)
        assert told.value.reason == "there is no such directory (ENOENT)"
    folder.mkdir()
    with pytest.raises(SessionNotFound):
        await writer.write(1)
    assert list(folder.iterdir()) == []
    folder.rmdir()
    away.rename(folder)
    await writer.write(1)
    await writer.check()
    await store.close()


# -- who has it to himself -----------------------------------------------------------------------


async def test_an_old_claim_with_an_old_length_leaves_the_new_tail_intact(tmp_path: Path) -> None:
    """ST-15: with two stores, as two processes would have."""
    store, other = await opened(tmp_path), await opened(tmp_path)
    old = Writer.new(store, "s")
    await old.write(3)
    epoch, _ = await other.acquire("s", owner("berta"), force=True)
    new = Writer(other, old.header, epoch, old.head, list(old.events))
    await new.write(4)
    before = await contents(other)
    with pytest.raises(SessionFenced) as fenced:
        await old.write(1)
    assert fenced.value.stored == Stored(2, 7, new.head)
    stale = Writer(store, old.header, Epoch(2, epoch.token, owner("berta")), old.head, old.events)
    with pytest.raises(SequenceConflict):
        await stale.write(1)
    assert await contents(other) == before
    await store.close()
    await other.close()


async def test_somebody_who_keeps_a_session_locked_costs_patience_and_nothing_else(tmp_path: Path) -> None:
    store = await opened(tmp_path, busy_timeout_s=0.05)
    writer, other = Writer.new(store, "s"), Writer.new(store, "t")
    await writer.write(2)
    await other.write(2)
    batch = writer.batch(2)
    with held(file_of(tmp_path)):
        for attempt in (writer.send(batch), store.read("s")):
            with pytest.raises(PersistenceUnavailable) as told:
                await attempt
            assert told.value.reason == "another process keeps the session locked (EAGAIN)"
        await other.write(2)
    await writer.send(batch)
    await writer.check()
    await store.close()


async def test_a_file_that_was_replaced_while_somebody_waited_for_its_lock_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEL-02: the waiting append finds the tombstone."""
    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    await writer.write(2)
    waits, flock = asyncio.Event(), fcntl.flock
    loop = asyncio.get_running_loop()

    def noting(file: int, kind: int) -> None:
        try:
            flock(file, kind)
        except BlockingIOError:
            loop.call_soon_threadsafe(waits.set)
            raise

    path = file_of(tmp_path)
    with held(path):
        monkeypatch.setattr(fcntl, "flock", noting)
        writing = asyncio.ensure_future(writer.write(1))
        await waits.wait()
        path.with_name("tombstone").write_bytes(tombstone_line("s", 1))
        path.with_name("tombstone").rename(path)
    with pytest.raises(SessionDeleted):
        await writing
    await store.close()


async def test_a_list_does_not_take_a_file_for_the_one_it_knew(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for id, created_at in (("old", 1), ("s", 2), ("new", 3)):
        await Writer.new(store, id, created_at=created_at).write(1)
    assert [row.session_id for row in await store.list(10)] == ["new", "s", "old"]
    for created_at, order in ((0, ["new", "old", "s"]), (4, ["s", "new", "old"])):
        file_of(tmp_path).rename(tmp_path / f"before {created_at}")
        await Writer.new(store, "s", created_at=created_at).write(1)
        assert [row.session_id for row in await store.list(10)] == order
        assert [row.session_id for row in await store.list(1, (created_at, "s"))] == order[order.index("s") + 1 :][:1]
    await store.close()


async def test_sessions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    waiting, *others = [Writer.new(store, f"s{n}") for n in range(40)]
    await waiting.write(1)
    with held(file_of(tmp_path, "s0")):
        writing = asyncio.ensure_future(waiting.write(1))
        free = [other for other in others if hash(other.id) % 8 != hash(waiting.id) % 8]
        await asyncio.gather(*(other.write(1) for other in free))
        assert len(free) > 20
        assert not writing.done()
    await writing
    await waiting.check()
    await store.close()


def test_a_lock_does_not_outlive_its_use_in_a_forked_child(tmp_path: Path) -> None:
    directory = Directory(tmp_path, busy_timeout_s=5)
    directory.open()
    file_of(tmp_path).touch()
    child_waits, parent_ends = os.pipe()
    with directory.locked("s", exclusive=True) as file:
        assert file is not None
        child = os.fork()
        if not child:
            os.close(parent_ends)
            os.read(child_waits, 1)
            os._exit(0)
    try:
        taken: list[bool] = []

        def take() -> None:
            with directory.locked("s", exclusive=True) as file:
                taken.append(file is not None)

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        assert taken == [True]
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child lives yet"
    finally:
        os.close(parent_ends)
        os.waitpid(child, 0)
        os.close(child_waits)
        directory.close()


async def test_a_follower_reads_on_from_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    for _ in range(50):
        await writer.write(20)
    seen = list(await store.read_from("s", 0, 10))
    read: list[int] = []
    pread = os.pread

    def noting(file: int, length: int, at: int) -> bytes:
        read.append(at)
        return pread(file, length, at)

    monkeypatch.setattr(os, "pread", noting)
    while page := await store.read_from("s", len(seen), 10):
        seen += page
    assert seen == writer.events
    size = file_of(tmp_path).stat().st_size
    assert sum(at == 0 for at in read) <= 101, "only the first line, each time"
    await writer.write(1)
    read.clear()
    assert list(await store.read_from("s", 1000, 10)) == writer.events[1000:]
    assert all(at == 0 or at > size - 4096 or at < 1000 for at in read)
    await store.close()
