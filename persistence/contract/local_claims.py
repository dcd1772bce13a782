"""For stores on one machine: a claim of a process that has ended need not be waited for, a living one's holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.session.errors import SessionHeld, Stored
from app.session.ownership import Epoch, this_owner
from app.session.persistence import SessionPersistence
from persistence.contract.base import Stores
from persistence.contract.ownership import check_powerless
from persistence.contract.processes import AmongProcesses, Line, OtherProcess
from persistence.contract.samples import LONG, Writer


async def hold(store: SessionPersistence, line: Line) -> None:
    """Hold session "s" under a long lease, for ever. Tells what proves the claim."""
    writer = Writer.new(store, "s")
    writer.epoch = Epoch.first(this_owner("the child", LONG))
    await writer.write(3)
    line.say(writer.epoch)
    await asyncio.Event().wait()


class LocalClaimsContract(AmongProcesses):
    """Claims that end with their process."""

    async def test_a_claim_ends_with_its_process(self, stores: Stores, elsewhere: Callable[..., OtherProcess]) -> None:
        """RUL-01."""
        async with elsewhere(hold) as process:
            (held,) = await process.hear() or ()
            store = await stores.open()
            with pytest.raises(SessionHeld) as raised:
                await store.acquire("s", this_owner("berta"))
            assert raised.value.owner == "the child"
            assert raised.value.seconds_left is not None
            assert LONG - 100 < raised.value.seconds_left <= LONG
        epoch, log = await store.acquire("s", this_owner("berta"))
        assert (epoch.number, log.next_seq) == (2, 3)
        dead = Writer.new(store, "s")
        dead.epoch, dead.head, dead.events = held, log.head, list(log.events)
        await check_powerless(store, dead, Stored(2, 3, log.head))

    async def test_a_claim_of_this_very_process_holds(self, stores: Stores) -> None:
        store = await stores.open()
        writer = Writer.new(store)
        writer.epoch = Epoch.first(this_owner("anna", LONG))
        await writer.write()
        for other in (store, await stores.open()):
            with pytest.raises(SessionHeld) as raised:
                await other.acquire(writer.id, this_owner("anna"))
            assert raised.value.owner == "anna"
