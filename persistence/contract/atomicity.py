"""A batch is stored whole or not at all, wherever the store fails."""

from __future__ import annotations

import pytest

from app.session.errors import PersistenceError
from app.session.persistence import SessionPersistence
from persistence.contract.base import Contract, FaultPoint, Stores, contents
from persistence.contract.samples import Writer, owner


class AtomicityContract(Contract):
    """All or none."""

    @pytest.mark.parametrize("point", ["at the third event", "at the commit"])
    @pytest.mark.parametrize("written", [0, 5], ids=["first batch", "later batch"])
    async def test_a_failure_inside_a_batch_leaves_none_of_it(
        self, stores: Stores, store: SessionPersistence, point: FaultPoint, written: int
    ) -> None:
        """ST-08."""
        bystander = Writer.new(store)
        await bystander.write(2)
        writer = Writer.new(store)
        if written:
            await writer.write(written)
        before = await contents(store)
        batch = writer.batch(3)
        for _ in range(2):
            with self.failing(store, point), pytest.raises((PersistenceError, OSError)):
                await store.append(writer.header, batch, writer.epoch)
            assert await contents(store) == before
        assert await contents(await stores.open()) == before
        await writer.send(batch)
        await writer.write(1)
        await writer.check(await stores.open())
        await bystander.check()

    @pytest.mark.parametrize("point", ["at the third event", "at the commit"])
    async def test_a_failure_inside_a_claim_leaves_the_old_one(
        self, stores: Stores, store: SessionPersistence, point: FaultPoint
    ) -> None:
        writer = Writer.new(store)
        await writer.write(5)
        closing = writer.batch(3, "recovery")
        before = await contents(store)
        with self.failing(store, point), pytest.raises((PersistenceError, OSError)):
            await store.acquire(writer.id, owner("berta"), force=True, repair=lambda log, epoch: closing)
        assert await contents(store) == before
        await writer.write(1)
        await writer.check(await stores.open())
