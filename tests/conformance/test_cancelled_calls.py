"""Cancelling between a message that asks for calls and their results: every call is answered, each as it was."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from app.agent.step import Step
from app.llm.scripted import call, say
from app.messages import ToolMessage
from app.middleware import Named
from app.session.ownership import this_owner
from app.tools.schema import tool
from app.tools.types import Allow, Deny, ToolExecution
from tests.support.bodies import Bodies, calls
from tests.support.child import Child, mark
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.stores import Place, place_of
from tests.support.virtual_time import all_quiet, virtual_time
from tests.support.watching import at, calls_and_results, data_of, is_balanced, results, writes

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*", "assistant/message"]
ABORTED = ["step/end", "turn/end{aborted}"]
ABD = "ABORTED_BEFORE_DISPATCH"


class Told:
    """A listener that keeps each step it is told of, and whether that was cancelled by then."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, bool]] = []

    async def __call__(self, step: Step) -> None:
        self.steps.append((step.step, step.signal.is_cancelled))


async def test_calls_that_were_never_started_are_recorded_with_their_results():
    """CAN-13: an observer of the message cancels; the step gets its listeners, the signal set, and its checkpoint."""
    bodies, told = Bodies(), Told()
    house = House([calls("alone c1", "alone c2")], [bodies.alone], listeners_above=[Named("told", told)])
    async with house.agent() as agent:
        at(agent.session, "assistant/message", agent.cancel)
        last_when_told: list[str] = []
        for nth in (1, 2):
            at(agent.session, "tool/call", lambda: last_when_told.append(types(agent.session)[-1]), nth=nth)
        await agent.wait(agent.send("go"))
        assert types(agent.session) == [*OPEN, "tool/call", "tool/result", "tool/call", "tool/result", *ABORTED]
        assert last_when_told == ["tool/result", "tool/result"]  # one group each: no batch can end between the two
        assert calls_and_results(agent.session) == ["call c1", "result c1", "call c2", "result c2"]
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [
            {"code": ABD, "message": "tool call aborted before dispatch"}
        ] * 2
        assert bodies.order == []
        assert told.steps == [(1, True)]
        assert await writes(house.persistence) == ["request", "post-step", "final"]


async def test_a_body_that_cancels_its_own_turn():
    """CAN-14: it steers, cancels, returns: the steering is dropped, its value is not taken, the next call skipped."""
    told = Told()

    @tool
    async def act(execution: ToolExecution) -> str:
        execution.steer("faster")
        agent.cancel()
        return "done"

    house = House([[call("act", {}, id="c1"), call("act", {}, id="c2")]], [act], listeners_above=[Named("told", told)])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        await agent.wait_idle()
        assert types(agent.session) == [
            *(*OPEN, "tool/call", "inbox/accepted", "inbox/discarded", "tool/result"),
            *("tool/call", "tool/result", *ABORTED),
        ]
        assert results(agent.session) == [("c1", "ABORTED"), ("c2", ABD)]
        assert told.steps == [(1, True)]
        assert len(house.adapter.requests) == 1


async def test_cancelling_two_of_four_parallel_bodies_starts_no_other():
    """CAN-15: at most two at a time; both end, and all four calls and results stand in order."""
    bodies = Bodies("c1", "c2")
    house = House([calls("safe c1", "safe c2", "safe c3", "safe c4")], [bodies.safe], max_parallel_tools=2)
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2")
        agent.cancel()
        bodies.let_go("c2", "c1")
        await agent.wait(prompt)
        assert bodies.order == ["c1 starts", "c2 starts", "c2 ends", "c1 ends"]
        assert [name for name in calls_and_results(agent.session) if name.startswith("call")] == [
            *("call c1", "call c2", "call c3", "call c4")
        ]
        assert results(agent.session) == [("c1", "ABORTED"), ("c2", "ABORTED"), ("c3", ABD), ("c4", ABD)]


async def test_an_exclusive_call_behind_a_cancelled_group_is_not_started():
    """CAN-16: its body is not entered; it gets its pair."""
    bodies = Bodies("c1", "c2")
    house = House([calls("safe c1", "safe c2", "alone c3")], [bodies.safe, bodies.alone])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2")
        agent.cancel()
        bodies.let_go("c1", "c2")
        await agent.wait(prompt)
        assert bodies.order == ["c1 starts", "c2 starts", "c1 ends", "c2 ends"]
        assert calls_and_results(agent.session) == [
            *("call c1", "call c2", "result c1", "result c2", "call c3", "result c3")
        ]
        assert results(agent.session) == [("c1", "ABORTED"), ("c2", "ABORTED"), ("c3", ABD)]


async def test_cancelling_while_a_policy_thinks_starts_nobody():
    """CAN-18: the call it thinks about is aborted before dispatch, and so are its siblings; all get pairs."""
    held = Gate()

    async def think(execution: ToolExecution) -> Allow:
        await held()
        return Allow()

    bodies = Bodies()
    house = House([calls("safe c1", "safe c2", "safe c3")], [bodies.safe], policies=[Named("think", think)])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        held.open()
        await agent.wait(prompt)
        assert bodies.order == []
        assert calls_and_results(agent.session) == [
            *("call c1", "result c1", "call c2", "result c2", "call c3", "result c3")
        ]
        assert results(agent.session) == [("c1", ABD), ("c2", ABD), ("c3", ABD)]


