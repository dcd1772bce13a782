"""The table of `append`, row by row: what is stored, what is refused, and that repeating a batch does no harm."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.session.batch import Batch, Header
from app.session.errors import (
    CorruptLog,
    PersistenceError,
    SequenceConflict,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionNotFound,
    Stored,
)
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from persistence.contract.base import Contract, Stores, contents
from persistence.contract.samples import ALREADY_OVER, LONG, Writer, message, messages, owner, with_lease


async def refusal(store: SessionPersistence, writer: Writer, batch: Batch) -> PersistenceError:
    """What an append that must be refused raises; fails if it changed anything."""
    before = await contents(store)
    with pytest.raises(PersistenceError) as raised:
        await store.append(writer.header, batch, writer.epoch)
    assert await contents(store) == before
    return raised.value


class AppendingContract(Contract):
    """Atomic, without gaps, conditional, repeatable."""

    async def test_asking_whether_an_id_is_free_stores_nothing(self, store: SessionPersistence) -> None:
        """CRD-01: as far as the store sees it."""
        await store.check_free("new")
        assert await store.list(10) == []
        with pytest.raises(SessionNotFound):
            await store.acquire("new", owner())

    async def test_an_id_that_is_taken_or_was_deleted_is_not_free(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        """CRD-04: of the ids that are stored and deleted."""
        writer = Writer.new(store)
        await writer.write()
        other = await stores.open()
        with pytest.raises(SessionExists):
            await other.check_free(writer.id)
        await store.delete(writer.id)
        with pytest.raises(SessionDeleted):
            await other.check_free(writer.id)

    async def test_a_batch_that_is_empty_or_has_gaps_is_no_batch(self, store: SessionPersistence) -> None:
        """CRD-03."""
        writer = Writer.new(store)
        wrong = [(), (message(0), message(2)), (message(1), message(0)), (message(0), message(0)), (message(-1),)]
        for events in wrong:
            with pytest.raises(ValueError):  # noqa: PT011  # which one is the point of its table
                await store.append(writer.header, Batch(events, writer.head, "caller"), writer.epoch)
        assert await store.list(10) == []
        await writer.write(2)
        before = await contents(store)
        for events in ((), (message(2), message(4)), (message(3), message(2))):
            with pytest.raises(ValueError):  # noqa: PT011
                await store.append(writer.header, Batch(events, writer.head, "caller"), writer.epoch)
        assert await contents(store) == before

    async def test_nothing_stored_takes_only_a_first_batch_of_a_first_claim(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        later = Batch(messages(3, 1), writer.head, "caller")
        assert isinstance(await refusal(store, writer, later), SessionNotFound)
        second_claim = replace(writer, epoch=Epoch.after(1, owner()))
        assert isinstance(await refusal(store, second_claim, writer.batch()), SessionNotFound)
        await writer.write()
        await writer.check()

    async def test_a_gap_or_another_event_is_a_conflict(self, store: SessionPersistence) -> None:
        """CRD-08."""
        writer = Writer.new(store)
        await writer.write(6)
        stored = Stored(1, 6, writer.head)
        for batch in (
            Batch(messages(8, 1), writer.head, "caller"),
            Batch((message(5, "another"),), writer.head, "caller"),
        ):
            error = await refusal(store, writer, batch)
            assert isinstance(error, SequenceConflict)
            assert (error.expected, error.given, error.stored) == (6, batch.first_seq, stored)

    async def test_a_batch_that_overlaps_the_end_is_a_conflict_however_equal(self, store: SessionPersistence) -> None:
        """CRD-09."""
        writer = Writer.new(store)
        await writer.write(4)
        four = writer.head
        await writer.write(2)
        for previous in (four, writer.head):
            error = await refusal(store, writer, Batch(messages(4, 4), previous, "caller"))
            assert isinstance(error, SequenceConflict)
            assert (error.expected, error.given) == (6, 4)
        await writer.check()

    async def test_the_right_seq_after_another_head_is_a_conflict(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(2)
        error = await refusal(store, writer, Batch(messages(2, 1), b"\0" * 32, "caller"))
        assert isinstance(error, SequenceConflict)
        assert (error.expected, error.given, error.stored) == (2, 2, Stored(1, 2, writer.head))

    async def test_after_refusals_the_right_batch_is_taken(self, store: SessionPersistence) -> None:
        """CRD-32."""
        writer = Writer.new(store)
        await writer.write(3)
        for _ in range(3):
            await refusal(store, writer, Batch(messages(9, 2), writer.head, "caller"))
        await writer.write(2)
        await writer.check()

    async def test_the_same_append_again_writes_nothing_and_renews_the_lease(self, store: SessionPersistence) -> None:
        """APD-01: of the first batch, the last, and one that newer ones have followed."""
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        for _ in range(3):
            await writer.write(2)
        before = await contents(store)
        for batch in (*reversed(writer.batches), writer.batches[0]):
            writer.epoch = with_lease(writer.epoch, LONG)
            await store.append(writer.header, batch, writer.epoch)
            assert (await store.read(writer.id)).holder.lease_left_s > LONG / 2
            await store.renew(writer.id, with_lease(writer.epoch, ALREADY_OVER))
        assert await contents(store) == before
        await writer.write()
        await writer.check()

    async def test_a_batch_that_differs_in_anything_is_not_the_same(self, store: SessionPersistence) -> None:
        """APD-02."""
        writer = Writer.new(store)
        await writer.write(2)
        previous = writer.head
        await writer.write(2)
        two, three = writer.batches[-1].events
        different: list[tuple[SessionEvent, ...]] = [
            (two, replace(three, text=three.text.replace("hello", "hellO"))),
            (replace(two, text=two.text.replace("hello", "hellO")), three),
            (two, replace(three, text=three.text[:-1] + " }")),
            (two, replace(three, time=three.time + 1)),
            (two, replace(three, type="inbox/accepteD")),
            (two, replace(three, ignorable=True)),
            (two, three, message(4)),
            (two,),
        ]
        for events in different:
            error = await refusal(store, writer, Batch(events, previous, "caller"))
            assert isinstance(error, SequenceConflict)
            assert error.stored == Stored(1, 4, writer.head)
        await writer.check()

    async def test_the_same_append_of_a_claim_that_is_over_is_fenced(self, store: SessionPersistence) -> None:
        """APD-03."""
        writer = Writer.new(store)
        await writer.write(2)
        last = await writer.write(2)
        await store.acquire(writer.id, owner("berta"), force=True)
        error = await refusal(store, writer, last)
        assert isinstance(error, SessionFenced)
        assert error.stored == Stored(2, 4, writer.head)

    async def test_of_two_creators_of_an_id_one_creates_it(self, stores: Stores, store: SessionPersistence) -> None:
        """APD-04."""
        for n in range(10):
            one = Writer.new(store, f"s{n}")
            two = Writer.new(await stores.open(), f"s{n}")
            answers = await asyncio.gather(
                *(writer.store.append(writer.header, writer.batch(2), writer.epoch) for writer in (one, two)),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers if answer] == [SessionExists]
            log = await store.read(f"s{n}")
            assert (log.events, log.holder.epoch) == (one.batch(2).events, 1)

    async def test_a_later_creator_is_told_that_the_session_exists(self, store: SessionPersistence) -> None:
        writer = Writer.new(store, "s")
        await writer.write(2)
        assert isinstance(await refusal(store, Writer.new(store, "s"), writer.batches[0]), SessionExists)

    async def test_of_writers_with_one_claim_and_one_head_one_is_taken(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        writer = Writer.new(store)
        await writer.write()
        others = [await stores.open() for _ in range(4)]
        batches = [Batch((message(1, f"from {n}"),), writer.head, "caller") for n in range(4)]
        answers = await asyncio.gather(
            *(other.append(writer.header, batch, writer.epoch) for other, batch in zip(others, batches, strict=True)),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers if answer] == [SequenceConflict] * 3
        taken = batches[answers.index(None)]
        assert (await store.read(writer.id)).events == (message(0), *taken.events)

    async def test_another_header_than_the_stored_one_is_told(self, store: SessionPersistence) -> None:
        """CRD-41: of an append."""
        writer = Writer.new(store)
        await writer.write()
        writer.header = Header.make(writer.id, writer.header.created_at, meta={"not": "the same"})
        error = await refusal(store, writer, writer.batch())
        assert isinstance(error, CorruptLog)
        assert error.where == "the header"
