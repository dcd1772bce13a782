"""The JSONL store on a disk that fails: at every system call that changes a file, and then once more while cleaning up.

What fails leaves what was there, for whoever looks; what is repeated then is stored once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from app.session.batch import Batch
from app.session.errors import PersistenceUnavailable, SessionDeleted, StoreUnusable
from app.session.ownership import Epoch
from app.session.persistence import StoredLog
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.base import contents
from persistence.contract.samples import messages, owner
from persistence.jsonl import JsonlPersistence
from persistence.jsonl.directory import name_of
from tests.support.system_calls import fail, failing, full_after, intercepted

Outcome: TypeAlias = Awaitable[object]


def closing(log: StoredLog, epoch: Epoch) -> Batch:
    return Batch(messages(log.next_seq, 2), log.head, "recovery")


ACTS: dict[str, tuple[int, Callable[[Writer], Outcome]]] = {
    "create": (0, lambda writer: writer.write(3)),
    "append": (2, lambda writer: writer.write(3)),
    "append the same": (2, lambda writer: writer.send(writer.batches[-1])),
    "acquire": (2, lambda writer: writer.store.acquire(writer.id, owner("berta"), force=True, repair=closing)),
    "renew": (2, lambda writer: writer.store.renew(writer.id, writer.epoch)),
    "release": (2, lambda writer: writer.store.release(writer.id, writer.epoch)),
    "delete": (2, lambda writer: writer.store.delete(writer.id)),
}
"""What is done to a session of so many events."""


@contextmanager
def failing_at(n: int, seen: list[str], *, short: bool, then: tuple[str, ...] = ()) -> Iterator[None]:
    """The n-th call fails, after writing half if `short`; after it, those named in `then` fail too."""

    def wrapped(name: str, do: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        seen.append(name)
        if len(seen) == n:
            if short and name == "pwrite":
                half(arguments)
            fail()
        if len(seen) > n and name in then:
            fail()
        return do()

    with intercepted(wrapped):
        yield


def half(arguments: tuple[Any, ...]) -> None:
    descriptor, data, at = arguments
    os.pwrite(descriptor, data[: len(data) // 2], at)


async def opened(folder: Path) -> JsonlPersistence:
    store = JsonlPersistence(folder)
    await store.open()
    return store


@pytest.mark.parametrize("then", [(), ("ftruncate",)], ids=["", "and it cannot be cut"])
@pytest.mark.parametrize("act", ACTS)
async def test_a_call_that_fails_changes_nothing_and_can_be_repeated(
    tmp_path: Path, act: str, then: tuple[str, ...]
) -> None:
    """ST-08, ST-10."""
    written, do = ACTS[act]
    for short in (False, True):
        for n in range(1, 20):
            folder = tmp_path / f"{short}-{n}"
            store = await opened(folder)
            bystander, writer = Writer.new(store), Writer.new(store, "s")
            await bystander.write(1)
            if written:
                await writer.write(written)
            before, seen = await contents(store), list[str]()
            with failing_at(n, seen, short=short, then=then):
                (told,) = await asyncio.gather(do(writer), return_exceptions=True)
            failed = isinstance(told, PersistenceUnavailable)
            assert failed == (len(seen) >= n)
            if isinstance(told, PersistenceUnavailable):
                assert (told.session_id, told.reason) == ("s", "the disk cannot be read or written (EIO)")
            else:
                await store.close()
                break
            now = await contents(store)
            if act == "delete" and "s" not in now:  # the tombstone stands, and may yet be lost
                await do(writer)
                with pytest.raises(SessionDeleted):
                    await store.read("s")
            else:
                assert now == before, f"{seen[n - 1]}, the {n}th call"
                await do(writer)
            await store.close()
            await check(folder, act, writer, bystander)
    assert len(seen) >= 2, "an act changes something, and syncs it"


async def check(folder: Path, act: str, writer: Writer, bystander: Writer) -> None:
    """Another process finds what was repeated, once, and nothing else."""
    store = await opened(folder)
    await bystander.check(store)
    if act == "delete":
        with pytest.raises(SessionDeleted):
            await store.read("s")
    else:
        log = await store.read("s")
        verify(log, {})
        assert log.torn is None
        assert list(log.events) == (list(messages(0, 4)) if act == "acquire" else writer.events)
        assert log.holder.epoch == (2 if act == "acquire" else 1)
        assert (log.holder.owner is None) == (act == "release")
    await store.close()


async def test_a_disk_that_fills_up_in_the_middle_is_told_and_leaves_no_fragment(tmp_path: Path) -> None:
    """ST-10."""
    store, other = await opened(tmp_path), await opened(tmp_path)
    writer = Writer.new(store, "s")
    await writer.write(2)
    size = (tmp_path / name_of("s")).stat().st_size
    batch = writer.batch(3)
    for _ in range(2):
        with full_after(rb'"seq":4,"type'), pytest.raises(PersistenceUnavailable) as told:
            await writer.send(batch)
        assert told.value.reason == "the disk is full (ENOSPC)"
        assert (tmp_path / name_of("s")).stat().st_size == size
        for one in (store, other):
            await writer.check(one)
            assert (await one.read("s")).torn is None
    await writer.send(batch)
    await writer.check(other)
    await store.close()
    await other.close()


async def test_a_limit_of_the_kernel_is_met_as_a_full_disk_is(tmp_path: Path) -> None:
    """ST-10: with real short writes, ended at each of many offsets."""
    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    await writer.write(2)
    path = tmp_path / name_of("s")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(1, 500, 41):
        size = path.stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            with pytest.raises(PersistenceUnavailable) as told:
                await writer.write(3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert told.value.reason == "the file may not grow any further (EFBIG)"
        assert path.stat().st_size == size
        await writer.write(1)
    await writer.check()
    await store.close()


async def test_short_writes_are_gone_on_with(tmp_path: Path) -> None:
    def by_seven(name: str, do: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if name == "pwrite":
            descriptor, data, at = arguments
            return os.pwrite(descriptor, data[:7], at)
        return do()

    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    with intercepted(by_seven):
        await writer.write(2)
        await writer.write(2)
    await writer.check()
    await store.close()


async def test_a_batch_is_one_write_and_one_sync(tmp_path: Path) -> None:
    """Its name is made durable when the file is created. The lease that a batch renews costs nothing more."""
    store = await opened(tmp_path)
    writer = Writer.new(store)
    calls: list[str] = []

    def noting(name: str, do: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        calls.append(name)
        return do()

    with intercepted(noting):
        await writer.write(5)
        assert calls == ["pwrite", "fdatasync", "fsync"]
        for _ in range(3):
            calls.clear()
            await writer.write(5)
            assert calls == ["pwrite", "fdatasync"]
        calls.clear()
        await store.acquire(writer.id, owner("berta"), force=True, repair=closing)
        assert calls == ["pwrite", "fdatasync", "fsync"], "its creator may have died before its name was durable"
    await store.close()


async def test_a_write_that_could_not_be_cut_away_is_shown_to_nobody_here_and_cut_by_the_next(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    writer = Writer.new(store, "s")
    await writer.write(2)
    path = tmp_path / name_of("s")
    size = path.stat().st_size
    lost = writer.batch(1)
    with failing("fdatasync", "ftruncate"), pytest.raises(PersistenceUnavailable):
        await writer.send(lost)
    assert path.stat().st_size > size
    await writer.check()
    assert await store.read_from("s", 2) == []
    assert [row.next_seq for row in await store.list(10)] == [2]
    await writer.write(events=messages(2, 2))  # another batch: the lost one was never acknowledged
    await writer.check()
    assert path.read_bytes().count(b'{"seq":2,') == 1
    await store.close()


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
async def test_a_directory_that_cannot_be_synced_is_refused(tmp_path: Path, call: str) -> None:
    store = JsonlPersistence(tmp_path)
    for _ in range(2):
        with failing(call, code=errno.EINVAL), pytest.raises(StoreUnusable) as told:
            await store.open()
        assert str(tmp_path) in str(told.value)
        assert os.listdir(tmp_path) == []  # noqa: PTH208  # a test waits for no disk
    await store.open()
    await asyncio.gather(store.close(), store.close())
