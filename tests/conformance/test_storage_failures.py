"""A store that fails at one boundary of a turn: what is not entered, how the turn ends, and what is stored afterwards.

Three ways to fail, over a real store: it refuses; it does the work, and says that it failed; it does the work, and says
nothing. The caller cannot tell them apart, so the log that is stored in the end has to be the live one each time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.agent.agent import Agent
from app.llm.scripted import call, say
from app.session.drain import DrainLimits
from app.session.errors import FlushTimeout, PersistenceError, PersistenceUnavailable
from app.session.events import AgentError
from app.session.recovery import Completed, RecordedCall
from app.tools.schema import tool
from tests.support.asked import Asked
from tests.support.bodies import Bodies
from tests.support.faults import FailAfter, FailBefore, FaultyPersistence, Gate
from tests.support.house import House, types
from tests.support.interrupted import Open, leave
from tests.support.stores import Place
from tests.support.timed import TimedPersistence
from tests.support.virtual_time import all_quiet, virtual_time, waits
from tests.support.watching import at, errors, notices, results

DOWN = PersistenceUnavailable("s", "disk unavailable")
HOW = ["refuses", "does it and fails", "does it and is silent"]
NOT_DONE, DONE, SILENT = HOW
BEGINNING = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
CALLING = [*BEGINNING, "chunk*", "assistant/message", "tool/call", "tool/result", "step/end"]
ANSWERING = ["step/start", "chunk*", "assistant/message", "step/end", "turn/end{completed}"]
NEXT_TURN = ["inbox/accepted", "turn/start", "user/message", *ANSWERING]


@dataclass
class Failing:
    """A house over a store that fails as `how` says at the append that follows a chosen event."""

    place: Place
    how: str
    bodies: Bodies = field(default_factory=Bodies)
    retry: Asked = field(default_factory=lambda: Asked(retries=1))
    notices: list[Any] = field(default_factory=list)
    gate: Gate | None = None

    def __post_init__(self) -> None:
        self.store = FaultyPersistence(self.place.persistence())
        self.house = House(
            [call("alone", {}, id="c1"), say("done"), say("and again")],
            [self.bodies.alone],
            self.store,
            retry=self.retry,
            # Patience for the store that is silent; any other answer comes much sooner.
            drain_limits=DrainLimits(write_behind_ms=None, flush_timeout_ms=500 if self.how == SILENT else 30_000),
        )

    def fail_next(self) -> None:
        if self.how == SILENT:
            self.gate = self.store.hold("append", after=True)
        else:
            self.store.next("append", FailBefore(DOWN) if self.how == NOT_DONE else FailAfter(DOWN))

    def answer(self) -> None:
        """The answer of the silent store comes at last."""
        if self.gate is not None:
            self.gate.open()

    def arm(self, agent: Agent, after: str, until: str) -> None:
        """Fail the append that comes after an event, and be silent until another one."""
        self.notices = notices(agent.session)
        at(agent.session, after, self.fail_next)
        at(agent.session, until, self.answer)

    @property
    def message(self) -> str:
        return str(FlushTimeout("s", 500) if self.how == SILENT else DOWN)

    async def check(self, agent: Agent, failed: int) -> None:
        """All of it is stored as it is here, once, also for who opens the store anew. `failed` is the batch's place."""
        assert (await self.store.inner.read("s")).events == agent.session.events
        sent = [batch.events for batch in self.store.appends]
        if self.how != SILENT:
            assert sent[failed] == sent[failed + 1]  # what may be stored is sent again exactly, alone
            del sent[failed]
        assert [event for events in sent for event in events] == list(agent.session.events)
        log = agent.session.events
        await agent.close()
        async with House(persistence=self.place.persistence()).resumed() as later:
            assert later.session.events == log


@pytest.fixture(params=HOW)
def failing(request: pytest.FixtureRequest, durable_place: Place) -> Failing:
    return Failing(durable_place, request.param)


async def and_again(agent: Agent) -> None:
    """The session is usable: another prompt is answered."""
    outcome = await agent.wait(agent.send("again"))
    assert (outcome.reason, outcome.durable) == ("completed", True)


