"""The lease: kept while a turn is open, let alone while nothing runs, and looked at before each effect."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.cancel import CancelSignal
from app.llm.scripted import call, gate, say
from app.middleware import Named
from app.session.errors import AbortedBeforeDispatch, PersistenceUnavailable, SessionFenced, SessionHeld
from app.session.ownership import Owner
from app.session.store import SessionStore
from app.tools.schema import tool
from app.tools.types import ToolExecution, ToolResult
from policy.checkpoint import TurnEndCheckpointPolicy
from tests.support.bodies import Bodies, calls
from tests.support.checkpoints import pend, read, request
from tests.support.faults import DOWN, FailAfter, FailBefore
from tests.support.house import House, types
from tests.support.timed import TimedPersistence, timeline, until_ms
from tests.support.virtual_time import virtual_time, waits
from tests.support.watching import at, data_of, errors, notices, results, unhandled_errors

OTHER = Owner("other", lease_s=30.0)
BEGINNING = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
LOST_AT_ONCE = ["step/end", "turn/end{error SESSION_FENCED}"]


class Silent:
    """A call that is never answered, and that fails in its own way when nobody waits any more."""

    async def around(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("reset") from None


def turn_end(sessions: SessionStore) -> TurnEndCheckpointPolicy:
    return TurnEndCheckpointPolicy()


async def take_over(store: TimedPersistence) -> int:
    """Another process takes the session, whoever holds it; the number of events that are stored then."""
    _, log = await store.inner.acquire("s", OTHER, force=True)
    return log.next_seq


def house_of(store: TimedPersistence, *steps: Any, **parts: Any) -> House:
    return House(list(steps), persistence=store, **parts)


# --------------------------------------------------------------------------------- kept, and not kept


@virtual_time
async def test_a_body_that_takes_three_leases_keeps_its_own():
    """OWN-08: nothing is appended, the heartbeat renews, and nobody else gets the session at any time."""

    @tool
    async def work() -> str:
        await asyncio.sleep(95)
        return "done"

    store = TimedPersistence()
    house = house_of(store, call("work", {}, id="c1"), say("fine"), tools=[work])
    async with house.agent() as agent:
        prompt = agent.send("go")
        for second in range(1, 95):
            await until_ms(second * 1000)
            with pytest.raises(SessionHeld) as held:
                await store.inner.acquire("s", OTHER)
            assert (held.value.seconds_left or 0) >= 19
        outcome = await agent.wait(prompt)
        assert (outcome.reason, results(agent.session)) == ("completed", [("c1", "done")])
        assert store.log.count("renew") == 9  # every 10 s


@virtual_time
async def test_a_stream_without_a_word_keeps_its_lease():
    """OWN-08: also while the model thinks for three lease times."""
    store = TimedPersistence()
    house = house_of(store, [gate(lambda: asyncio.sleep(90)), say("at last")])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await until_ms(89_000)
        with pytest.raises(SessionHeld):
            await store.inner.acquire("s", OTHER)
        assert (await agent.wait(prompt)).reason == "completed"


@virtual_time
async def test_an_idle_session_asks_nothing_of_the_store():
    """OWN-09: for an hour; it can be taken over then, and its old owner learns it at its next write."""
    store = TimedPersistence()
    house = house_of(store, say("one"), say("two"))
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        store.log.clear()
        await until_ms(3_600_000)
        assert store.log == []
        await store.inner.acquire("s", OTHER)
        agent.send("again")
        with pytest.raises(SessionFenced):
            await agent.wait_idle()
        assert len(house.adapter.requests) == 1


@virtual_time
async def test_a_lease_that_ran_out_and_was_not_taken_starts_anew():
    """OWN-03: the owner writes on, and holds the session for another lease from then."""
    async with timeline(None) as line:
        pend(line.session)
        await line.flush()
        await until_ms(100_000)
        assert (await line.store.inner.read("s")).holder.lease_left_s == -70
        pend(line.session)
        await line.flush()
        assert (await line.store.inner.read("s")).holder.lease_left_s == 30
        assert await line.stored()


@virtual_time
async def test_a_heartbeat_outlives_any_error_of_the_store():
    """OWN-08: a renewal that fails, however it does, is tried again well before the lease runs out."""

    @tool
    async def work() -> str:
        await asyncio.sleep(50)
        return "done"

    store = TimedPersistence()
    house = house_of(store, call("work", {}, id="c1"), say("fine"), tools=[work])
    async with house.agent() as agent:
        prompt = agent.send("go")
        store.next("renew", FailBefore(DOWN), FailBefore(OSError("reset")), FailAfter(RuntimeError("what?")))
        for second in range(1, 50):
            await until_ms(second * 1000)
            with pytest.raises(SessionHeld):
                await store.inner.acquire("s", OTHER)
        assert (await agent.wait(prompt)).reason == "completed"
        assert store.log.count("renew failed") == 3


@virtual_time
async def test_a_renewal_without_an_answer_holds_nothing_up():
    """OWN-08: neither the end of the turn, nor the next renewal; and nothing of it is left behind."""

    @tool
    async def work() -> str:
        await asyncio.sleep(15)
        return "done"

    reported = unhandled_errors()
    store = TimedPersistence()
    house = house_of(store, call("work", {}, id="c1"), say("fine"), tools=[work])
    async with house.agent() as agent:
        store.next("renew", Silent())
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert asyncio.get_running_loop().time() == 15
        await agent.close()
        assert store.log.count("renew failed") == 1
    gc.collect()
    assert reported == []


@virtual_time
async def test_before_the_first_write_there_is_no_lease_to_keep():
    """OWN-08: a turn that stores nothing before its end asks nothing of the store, however long it takes."""

    @tool
    async def work() -> str:
        await asyncio.sleep(95)
        return "done"

    store = TimedPersistence()
    house = house_of(store, call("work", {}, id="c1"), say("fine"), tools=[work], policy=turn_end)
    async with house.agent() as agent:
        store.log.clear()
        assert (await agent.wait(agent.send("go"))).durable
        assert store.log == ["append", "append done"]


# --------------------------------------------------------------------------------- looked at before an effect


class NearItsEnd:
    """A house whose middleware above each checkpoint lets 26 of the lease's 30 s go by, with all stored by then.

    No renewal gets through meanwhile. Then `what_then` happens, and the checkpoint has nothing to write.
    """

    def __init__(self, place: str, what_then: str, *steps: Any, **parts: Any) -> None:
        self.store = TimedPersistence()
        self.stored = 0
        self._what_then = what_then
        named = [Named("linger", self.linger)]
        self.house = house_of(self.store, *steps, **{f"{place}_above": named}, **parts)

    async def linger(self, about: Any, call_next: Any) -> Any:
        if self.stored == 0:
            await self.house.sessions.flush(about.session)
            self.stored = len(about.session)
            self.store.always("renew", FailBefore(DOWN))
            await asyncio.sleep(26)
            if self._what_then == "taken over":
                assert await take_over(self.store) == self.stored
                self.store.heal()
            self.store.log.clear()
        return await call_next(about)


@virtual_time
async def test_a_request_of_a_session_that_was_taken_over_is_not_made():
    """POL-36: nothing pending and the lease near its end: renewed, and fenced by that; the end is in memory only."""
    near = NearItsEnd("stream", "taken over", say("never"))
    async with near.house.agent() as agent:
        seen = notices(agent.session)
        with pytest.raises(SessionFenced):
            await agent.wait(agent.send("go"))
        assert near.store.log == ["renew", "renew failed"]
        assert near.house.adapter.requests == []
        assert types(agent.session) == [*BEGINNING, *LOST_AT_ONCE]
        assert near.stored == (await near.store.inner.read("s")).next_seq == len(BEGINNING)
        assert [(error.code, error.step) for error in errors(seen)] == [("SESSION_FENCED", 1)]
        assert agent.status == "closed"


@virtual_time
async def test_a_body_of_a_session_that_was_taken_over_is_not_entered():
    """POL-37: nor is a later one; the call that found out failed its checkpoint, the others were not started."""
    bodies = Bodies()
    near = NearItsEnd("tool", "taken over", calls("alone c1", "alone c2"), say("never"), tools=[bodies.alone])
    async with near.house.agent() as agent:
        with pytest.raises(SessionFenced):
            await agent.wait(agent.send("go"))
        assert near.store.log == ["renew", "renew failed"]
        assert bodies.order == []
        assert results(agent.session) == [("c1", "CHECKPOINT_FAILED"), ("c2", "ABORTED_BEFORE_DISPATCH")]
        assert types(agent.session) == [
            *BEGINNING,
            *("chunk*", "assistant/message", "tool/call", "tool/result", "tool/call", "tool/result"),
            *LOST_AT_ONCE,
        ]
        assert (await near.store.inner.read("s")).next_seq == near.stored
        assert len(near.house.adapter.requests) == 1


@virtual_time
async def test_an_effect_needs_a_lease_that_can_be_confirmed():
    """OWN-12: the store is out of reach and less than the margin left: the body is not entered, the turn goes on."""
    bodies = Bodies()
    near = NearItsEnd("tool", "out of reach", calls("alone c1"), say("I see"), tools=[bodies.alone])
    async with near.house.agent() as agent:
        at(agent.session, "tool/result", near.store.heal)
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert near.store.log[:2] == ["renew", "renew failed"]
        assert bodies.order == []
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [
            {"code": "CHECKPOINT_FAILED", "message": str(DOWN)}
        ]


@virtual_time
async def test_a_request_needs_a_lease_that_can_be_confirmed():
    """OWN-12: the same before a request: a failed checkpoint."""
    near = NearItsEnd("stream", "out of reach", say("never"))
    async with near.house.agent() as agent:
        at(agent.session, "step/end", near.store.heal)
        outcome = await agent.wait(agent.send("go"))
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": str(DOWN), "step": 1}
        assert (near.house.adapter.requests, outcome.durable) == ([], True)


@virtual_time
async def test_with_enough_of_the_lease_left_nobody_is_asked():
    """OWN-12: up to the margin an effect may begin without another renewal; beyond it there has to be one."""
    async with timeline(None) as line:
        check = line.house.sessions.check_ownership
        pend(line.session)
        await line.flush()
        line.store.log.clear()
        await until_ms(24_900)
        await check(line.session)
        assert line.store.log == []
        await until_ms(25_100)
        await check(line.session)
        assert line.store.log == ["renew", "renew done"]
        await until_ms(50_000)
        await check(line.session)
        assert line.store.log == ["renew", "renew done"]


@virtual_time
async def test_a_lease_counts_from_when_its_renewal_was_sent():
    """OWN-12: a write that took 20 s has used up 20 s of its own lease; so has the claim of a slow resume."""
    async with timeline(None) as line:
        pend(line.session)
        held = line.store.hold("append", after=True)
        flushing = asyncio.create_task(line.flush())
        await held.reached()
        await until_ms(26_000)
        held.open()
        await flushing
        line.store.log.clear()
        await line.house.sessions.check_ownership(line.session)
        assert line.store.log == ["renew", "renew done"]

        await line.house.sessions.release(line.session)
        held = line.store.hold("acquire", after=True)
        resuming = asyncio.create_task(line.house.sessions.resume("s"))
        await held.reached()
        await until_ms(46_000)
        held.open()
        again = await resuming
        line.store.log.clear()
        await until_ms(50_900)
        await line.house.sessions.check_ownership(again)
        assert line.store.log == []
        await until_ms(51_100)
        await line.house.sessions.check_ownership(again)
        assert line.store.log == ["renew", "renew done"]
        await line.house.sessions.release(again)


@virtual_time
async def test_a_renewal_that_hangs_is_a_failed_checkpoint():
    """OWN-12: it is waited for as long as its answer can leave the margin; then the store is out of reach."""
    async with timeline(None) as line:
        pend(line.session)
        await line.flush()
        await until_ms(29_000)
        held = line.store.hold("renew")
        with pytest.raises(PersistenceUnavailable) as raised:
            await line.house.sessions.check_ownership(line.session)
        assert asyncio.get_running_loop().time() == 54
        assert "25 s" in str(raised.value)
        assert held.is_reached
        assert not line.session.is_lost
        await line.house.sessions.check_ownership(line.session)


@pytest.mark.parametrize("place", ["request", "tool"])
@virtual_time
async def test_a_cancel_during_the_renewal_is_heard(place: str):
    """CAN-32, POL-08: what was cancelled by the time the lease is renewed is not dispatched either."""
    bodies, signal = Bodies(), CancelSignal()
    async with timeline(None, tools=[bodies.alone]) as line:
        pend(line.session)
        await line.flush()
        await until_ms(29_000)
        asking: asyncio.Future[Any]
        held = line.store.hold("renew")
        if place == "request":
            asking = asyncio.ensure_future(read(line.house, request("s", signal)))
        else:
            execution = ToolExecution("alone", "{}", "c1", session=line.session, signal=signal)
            asking = asyncio.ensure_future(line.house.tool_service.execute(execution))
        await held.reached()
        signal.cancel()
        assert await waits(asking)
        held.open()
        if place == "request":
            with pytest.raises(AbortedBeforeDispatch):
                await asking
        else:
            assert await asking == ToolResult.error("ABORTED_BEFORE_DISPATCH", "tool call aborted before dispatch")
        assert line.house.adapter.requests == []
        assert bodies.order == []
