"""The tool checkpoint: the log is durable before a top-level body may act, and a failed flush is a result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.cancel import CancelSignal
from app.llm.scripted import call, say
from app.middleware import Named
from app.session.errors import PersistenceUnavailable
from app.session.session import Session
from app.tools.schema import tool
from app.tools.types import Allow, Deny, Execute, ToolExecution, ToolResult
from persistence.memory import MemoryPersistence
from tests.support.checkpoints import flushes_of, pend
from tests.support.faults import FailBefore, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.virtual_time import virtual_time, waits
from tests.support.watching import at, data_of, is_balanced, results

DISK = RuntimeError("disk unavailable")
ABD = ToolResult.error("ABORTED_BEFORE_DISPATCH", "tool call aborted before dispatch")


class Scene:
    """A house whose store and tool `act` note in one list what they do, in order."""

    def __init__(self, *steps: Any, timeout_s: float | None = None, **parts: Any) -> None:
        self.order: list[str] = []
        self.store = FaultyPersistence(MemoryPersistence(), self.order)

        async def act(execution: ToolExecution, count: int = 1) -> str:
            self.order.append(f"body {execution.call_id}")
            return "done"

        act_tool = tool(act, parallel_safe=True, timeout_s=timeout_s)
        self.house = House(list(steps), tools=[act_tool, *parts.pop("tools", ())], persistence=self.store, **parts)
        self.flushes = flushes_of(self.house.sessions)

    async def session(self) -> Session:
        """A live session with something pending; what happened so far is forgotten."""
        session = await self.house.sessions.create("s")
        pend(session)
        self.order.clear()
        return session

    async def execute(self, session: Session | None, *, name: str = "act", arguments: str = "{}", **parts: Any) -> Any:
        """The result of one call, as the loop would have it made."""
        return await self.house.tool_service.execute(ToolExecution(name, arguments, "c1", session=session, **parts))


@virtual_time
async def test_the_body_is_entered_when_the_flush_has_ended():
    """POL-07: while the flush is held up nothing else happens; the body's value is the result."""
    scene = Scene()
    async with scene.house.opened():
        session = await scene.session()
        held = scene.store.hold("append")
        running = asyncio.create_task(scene.execute(session))
        await held.reached()
        assert await waits(running)
        assert scene.order == ["append"]
        held.open()
        assert await running == ToolResult("done")
        assert scene.order == ["append", "append done", "body c1"]
        assert scene.store.reasons == ["tool"]


@virtual_time
async def test_a_call_cancelled_during_its_flush_is_not_dispatched():
    """POL-08: the flush completes, nothing further inside is entered, and the result says so."""
    entered: list[str] = []

    async def below(execution: ToolExecution, call_next: Execute) -> ToolResult:
        entered.append("below")
        return await call_next(execution)

    scene, signal = Scene(tool_below=[Named("below", below)]), CancelSignal()
    async with scene.house.opened():
        session = await scene.session()
        held = scene.store.hold("append")
        running = asyncio.create_task(scene.execute(session, signal=signal))
        await held.reached()
        signal.cancel()
        assert await waits(running)
        held.open()
        assert await running == ABD
        assert (scene.order, entered) == (["append", "append done"], [])
        assert session.durable == len(session)


async def test_a_failed_flush_is_the_result_of_the_call():
    """POL-09: one call and one result in the log, the model reads the flush's error, the body is not entered."""
    scene = Scene(call("act", {}, id="c1"), say("I see"))
    async with scene.house.agent() as agent:
        at(agent.session, "tool/call", lambda: scene.store.next("append", FailBefore(DISK)))
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert len(data_of(agent.session, "tool/call")) == 1
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [
            {"code": "CHECKPOINT_FAILED", "message": "disk unavailable"}
        ]
        told = scene.house.adapter.requests[1].messages[-1]
        assert (told.call_id, told.is_error, told.text) == ("c1", True, "Error: disk unavailable")  # type: ignore[union-attr]
        assert "body c1" not in scene.order