async def test_a_store_that_fails_before_the_request(failing: Failing):
    """POL-04, FIN-10: C1: no adapter, no retry, the turn ends in an error; the backlog is written in order."""
    async with failing.house.agent() as agent:
        agent.inject("first")
        await failing.house.sessions.flush(agent.session)
        failing.arm(agent, "request/header", "step/end")
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session)[1:] == [
            *BEGINNING[:3],
            *("user/message", "step/start", "request/header", "step/end", "turn/end{error CHECKPOINT_FAILED}"),
        ]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": failing.message, "step": 1}
        assert outcome.durable
        assert (failing.house.adapter.requests, failing.retry.asked, failing.bodies.order) == ([], [], [])
        assert errors(failing.notices) == [AgentError("CHECKPOINT_FAILED", failing.message, 1, 1)]
        del failing.house.adapter.unused[0]
        await and_again(agent)
        await failing.check(agent, 1)


async def test_a_store_that_fails_at_the_first_batch(failing: Failing):
    """FIN-10, APD-01: C1 of a session that is not stored yet: it is created once, whoever knows of it."""
    async with failing.house.agent() as agent:
        failing.arm(agent, "request/header", "step/end")
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*BEGINNING, "step/end", "turn/end{error CHECKPOINT_FAILED}"]
        assert outcome.durable
        assert failing.house.adapter.requests == []
        del failing.house.adapter.unused[0]
        await and_again(agent)
        assert [row.session_id for row in await failing.store.inner.list(10)] == ["s"]
        await failing.check(agent, 0)


async def test_a_store_that_fails_before_a_body(failing: Failing):
    """POL-11, POL-47: C2: the body is not entered, the model is told, C3 writes the backlog, the turn completes."""
    async with failing.house.agent() as agent:
        failing.arm(agent, "tool/call", "tool/result")
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*CALLING, *ANSWERING]
        assert results(agent.session) == [("c1", "CHECKPOINT_FAILED")]
        told = failing.house.adapter.requests[1].messages[-1]
        assert (told.is_error, told.text) == (True, f"Error: {failing.message}")  # type: ignore[union-attr]
        assert (failing.bodies.order, outcome.reason, outcome.durable) == ([], "completed", True)
        assert errors(failing.notices) == []
        await failing.check(agent, 1)


async def test_a_store_that_fails_after_a_step(failing: Failing):
    """POL-21, FIN-10: C3: no further request, the turn ends in an error; the body ran once and its result is kept."""
    async with failing.house.agent() as agent:
        failing.arm(agent, "tool/result", "step/end")
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*CALLING, "turn/end{error CHECKPOINT_FAILED}"]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": failing.message, "step": 1}
        assert (results(agent.session), failing.bodies.order) == ([("c1", "c1")], ["c1 starts", "c1 ends"])
        assert (len(failing.house.adapter.requests), outcome.durable) == (1, True)
        await and_again(agent)
        assert failing.bodies.order == ["c1 starts", "c1 ends"]
        await failing.check(agent, 2)


async def test_a_store_that_fails_after_the_turn(failing: Failing):
    """FIN-04: F: the turn stands as it ended, the outcome is not durable, one notice says so; the next turn runs."""
    async with failing.house.agent() as agent:
        failing.arm(agent, "turn/end", "agent/error")
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*CALLING, *ANSWERING]
        assert (outcome.reason, outcome.durable) == ("completed", False)
        assert errors(failing.notices) == [
            AgentError("FLUSH_TIMEOUT" if failing.how == SILENT else "PERSISTENCE_UNAVAILABLE", failing.message, 1)
        ]
        await and_again(agent)
        assert types(agent.session)[15:] == NEXT_TURN
        await failing.check(agent, 5)


async def test_a_store_that_fails_before_an_acknowledgement(failing: Failing):
    """INB-05: the caller is told and does not acknowledge; the message stays accepted here, and runs."""
    async with failing.house.agent() as agent:
        failing.fail_next()
        context = agent.inject("by the way")
        with pytest.raises(FlushTimeout if failing.how == SILENT else PersistenceUnavailable):
            await failing.house.sessions.flush(agent.session)
        failing.answer()
        assert list(agent.session.state.pending) == [context]
        assert (agent.session.durable, len(agent.session)) == (0, 1)
        outcome = await agent.wait(agent.send("go"))
        assert (outcome.reason, outcome.durable, failing.bodies.order) == ("completed", True, ["c1 starts", "c1 ends"])
        await failing.check(agent, 0)


