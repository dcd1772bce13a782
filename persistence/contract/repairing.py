"""Taking a session over and closing its log is one step: the closers are there with the new claim, or neither is."""

from __future__ import annotations

import asyncio

import pytest

from app.session.batch import Batch
from app.session.errors import CorruptLog, SessionFenced, SessionHeld, Stored
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence, StoredLog
from persistence.contract.base import Contract, Stores, contents
from persistence.contract.samples import ALREADY_OVER, Writer, messages, owner


class RepairingContract(Contract):
    """`acquire` with a repair."""

    async def test_the_repair_sees_the_log_and_its_batch_is_stored_under_the_new_claim(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(4, "tool")
        asked: list[tuple[StoredLog, Epoch]] = []

        def repair(log: StoredLog, epoch: Epoch) -> Batch:
            asked.append((log, epoch))
            return Batch(messages(log.next_seq, 2), log.head, "recovery")

        epoch, log = await (await stores.open()).acquire(writer.id, owner("berta"), repair=repair)
        assert asked[-1] == (log, epoch)
        assert (list(log.events), log.next_seq, log.head) == (writer.events, 4, writer.head)
        batch = Batch(messages(4, 2), writer.head, "recovery")
        writer.batches.append(batch)
        writer.events += batch.events
        writer.head, writer.epoch = batch.digest, epoch
        await writer.check()
        await writer.write(1)
        await writer.check(await stores.open())

    async def test_a_repair_may_find_nothing_to_do(self, store: SessionPersistence) -> None:
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(2)
        writer.epoch, _ = await store.acquire(writer.id, owner("berta"), repair=lambda log, epoch: None)
        await writer.check()
        assert writer.epoch.number == 2

    async def test_a_repair_that_raises_takes_nothing(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(2)
        before = await contents(store)
        damaged = CorruptLog(writer.id, "seq 1", "so the repair says")

        def refuse(log: StoredLog, epoch: Epoch) -> Batch:
            raise damaged

        with pytest.raises(CorruptLog) as raised:
            await store.acquire(writer.id, owner("berta"), force=True, repair=refuse)
        assert raised.value is damaged
        assert await contents(store) == before
        await writer.write()
        await writer.check()

    async def test_a_repair_that_does_not_continue_the_log_is_refused(self, store: SessionPersistence) -> None:
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(2)
        before = await contents(store)
        for batch in (
            Batch(messages(3, 1), writer.head, "recovery"),
            Batch(messages(2, 1), b"\0" * 32, "recovery"),
            Batch((), writer.head, "recovery"),
        ):

            def repair(log: StoredLog, epoch: Epoch, batch: Batch = batch) -> Batch:
                return batch

            with pytest.raises(ValueError):  # noqa: PT011  # which one is the point of its table
                await store.acquire(writer.id, owner("berta"), repair=repair)
        assert await contents(store) == before

    async def test_a_session_that_is_held_is_not_repaired(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(2)
        before = await contents(store)
        with pytest.raises(SessionHeld):
            await store.acquire(
                writer.id, owner("berta"), repair=lambda log, epoch: Batch(messages(2, 1), log.head, "recovery")
            )
        assert await contents(store) == before

    async def test_a_take_over_while_the_old_owner_writes_repairs_what_is_really_there(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        other = await stores.open()
        for _ in range(20):
            writer = Writer.new(store)
            await writer.write(5)

            async def write_on(writer: Writer = writer) -> Stored | None:
                while True:
                    try:
                        await writer.write(1)
                    except SessionFenced as error:
                        return error.stored
                    await asyncio.sleep(0)

            writing = asyncio.ensure_future(write_on())
            await asyncio.sleep(0)
            epoch, log = await other.acquire(
                writer.id,
                owner("berta"),
                force=True,
                repair=lambda log, epoch: Batch(messages(log.next_seq, 2), log.head, "recovery"),
            )
            stored = await writing
            assert list(log.events) == writer.events
            repaired = await other.read(writer.id)
            assert repaired.events == (*log.events, *messages(log.next_seq, 2))
            assert stored == Stored(2, repaired.next_seq, repaired.head)
            assert epoch.number == 2
