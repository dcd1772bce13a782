"""One live writer per session: claims, leases, take-overs, and that a claim which is over can do nothing."""

from __future__ import annotations

import asyncio

import pytest

from app.session.errors import SessionFenced, SessionHeld, SessionNotFound, Stored
from app.session.ownership import Epoch
from app.session.persistence import Holder, SessionPersistence
from persistence.contract.base import Contract, Operation, Stores, contents
from persistence.contract.samples import ALREADY_OVER, LONG, Writer, owner, with_lease


async def check_powerless(store: SessionPersistence, writer: Writer, stored: Stored) -> None:
    """A claim that is over can neither append, renew nor release, and trying leaves everything as it is."""
    before, holder = await contents(store), (await store.read(writer.id)).holder
    attempts: list[Operation] = [
        lambda: store.append(writer.header, writer.batch(), writer.epoch),
        lambda: store.renew(writer.id, with_lease(writer.epoch, 10 * LONG)),
        lambda: store.release(writer.id, writer.epoch),
    ]
    for attempt in attempts:
        with pytest.raises(SessionFenced) as raised:
            await attempt()
        assert raised.value.stored == stored
    assert await contents(store) == before
    after = (await store.read(writer.id)).holder
    assert (after.epoch, after.owner) == (holder.epoch, holder.owner)
    assert after.lease_left_s <= holder.lease_left_s


class OwnershipContract(Contract):
    """Only the newest claim writes."""

    async def test_each_claim_has_the_next_number_and_a_token_of_its_own(self, store: SessionPersistence) -> None:
        """OWN-01: of a session that is released, that has run out, and that is taken by force."""
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(2)
        taken = [writer.epoch]
        for lease_s, force in ((LONG, False), (LONG, True), (ALREADY_OVER, True), (LONG, False)):
            claimant = owner("berta", lease_s)
            epoch, log = await store.acquire(writer.id, claimant, force=force)
            assert (epoch.owner, list(log.events), log.head) == (claimant, writer.events, writer.head)
            assert (log.holder.epoch, log.holder.owner) == (taken[-1].number, taken[-1].owner.name)
            taken.append(epoch)
        await store.release(writer.id, taken[-1])
        taken.append((await store.acquire(writer.id, owner()))[0])
        assert [epoch.number for epoch in taken] == [1, 2, 3, 4, 5, 6]
        assert len({epoch.token for epoch in taken}) == 6
        writer.epoch = taken[-1]
        await writer.write(1)
        await writer.check()

    async def test_a_running_lease_holds_but_not_against_force(self, stores: Stores, store: SessionPersistence) -> None:
        """OWN-02."""
        writer = Writer.new(store)
        await writer.write()
        before = await contents(store)
        other = await stores.open()
        for name in ("berta", writer.epoch.owner.name):
            with pytest.raises(SessionHeld) as raised:
                await other.acquire(writer.id, owner(name))
            assert raised.value.owner == "anna"
            assert raised.value.seconds_left is not None
            assert LONG - 100 < raised.value.seconds_left <= LONG
        assert await contents(store) == before
        epoch, _ = await other.acquire(writer.id, owner("berta"), force=True)
        assert epoch.number == 2

    async def test_a_lease_that_ran_out_untaken_still_writes_and_starts_anew(self, store: SessionPersistence) -> None:
        """OWN-03."""
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write()
        assert (await store.read(writer.id)).holder.lease_left_s < 0
        writer.epoch = with_lease(writer.epoch, LONG)
        await writer.write()
        assert (await store.read(writer.id)).holder.lease_left_s > LONG - 100
        with pytest.raises(SessionHeld):
            await store.acquire(writer.id, owner("berta"))

    async def test_a_claim_that_was_taken_over_can_do_nothing(self, stores: Stores, store: SessionPersistence) -> None:
        """OWN-04: the session taken over."""
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(2)
        new, _ = await (await stores.open()).acquire(writer.id, owner("berta"))
        await check_powerless(store, writer, Stored(2, 2, writer.head))
        assert (await store.read(writer.id)).holder.owner == "berta"
        taken_over = Writer(store, writer.header, new, writer.head, writer.events, writer.batches)
        await taken_over.write()
        await taken_over.check()

    async def test_a_claim_that_was_released_can_do_nothing(self, store: SessionPersistence) -> None:
        """OWN-04: the session released."""
        writer = Writer.new(store)
        await writer.write(2)
        await store.release(writer.id, writer.epoch)
        holder = (await store.read(writer.id)).holder
        assert (holder.epoch, holder.owner) == (1, None)
        assert holder.lease_left_s <= 0
        await check_powerless(store, writer, Stored(1, 2, writer.head))

    async def test_a_name_used_again_is_another_claim(self, store: SessionPersistence) -> None:
        """OWN-05."""
        writer = Writer.new(store)
        await writer.write(2)
        await store.acquire(writer.id, writer.epoch.owner, force=True)
        await check_powerless(store, writer, Stored(2, 2, writer.head))

    async def test_number_and_token_must_both_match(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(2)
        stored = Stored(1, 2, writer.head)
        for forged in (Epoch(1, "0" * 32, owner()), Epoch(1, "", owner()), Epoch(2, writer.epoch.token, owner())):
            await check_powerless(store, Writer(store, writer.header, forged, writer.head, writer.events), stored)

    async def test_renewing_starts_the_lease_anew(self, store: SessionPersistence) -> None:
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write()
        before = await contents(store)
        await store.renew(writer.id, with_lease(writer.epoch, LONG))
        holder = (await store.read(writer.id)).holder
        assert (holder.epoch, holder.owner) == (1, "anna")
        assert LONG - 100 < holder.lease_left_s <= LONG
        assert await contents(store) == before

    async def test_a_session_that_is_not_there_has_no_claim(self, store: SessionPersistence) -> None:
        epoch = Epoch.first(owner())
        attempts: list[Operation] = [
            lambda: store.acquire("unknown", owner()),
            lambda: store.acquire("unknown", owner(), force=True),
            lambda: store.renew("unknown", epoch),
            lambda: store.release("unknown", epoch),
        ]
        for attempt in attempts:
            with pytest.raises(SessionNotFound):
                await attempt()
        assert await store.list(10) == []

    async def test_of_many_who_want_a_free_session_one_gets_it(self, stores: Stores, store: SessionPersistence) -> None:
        writer = Writer.new(store, lease_s=ALREADY_OVER)
        await writer.write(3)
        others = [await stores.open() for _ in range(4)]
        answers = await asyncio.gather(
            *(other.acquire(writer.id, owner(f"o{n}")) for n, other in enumerate(others * 2)), return_exceptions=True
        )
        got = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert [epoch.number for epoch, _ in got] == [2]
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [SessionHeld] * 7
        holder = (await store.read(writer.id)).holder
        assert holder == Holder(2, got[0][0].owner.name, holder.lease_left_s)

    async def test_of_many_who_force_it_the_last_claim_writes(self, stores: Stores, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(3)
        others = [await stores.open() for _ in range(3)]
        answers = await asyncio.gather(
            *(other.acquire(writer.id, owner(f"o{n}"), force=True) for n, other in enumerate(others))
        )
        epochs = sorted((epoch for epoch, _ in answers), key=lambda epoch: epoch.number)
        assert [epoch.number for epoch in epochs] == [2, 3, 4]
        for epoch in (writer.epoch, *epochs[:-1]):
            late = Writer(store, writer.header, epoch, writer.head, writer.events)
            await check_powerless(store, late, Stored(4, 3, writer.head))
        writer.epoch = epochs[-1]
        await writer.write()
        await writer.check()