async def test_a_store_that_is_down_for_a_whole_turn(durable_place: Place):
    """FIN-09, FIN-10: nothing is entered and nothing stored; healed, it takes the whole backlog, then what is new."""
    failing = Failing(durable_place, NOT_DONE)
    async with failing.house.agent() as agent:
        seen = notices(agent.session)
        failing.store.always("append", FailBefore(DOWN))
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*BEGINNING, "step/end", "turn/end{error CHECKPOINT_FAILED}"]
        assert (outcome.durable, await failing.store.inner.list(10)) == (False, [])
        assert [error.code for error in errors(seen)] == ["CHECKPOINT_FAILED", "PERSISTENCE_UNAVAILABLE"]
        failing.store.heal()
        del failing.house.adapter.unused[0]
        await and_again(agent)
        assert types(agent.session)[7:] == NEXT_TURN  # nothing was added for the failure
        assert failing.store.reasons == ["request", "request", "post-step", "final"]
        assert (await failing.store.inner.read("s")).events == agent.session.events


# --------------------------------------------------------------------------------- recovery


CLOSERS = ["tool/result", "step/end", "turn/end"]


async def fail_resuming(house: House, store: FaultyPersistence, what: Any, how: str) -> None:
    """Resume while the store fails at this call; where it says nothing, its caller loses patience."""
    if how != SILENT:
        store.next(what, FailBefore(DOWN) if how == NOT_DONE else FailAfter(DOWN))
        await house.sessions.resume("s", force=True)
        return
    gate = store.hold(what, after=True)
    resuming = asyncio.create_task(house.sessions.resume("s", force=True))
    await gate.reached()
    resuming.cancel()
    gate.open()
    await resuming


@pytest.mark.parametrize("how", HOW)
async def test_a_store_that_fails_while_a_session_is_resumed(durable_place: Place, how: str):
    """RPR-20: at the transaction that claims and closes: resuming raises, nothing is live, and again it works."""
    stored = await leave(durable_place.persistence(), Open("c1"))
    store = FaultyPersistence(durable_place.persistence())
    house = House(persistence=store)
    async with house.opened():
        with pytest.raises((PersistenceError, asyncio.CancelledError)):
            await fail_resuming(house, store, "acquire", how)
        assert house.sessions.live == ()
        # Where the first try's answer was lost its claim stands, and does not stand in the way of its owner.
        session = await house.sessions.resume("s", force=how == NOT_DONE)
        assert session.events[: len(stored)] == stored
        assert [event.type for event in session.events[len(stored) :]] == CLOSERS
        assert (await store.inner.read("s")).events == session.events
        await house.sessions.release(session)


@virtual_time
async def test_a_resume_that_is_cancelled_waits_for_its_claim():
    """RPR-20: only what was claimed can be given back: then resuming again works, and nothing comes through late."""
    store = TimedPersistence()
    await leave(store, Open("c1"))
    house = House(persistence=store)
    async with house.opened():
        gate = store.hold("acquire")
        resuming = asyncio.create_task(house.sessions.resume("s", force=True))
        await gate.reached()
        resuming.cancel()
        assert await waits(resuming)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await resuming
        session = await house.sessions.resume("s")
        await all_quiet()
        assert (session.epoch.number, house.sessions.live) == (3, (session,))
        await house.sessions.release(session)


@pytest.mark.parametrize("how", HOW)
async def test_a_store_that_fails_at_the_closers_of_a_reconciled_call(durable_place: Place, how: str):
    """RPR-20: at the batch that closes the turn after tools were asked: the same, and they are asked again."""
    stored = await leave(durable_place.persistence(), Open("c1"))
    asked: list[str] = []

    async def act() -> str:
        return "never"

    async def reconcile(recorded: RecordedCall) -> Completed:
        asked.append(recorded.call_id)
        return Completed("so it was")

    store = FaultyPersistence(durable_place.persistence())
    house = House(tools=[tool(act, reconcile=reconcile)], persistence=store)
    async with house.opened():
        with pytest.raises((PersistenceError, asyncio.CancelledError)):
            await fail_resuming(house, store, "append", how)
        assert house.sessions.live == ()
        session = await house.sessions.resume("s")
        assert results(session) == [("c1", "so it was")]
        assert session.events[: len(stored)] == stored
        assert [event.type for event in session.events[len(stored) :]] == CLOSERS
        assert (await store.inner.read("s")).events == session.events
        assert asked == (["c1", "c1"] if how == NOT_DONE else ["c1"])
        await house.sessions.release(session)
