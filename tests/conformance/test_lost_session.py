"""A turn whose session is lost on the way: nothing more is entered, what runs is awaited, the end is in memory only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.agent.step import Step
from app.llm.scripted import fail, gate, say
from app.middleware import Named
from app.session import events as ev
from app.session.errors import (
    PersistenceError,
    SequenceConflict,
    SessionDeleted,
    SessionFenced,
    StoreRegressed,
)
from app.session.ownership import Owner
from app.session.store import SessionStore
from app.tools.schema import tool
from app.tools.types import ToolExecution
from policy.checkpoint import EveryEventCheckpointPolicy, SemanticCheckpointPolicy, TurnEndCheckpointPolicy
from tests.support.asked import Asked
from tests.support.bodies import Bodies, calls
from tests.support.checkpoints import NotingAdapter
from tests.support.faults import FailBefore
from tests.support.house import House, types
from tests.support.timed import TimedPersistence
from tests.support.virtual_time import virtual_time
from tests.support.watching import at, data_of, errors, notices, results

LOST = "turn/end{error SESSION_FENCED}"
BEGINNING = ["inbox/accepted", "inbox/accepted", "turn/start", "user/message", "user/message", "step/start"]


def turn_end(sessions: SessionStore) -> TurnEndCheckpointPolicy:
    return TurnEndCheckpointPolicy()


every_policy = pytest.mark.parametrize(
    "policy",
    [SemanticCheckpointPolicy, turn_end, EveryEventCheckpointPolicy],
    ids=["semantic", "turn_end", "every_event"],
)


class Scene:
    """A house over a store in memory. `lose` takes the session over and waits until the heartbeat has found out."""

    def __init__(self, *steps: Any, **parts: Any) -> None:
        self.store = TimedPersistence()
        self.order: list[str] = []
        self.adapter = NotingAdapter(self.order, steps)
        self.house = House(persistence=self.store, adapters=[self.adapter], **parts)

    async def lose(self) -> None:
        await self.store.inner.acquire("s", Owner("other"), force=True)
        await asyncio.sleep(15)
        session = self.house.sessions.get("s")
        assert session is None or session.is_lost  # gone, if nobody was left to wait for

    async def run(self, error: type[PersistenceError] = SessionFenced) -> list[ev.AgentError]:
        """A turn of a session that is stored already, which ends lost: its errors. What is stored stays as it is."""
        async with self.house.agent() as agent:
            self.session = agent.session
            seen = notices(agent.session)
            agent.inject("by the way")
            await self.house.sessions.flush(agent.session)
            with pytest.raises(error):
                await agent.wait(agent.send("go"))
            assert agent.status == "closed"
            assert self.house.sessions.live == ()
            return errors(seen)


@every_policy
@virtual_time
async def test_a_running_body_is_told_and_awaited(policy: Any):
    """OWN-06: it is the last thing that happens: no later body, no request."""
    causes: list[str | None] = []

    @tool
    async def work(execution: ToolExecution) -> str:
        losing = asyncio.create_task(scene.lose())
        await execution.signal.wait()
        causes.append(execution.signal.cause)
        await losing
        return "done"

    scene = Scene(calls("work c1", "work c2"), say("never"), tools=[work], policy=policy)
    assert [(error.code, error.step) for error in await scene.run()] == [("SESSION_FENCED", 1)]
    assert causes == ["fenced"]
    assert results(scene.session) == [("c1", "ABORTED"), ("c2", "ABORTED_BEFORE_DISPATCH")]
    assert types(scene.session)[-2:] == ["step/end", LOST]
    assert scene.order == ["adapter"]


@pytest.mark.parametrize("place", ["stream_above", "stream_below"])
@every_policy
@virtual_time
async def test_a_request_held_up_meanwhile_opens_no_adapter(policy: Any, place: str):
    """POL-36: by middleware, above the checkpoint or below it."""

    async def linger(asked: Any, call_next: Any) -> Any:
        await scene.lose()
        return await call_next(asked)

    scene = Scene(say("never"), policy=policy, **{place: [Named("linger", linger)]})
    assert [(error.code, error.step) for error in await scene.run()] == [("SESSION_FENCED", 1)]
    assert scene.order == []
    assert types(scene.session) == [*BEGINNING, "request/header", "step/end", LOST]


@pytest.mark.parametrize("place", ["tool_above", "tool_below"])
@every_policy
@virtual_time
async def test_a_body_held_up_meanwhile_is_not_entered(policy: Any, place: str):
    """POL-37: by middleware, above the checkpoint or below it; nor is a later one."""

    async def linger(execution: Any, call_next: Any) -> Any:
        await scene.lose()
        return await call_next(execution)

    bodies, lingering = Bodies(), {place: [Named("linger", linger)]}
    scene = Scene(calls("alone c1", "alone c2"), tools=[bodies.alone], policy=policy, **lingering)
    assert [(error.code, error.step) for error in await scene.run()] == [("SESSION_FENCED", 1)]
    assert bodies.order == []
    assert results(scene.session) == [("c1", "CHECKPOINT_FAILED"), ("c2", "ABORTED_BEFORE_DISPATCH")]
    assert types(scene.session)[-2:] == ["step/end", LOST]


@pytest.mark.parametrize("raises", [False, True])
@every_policy
@virtual_time
async def test_a_listener_below_is_not_called(policy: Any, raises: bool):
    """OWN-06: lost while a listener was awaited: the ones below it are not called, whatever it did itself."""
    called: list[str] = []

    async def linger(step: Step) -> None:
        called.append("above")
        await scene.lose()
        if raises:
            raise RuntimeError("and a failure of its own")

    async def below(step: Step) -> None:
        called.append("below")

    scene = Scene(
        say("one"),
        policy=policy,
        listeners_above=[Named("linger", linger), Named("second", below)],
        listeners_below=[Named("below", below)],
    )
    assert [(error.code, error.step) for error in await scene.run()] == [("SESSION_FENCED", 1)]
    assert called == ["above"]
    assert types(scene.session)[-3:] == ["assistant/message", "step/end", LOST]


@every_policy
@virtual_time
async def test_a_stream_is_closed(policy: Any):
    """OWN-06: what was visible of it is no message; and nothing is tried again."""
    retry = Asked(retries=1)

    async def lose() -> None:
        await scene.lose()

    scene = Scene([say("half"), gate(lose), say("never")], policy=policy, retry=retry)
    assert [(error.code, error.step) for error in await scene.run()] == [("SESSION_FENCED", 1)]
    assert types(scene.session) == [*BEGINNING, "request/header", "chunk*", "step/end", LOST]
    assert (scene.order, retry.asked) == (["adapter"], [])


@every_policy
@virtual_time
async def test_nothing_is_tried_again(policy: Any):
    """OWN-06: lost during the backoff after a failed request: no further step."""
    scene = Scene([fail("SERVER")], say("never"), policy=policy, retry=Asked(retries=1, delay_ms=60_000))
    async with scene.house.agent() as agent:
        agent.inject("by the way")
        await scene.house.sessions.flush(agent.session)
        losing: list[asyncio.Task[None]] = []
        at(agent.session, "llm/retry", lambda: losing.append(asyncio.create_task(scene.lose())))
        with pytest.raises(SessionFenced):
            await agent.wait(agent.send("go"))
        await losing[0]
        assert asyncio.get_running_loop().time() < 60
        assert types(agent.session) == [*BEGINNING, "request/header", "step/end", "llm/retry", LOST]
        assert "step" not in data_of(agent.session, "turn/end")[0]["error"]  # none was open
        assert scene.order == ["adapter"]


@virtual_time
async def test_a_session_lost_at_the_final_flush_keeps_its_turns_end():
    """OWN-06: the turn had completed, in memory; whoever waits is told that the session is lost, and no notice more."""
    scene = Scene(say("one"))
    async with scene.house.agent() as agent:
        seen = notices(agent.session)
        taking: list[asyncio.Task[Any]] = []

        def take() -> None:
            held = scene.store.hold("append")

            async def take_over() -> None:
                await held.reached()
                await scene.store.inner.acquire("s", Owner("other"), force=True)
                held.open()

            taking.append(asyncio.create_task(take_over()))

        at(agent.session, "turn/end", take)
        with pytest.raises(SessionFenced):
            await agent.wait(agent.send("go"))
        assert types(agent.session)[-1] == "turn/end{completed}"
        assert errors(seen) == []
        assert agent.status == "closed"
        await taking[0]


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (SessionFenced("s"), "fenced", "SESSION_FENCED"),
        (SessionDeleted("s"), "deleted", "SESSION_DELETED"),
        (SequenceConflict("s", 7, 5), "conflict", "SEQUENCE_CONFLICT"),
        (StoreRegressed("s", 7, "5"), "regressed", "STORE_REGRESSED"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@virtual_time
async def test_each_way_to_be_lost_has_its_code(error: PersistenceError, cause: str, code: str):
    """PG-04, DEL-03, DIG-03: as the cause on the signal, and as the code of the turn's end."""
    causes: list[str | None] = []

    async def see(execution: ToolExecution, call_next: Any) -> Any:
        result = await call_next(execution)
        causes.append(execution.signal.cause)
        return result

    bodies = Bodies()
    scene = Scene(calls("alone c1", "alone c2"), tools=[bodies.alone], tool_above=[Named("see", see)])
    async with scene.house.agent() as agent:
        at(agent.session, "tool/call", lambda: scene.store.next("append", FailBefore(error)))
        with pytest.raises(type(error)):
            await agent.wait(agent.send("go"))
        assert (causes, bodies.order) == ([cause], [])
        assert results(agent.session) == [("c1", "CHECKPOINT_FAILED"), ("c2", "ABORTED_BEFORE_DISPATCH")]
        assert data_of(agent.session, "turn/end")[0]["error"]["code"] == code
