"""The wrapper that conformance tests plant faults with: without one it is invisible, with one it does what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.session.batch import Batch
from app.session.errors import PersistenceUnavailable, SequenceConflict
from app.session.persistence import SessionPersistence
from persistence.contract import FaultPoint, PersistenceContract, Writer
from persistence.contract.samples import ALREADY_OVER, messages, owner
from persistence.memory import MemoryPersistence
from tests.support.faults import DOWN, FailAfter, FailBefore, FaultyPersistence


class TestFaultyWithoutFaults(PersistenceContract):
    durable = False
    in_one_process = "a store in memory has no other process"

    @pytest.fixture(autouse=True)
    def shared(self) -> None:
        self.memory = MemoryPersistence()

    def make_store(self, folder: Path) -> SessionPersistence:
        return FaultyPersistence(self.memory)

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        assert isinstance(store, FaultyPersistence)
        store.always("append", FailBefore())
        store.always("acquire", FailBefore())
        yield
        store.heal()


@pytest.fixture
def faulty() -> FaultyPersistence:
    return FaultyPersistence(MemoryPersistence())


@pytest.fixture
def writer(faulty: FaultyPersistence) -> Writer:
    return Writer.new(faulty)


async def test_failing_before_stores_nothing_and_after_stores_it(faulty: FaultyPersistence, writer: Writer) -> None:
    faulty.next("append", FailBefore(), None, FailAfter(OSError("gone")))
    with pytest.raises(PersistenceUnavailable) as raised:
        await writer.write(1, "request")
    assert raised.value is DOWN
    assert await faulty.list(10) == []
    await writer.write(1, "request")
    lost = writer.batch(2, "tool")
    with pytest.raises(OSError, match="gone"):
        await writer.send(lost)
    assert len((await faulty.read(writer.id)).events) == 3
    await writer.send(lost)
    assert faulty.log == [
        *("append", "append failed", "list", "list done", "append", "append done", "append", "append failed"),
        *("read", "read done", "append", "append done"),
    ]
    assert faulty.reasons == ["request", "tool", "tool"]
    assert len(faulty.appends) == 4


async def test_a_gate_holds_a_call_before_or_after_it_is_done(faulty: FaultyPersistence, writer: Writer) -> None:
    before, after = faulty.hold("append"), faulty.hold("append", after=True, then=DOWN)
    writing = asyncio.ensure_future(writer.write(1))
    await before.reached()
    assert (before.is_reached, after.is_reached) == (True, False)
    assert await faulty.inner.list(10) == []
    assert faulty.log == ["append"]
    before.open()
    await writing
    lost = writer.batch(1)
    writing = asyncio.ensure_future(writer.write(1))
    await after.reached()
    assert len(await faulty.inner.read_from(writer.id, 0)) == 2
    after.open()
    with pytest.raises(PersistenceUnavailable):
        await writing
    await writer.send(lost)
    await writer.check()


async def test_a_store_that_is_down_stays_so_until_it_is_healed(faulty: FaultyPersistence, writer: Writer) -> None:
    faulty.always("append", FailBefore())
    for _ in range(3):
        with pytest.raises(PersistenceUnavailable):
            await writer.write()
    faulty.heal()
    await writer.write()
    assert len(faulty.written) == 1


async def test_the_batch_of_a_repair_counts_as_written(faulty: FaultyPersistence, writer: Writer) -> None:
    writer.epoch = type(writer.epoch).first(owner(lease_s=ALREADY_OVER))
    await writer.write()
    await faulty.acquire(
        writer.id, owner(), repair=lambda log, epoch: Batch(messages(log.next_seq, 1), log.head, "recovery")
    )
    assert faulty.reasons == ["caller", "recovery"]


async def test_refusals_of_the_real_store_come_through(faulty: FaultyPersistence, writer: Writer) -> None:
    await writer.write(2)
    with pytest.raises(SequenceConflict):
        await writer.write(1, events=messages(5, 1))
    assert faulty.log[-1] == "append failed"
    assert len(faulty.written) == 1