async def test_a_store_that_is_down_is_the_result_of_the_call():
    """POL-11: the code is that of the checkpoint, the message that of the store's error."""
    scene, down = Scene(), PersistenceUnavailable("s", "no route to host")
    async with scene.house.opened():
        session = await scene.session()
        scene.store.next("append", FailBefore(down))
        assert await scene.execute(session) == ToolResult.error("CHECKPOINT_FAILED", str(down))
        assert scene.order == ["append", "append failed"]


async def test_a_nested_call_has_no_checkpoint():
    """POL-12: that of its outer call covers it."""
    scene = Scene()
    async with scene.house.opened():
        session = await scene.session()
        assert await scene.execute(session, parent=ToolExecution("outer", "{}", "c0")) == ToolResult("done")
        assert (scene.order, scene.flushes) == (["body c1"], [])


async def test_a_call_outside_of_sessions_has_no_checkpoint():
    """POL-13: there is nothing to flush."""
    scene = Scene()
    async with scene.house.opened():
        await scene.session()
        assert await scene.execute(None) == ToolResult("done")
        assert (scene.order, scene.flushes) == (["body c1"], [])


async def deny(execution: ToolExecution) -> Deny:
    return Deny("not today")


@pytest.mark.parametrize(
    "parts",
    [{"policies": [Named("deny", deny)]}, {"guards": [Named("refuse", lambda execution: "not today")]}],
    ids=["policy", "guard"],
)
async def test_a_refused_call_has_no_checkpoint(parts):
    """POL-14, POL-15: whether a policy denies it or a guard has a reason."""
    scene = Scene(**parts)
    async with scene.house.opened():
        session = await scene.session()
        assert await scene.execute(session) == ToolResult.error("DENIED", "not today")
        assert (scene.order, scene.flushes) == ([], [])


async def test_of_a_call_cancelled_before_it_begins_nobody_is_asked():
    """POL-16: neither policies nor guards nor middleware, and nothing is flushed."""
    asked: list[str] = []

    async def policy(execution: ToolExecution) -> Deny:
        asked.append("policy")
        return Deny("no")

    def guard(execution: ToolExecution) -> str:
        asked.append("guard")
        return "no"

    async def middleware(execution: ToolExecution, call_next: Execute) -> ToolResult:
        asked.append("middleware")
        return await call_next(execution)

    scene = Scene(
        policies=[Named("policy", policy)],
        guards=[Named("guard", guard)],
        tool_above=[Named("middleware", middleware)],
    )
    signal = CancelSignal()
    signal.cancel()
    async with scene.house.opened():
        session = await scene.session()
        assert await scene.execute(session, signal=signal) == ABD
        assert (scene.order, scene.flushes, asked) == ([], [], [])


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"name": "nothing"}, "UNKNOWN_TOOL"), ({"arguments": '{"count": "many"}'}, "INVALID_ARGUMENTS")],
    ids=["unknown tool", "wrong arguments"],
)
async def test_a_call_that_cannot_be_made_has_no_checkpoint(asked, code):
    """POL-17: its tool is unknown, or its arguments are against the schema."""
    scene = Scene()
    async with scene.house.opened():
        session = await scene.session()
        result = await scene.execute(session, **asked)
        assert (result.failure.code, scene.order, scene.flushes) == (code, [], [])


async def test_a_session_released_before_its_call_is_missed():
    """POL-18: the result says that it is not live, and the body is not entered."""
    scene = Scene()
    async with scene.house.opened():
        session = await scene.session()
        await scene.house.sessions.release(session)
        result = await scene.execute(session)
        assert result.failure.code == "CHECKPOINT_FAILED"
        assert "not live" in result.failure.message
        assert "body c1" not in scene.order