@pytest.mark.parametrize(
    ("effects", "may_have_taken_effect"), [("side_effect", True), ("idempotent", True), ("read_only", False)]
)
@virtual_time
async def test_a_body_that_ignores_the_signal_is_waited_for(effects, may_have_taken_effect):
    """CAN-19: however long it takes; its result is ABORTED, and the text says what may be."""
    held = Gate()

    @tool(effects=effects)
    async def act() -> str:
        await held()
        return "done"

    house = House([call("act", {}, id="c1"), say("next")], [act])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        await all_quiet()
        assert (types(agent.session)[-1], agent.status) == ("tool/call", "running")
        held.open()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert results(agent.session) == [("c1", "ABORTED")]
        await agent.wait(agent.send("again"))
        message = house.adapter.requests[1].messages[2]
        assert isinstance(message, ToolMessage)
        assert message.text.startswith("Error: tool call aborted")
        assert ("may have taken effect" in message.text) is may_have_taken_effect


async def test_the_own_error_of_a_body_is_kept():
    """CAN-20: a body that raises after it saw the signal says why it stopped."""
    held = Gate()

    @tool
    async def act(execution: ToolExecution) -> str:
        held.reached.set()
        await execution.signal.wait()
        raise RuntimeError(f"stopped by {execution.signal.cause}")

    house = House([call("act", {}, id="c1")], [act])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [
            {"code": "TOOL_FAILED", "message": "stopped by user"}
        ]


async def test_a_refusal_after_the_cancel_is_kept():
    """CAN-21: a policy that denies although the turn was cancelled meanwhile has its say."""
    held = Gate()

    async def think(execution: ToolExecution) -> Deny:
        await held()
        return Deny("not on a Sunday")

    bodies = Bodies()
    house = House([calls("alone c1", "alone c2")], [bodies.alone], policies=[Named("think", think)])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await held.reached.wait()
        agent.cancel()
        held.open()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert results(agent.session) == [("c1", "DENIED"), ("c2", ABD)]
        assert data_of(agent.session, "tool/result")[0]["error"]["message"] == "not on a Sunday"
        assert bodies.order == []


@pytest.mark.parametrize(("number", "answered"), [(n, k) for n in (1, 2, 3) for k in (0, 1, 2) if k <= n])
async def test_the_next_prompt_of_a_cancelled_batch_is_one_that_vendors_take(number, answered):
    """CAN-35: cancelled after so many results of so many calls; this adapter would refuse unpaired calls."""
    bodies = Bodies()
    names = [f"c{place}" for place in range(1, number + 1)]
    house = House([calls(*(f"alone {name}" for name in names)), say("next")], [bodies.alone])
    async with house.agent() as agent:
        if answered == 0:
            at(agent.session, "assistant/message", agent.cancel)
        else:
            at(agent.session, "tool/result", agent.cancel, nth=answered)
        assert (await agent.wait(agent.send("go"))).reason == "aborted"
        assert is_balanced(agent.session)
        assert results(agent.session) == [(name, name if place < answered else ABD) for place, name in enumerate(names)]
        assert (await agent.wait(agent.send("again"))).reason == "completed"
        assert [message for message in house.adapter.requests[-1].messages if isinstance(message, ToolMessage)] == [
            ToolMessage(
                name, place >= answered, name if place < answered else "Error: tool call aborted before dispatch"
            )
            for place, name in enumerate(names)
        ]


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError("not now"), ExceptionGroup("two things", [ValueError("a"), OSError("b")])],
    ids=["CancelledError", "ExceptionGroup"],
)
async def test_an_unusual_error_of_a_body_is_a_failed_tool(error: BaseException):
    """CAN-36: a CancelledError that nobody asked for and a group of errors are results, and the turn goes on."""

    @tool
    async def act() -> Any:
        raise error

    house = House([call("act", {}, id="c1"), say("done")], [act])
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert results(agent.session) == [("c1", "TOOL_FAILED")]
        assert str(error) in data_of(agent.session, "tool/result")[0]["error"]["message"]


async def stop_in_a_body(kind: str, directory: str, error: str) -> None:
    """Run by a child: a tool's body ends the process, in the way that is named."""

    @tool
    async def act() -> str:
        mark("in the body")
        raise {"KeyboardInterrupt": KeyboardInterrupt(), "SystemExit": SystemExit(7)}[error]

    house = House([call("act", {}, id="c1")], [act], place_of(kind, directory).persistence(), this_owner())
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))


@pytest.mark.parametrize(("error", "code"), [("KeyboardInterrupt", -signal.SIGINT), ("SystemExit", 7)])
async def test_a_body_that_stops_the_process_stops_it(error: str, code: int, durable_place: Place):
    """CAN-37: the process ends the usual way, no result is made of it; on load the log is balanced."""
    with Child(f"{__name__}:stop_in_a_body", *durable_place.words, error) as child:
        child.wait_for("in the body")
        assert child.ended()[0] == code
    house = House([say("next")], persistence=durable_place.persistence())
    async with house.resumed(force=durable_place.force) as agent:
        assert types(agent.session) == [*OPEN, "tool/call", "tool/result", "step/end", "turn/end{interrupted}"]
        assert results(agent.session) == [("c1", "TOOL_OUTCOME_UNKNOWN")]
        assert (await agent.wait(agent.send("again"))).reason == "completed"
