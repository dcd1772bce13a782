"""The memory store keeps the contract, except that it outlives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.session.errors import SessionHeld
from app.session.persistence import SessionPersistence
from persistence.contract import FaultPoint, PersistenceContract, Writer
from persistence.contract.samples import owner
from persistence.memory import MemoryPersistence


class TestMemory(PersistenceContract):
    durable = False
    in_one_process = "a store in memory has no other process"

    @pytest.fixture(autouse=True)
    def shared(self) -> None:
        self.memory = MemoryPersistence()

    def make_store(self, folder: Path) -> SessionPersistence:
        return self.memory

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        """Its only step that can fail is asking a clock: the one of leases comes first, the wall clock last."""

        def broken() -> int:
            raise OSError("the clock is gone")

        clock = "_lease_clock" if point == "at the third event" else "_wall_clock"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.memory, clock, broken)
            yield


async def test_a_lease_runs_on_the_clock_that_was_injected() -> None:
    now = [100.0]
    store = MemoryPersistence(lease_clock=lambda: now[0])
    writer = Writer.new(store, lease_s=30)
    await writer.write()
    now[0] = 129.5
    with pytest.raises(SessionHeld) as raised:
        await store.acquire(writer.id, owner("berta"))
    assert raised.value.seconds_left == 0.5
    now[0] = 130.0
    epoch, _ = await store.acquire(writer.id, owner("berta"))
    assert epoch.number == 2


def test_memory_says_that_it_is_not_durable() -> None:
    assert (MemoryPersistence().kind, MemoryPersistence().durable) == ("memory", False)