async def test_each_call_from_above_runs_the_checkpoint_and_the_body_again():
    """POL-40: middleware above that calls on twice: two flushes, two bodies of one call id, one result."""

    async def twice(execution: ToolExecution, call_next: Execute) -> ToolResult:
        await call_next(execution)
        return await call_next(execution)

    scene = Scene(call("act", {}, id="c1"), say("fine"), tool_above=[Named("twice", twice)])
    async with scene.house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert scene.flushes == ["request", "tool", "tool", "post-step", "request", "post-step", "final"]
        assert [entry for entry in scene.order if entry.startswith("body")] == ["body c1", "body c1"]
        assert results(agent.session) == [("c1", "done")]


async def test_a_failed_checkpoint_of_one_call_leaves_its_sibling_alone():
    """POL-46: of two parallel calls only the first one's flush fails: the second runs, and the turn goes on to C3."""
    first_failed = Gate()

    async def wait_for_the_first(execution: ToolExecution) -> Any:
        if execution.call_id == "c2":
            await first_failed()
        return Allow()

    scene = Scene(
        [call("act", {}, id="c1"), call("act", {}, id="c2")],
        say("half of it"),
        policies=[Named("wait", wait_for_the_first)],
    )
    async with scene.house.agent() as agent:
        at(agent.session, "tool/call", lambda: scene.store.next("append", FailBefore(DISK)))
        at(agent.session, "tool/result", first_failed.open)
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert results(agent.session) == [("c1", "CHECKPOINT_FAILED"), ("c2", "done")]
        assert [entry for entry in scene.order if entry.startswith("body")] == ["body c2"]
        assert scene.store.reasons == ["request", "tool", "tool", "post-step", "request", "post-step", "final"]
        assert (await scene.store.inner.read("s")).events == agent.session.events


async def test_a_store_that_heals_takes_the_backlog_with_the_next_checkpoint():
    """POL-47: C2 fails, C3 writes everything; the next request shows the error, and the turn completes."""
    scene = Scene(call("act", {}, id="c1"), say("I see"))
    async with scene.house.agent() as agent:
        at(agent.session, "tool/call", lambda: scene.store.always("append", FailBefore(DISK)))
        at(agent.session, "tool/result", scene.store.heal)
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"),
            *("assistant/message", "tool/call", "tool/result", "step/end"),
            *("step/start", "chunk*", "assistant/message", "step/end", "turn/end{completed}"),
        ]
        told = scene.house.adapter.requests[1].messages[-1]
        assert (told.is_error, told.text) == (True, "Error: disk unavailable")  # type: ignore[union-attr]
        # The batch that failed is repeated as it was, and what came later follows in one of its own.
        assert scene.store.reasons == ["request", "tool", "post-step", "request", "post-step", "final"]
        assert (await scene.store.inner.read("s")).events == agent.session.events
        assert is_balanced(agent.session)


async def test_a_cancel_wins_over_a_failed_flush():
    """POL-48: the call was not dispatched because it was cancelled, whatever became of the flush."""
    scene, signal = Scene(), CancelSignal()
    async with scene.house.opened():
        session = await scene.session()
        held = scene.store.hold("append", then=DISK)
        running = asyncio.create_task(scene.execute(session, signal=signal))
        await held.reached()
        signal.cancel()
        held.open()
        assert await running == ABD
        assert scene.order == ["append", "append failed"]


@virtual_time
async def test_the_flush_does_not_count_as_time_of_the_tool():
    """POL-49: neither for the tool's own timeout nor for middleware below the checkpoint that bounds the body."""

    async def timeout(execution: ToolExecution, call_next: Execute) -> ToolResult:
        async with asyncio.timeout(1):
            return await call_next(execution)

    scene = Scene(timeout_s=1, tool_below=[Named("timeout", timeout)])
    async with scene.house.opened():
        session = await scene.session()
        held = scene.store.hold("append")
        running = asyncio.create_task(scene.execute(session))
        await held.reached()
        await asyncio.sleep(10)
        held.open()
        assert await running == ToolResult("done")
        assert scene.order == ["append", "append done", "body c1"]
