"""Many sessions at a time, callers that are cancelled at any moment, and a store that is closed in the middle."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

from app.session.errors import PersistenceUnavailable
from app.session.persistence import SessionPersistence
from persistence.contract.base import Contract, Stores
from persistence.contract.samples import ALREADY_OVER, Writer, owner


class ConcurrencyContract(Contract):
    """Nothing crosses, nothing is lost, nothing is half done."""

    async def test_many_sessions_are_written_at_once_without_crossing(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        """ST-24."""
        other = await stores.open()
        writers = [Writer.new((store, other)[n % 2], f"s{n}") for n in range(50)]

        async def write(writer: Writer, seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311  # a schedule, no secret
            for _ in range(8):
                await writer.write(chance.randint(1, 5))
                if chance.random() < 0.2:
                    await writer.check()

        await asyncio.gather(*(write(writer, seed) for seed, writer in enumerate(writers)))
        store = await stores.reopen()
        assert len(await store.list(100)) == 50
        for writer in writers:
            await writer.check(store)

    async def test_an_append_whose_caller_was_cancelled_is_there_whole_or_not_at_all(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        chance = random.Random(7)  # noqa: S311  # a schedule, no secret
        writer = Writer.new(store)
        for _ in range(200):
            batch = writer.batch(chance.randint(1, 4))
            sending = asyncio.ensure_future(writer.send(batch))
            await asyncio.sleep(chance.choice([0, 0, 0.0001, 0.0003, 0.001]))
            sending.cancel()
            await asyncio.wait([sending])
            if sending.cancelled():
                await writer.send(batch)  # its outcome is not known, so exactly this batch is sent again
        await writer.check(await stores.open())
        gc.collect()
        assert complaints == []

    async def test_refusals_that_nobody_waits_for_any_more_make_no_noise(self, store: SessionPersistence) -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        chance = random.Random(8)  # noqa: S311  # a schedule, no secret
        for _ in range(100):
            reading = asyncio.ensure_future(store.read("unknown"))
            await asyncio.sleep(chance.choice([0, 0, 0.0001, 0.0003, 0.001]))
            reading.cancel()
            await asyncio.wait([reading])
            del reading
        gc.collect()
        assert complaints == []

    async def test_a_claim_whose_caller_was_cancelled_is_taken_whole_or_not_at_all(
        self, store: SessionPersistence
    ) -> None:
        chance = random.Random(9)  # noqa: S311  # a schedule, no secret
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(20)
        for _ in range(100):
            before = (await store.read(writer.id)).holder.epoch
            taking = asyncio.ensure_future(store.acquire(writer.id, owner("berta"), force=True))
            await asyncio.sleep(chance.choice([0, 0, 0.0001, 0.0003, 0.001]))
            taking.cancel()
            await asyncio.wait([taking])
            writer.epoch, log = await store.acquire(writer.id, owner("clara"), force=True)
            assert writer.epoch.number in (before + 1, before + 2)
            assert list(log.events) == writer.events
            await writer.write(1)
        await writer.check()

    async def test_closing_finishes_what_is_being_written(self, stores: Stores, store: SessionPersistence) -> None:
        for _ in range(10):
            writers = [Writer.new(store) for _ in range(20)]
            for writer in writers[:10]:
                await writer.write(2)
            writing = [asyncio.ensure_future(writer.write(3)) for writer in writers]
            await asyncio.sleep(0)
            await store.close()
            await store.close()
            answers = await asyncio.gather(*writing, return_exceptions=True)
            assert [answer for answer in answers if isinstance(answer, BaseException)] == []
            store = await stores.reopen()
            for writer in writers:
                await writer.check(store)

    async def test_what_comes_after_closing_is_refused_or_stored_but_never_lost(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        writer = Writer.new(store)
        await writer.write(2)
        await store.close()
        batch = writer.batch(2)
        try:
            await writer.send(batch)
        except PersistenceUnavailable as error:
            assert error.session_id == writer.id  # noqa: PT017  # a store that keeps working when closed is none the worse
        store = await stores.reopen()
        await writer.check(store)

    async def test_a_store_can_be_opened_again_by_the_same_object(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        writer = Writer.new(store)
        for _ in range(3):
            await writer.write(2)
            await store.close()
            await store.open()
            await writer.check()

    async def test_opening_together_is_safe(self, stores: Stores) -> None:
        opened = await asyncio.gather(*(stores.open() for _ in range(8)))
        writers = [Writer.new(store, f"s{n}") for n, store in enumerate(opened)]
        await asyncio.gather(*(writer.write(2) for writer in writers))
        for writer in writers:
            await writer.check(opened[0])
