"""How the calls of one step are scheduled: started in model order, perhaps overlapping, answered in model order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.llm.scripted import call, say
from app.middleware import Named
from app.session.errors import ConfigurationError
from app.tools.schema import tool
from app.tools.types import Allow, Deny, ToolExecution, ToolResult
from tests.support.bodies import Bodies, calls
from tests.support.house import House, types
from tests.support.watching import calls_and_results, data_of, is_balanced, results


async def test_parallel_safe_bodies_all_start_before_any_ends():
    """SCH-01: three neighbouring calls that are parallel safe overlap."""
    bodies = Bodies("c1", "c2", "c3")
    house = House(steps=[calls("safe c1", "safe c2", "safe c3"), say("done")], tools=[bodies.safe])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2", "c3")
        assert bodies.order == ["c1 starts", "c2 starts", "c3 starts"]
        bodies.let_go("c1", "c2", "c3")
        assert (await agent.wait(prompt)).reason == "completed"
        assert results(agent.session) == [("c1", "c1"), ("c2", "c2"), ("c3", "c3")]


async def test_an_exclusive_call_overlaps_with_nothing():
    """SCH-02: safe, exclusive, safe are three groups: each ends before the next begins."""
    bodies = Bodies("c1", "c2", "c3", "c4")
    house = House(
        steps=[calls("safe c1", "safe c2", "alone c3", "safe c4"), say("done")], tools=[bodies.safe, bodies.alone]
    )
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2")
        bodies.let_go("c2", "c1")
        await bodies.started("c3")
        bodies.let_go("c3")
        await bodies.started("c4")
        bodies.let_go("c4")
        await agent.wait(prompt)
        assert bodies.order == [
            *("c1 starts", "c2 starts", "c2 ends", "c1 ends"),
            *("c3 starts", "c3 ends", "c4 starts", "c4 ends"),
        ]
        assert calls_and_results(agent.session) == [
            *("call c1", "call c2", "result c1", "result c2"),
            *("call c3", "result c3", "call c4", "result c4"),
        ]


async def test_at_most_so_many_bodies_run_and_calls_follow_results_in_order():
    """SCH-05: at most two of four, ending in order: each further call is recorded once a result is."""
    bodies = Bodies("c1", "c2", "c3", "c4")
    house = House(
        steps=[calls("safe c1", "safe c2", "safe c3", "safe c4"), say("done")],
        tools=[bodies.safe],
        max_parallel_tools=2,
    )
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2")
        for ending, next_one in (("c1", "c3"), ("c2", "c4")):
            bodies.let_go(ending)
            await bodies.started(next_one)
        bodies.let_go("c3")
        bodies.let_go("c4")
        await agent.wait(prompt)
        assert calls_and_results(agent.session) == [
            *("call c1", "call c2", "result c1", "call c3"),
            *("result c2", "call c4", "result c3", "result c4"),
        ]
        assert bodies.most_at_once == 2


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_number_of_parallel_tools_that_is_none_is_refused(number):
    """SCH-06: the runtime does not start with it, and says which setting it is."""
    with pytest.raises(ConfigurationError) as refused:
        House(max_parallel_tools=number)
    assert "max_parallel_tools" in str(refused.value)


async def test_policies_of_a_group_are_asked_in_model_order_and_never_overlap():
    """SCH-09: although the bodies of the group overlap."""
    order: list[str] = []
    bodies = Bodies("c1", "c2", "c3")

    async def think(execution: ToolExecution) -> Allow:
        order.append(f"{execution.call_id} asked")
        for _ in range(5):
            await asyncio.sleep(0)  # whoever overlapped would get its turn here
        order.append(f"{execution.call_id} answered")
        return Allow()

    house = House(
        steps=[calls("safe c1", "safe c2", "safe c3"), say("done")],
        tools=[bodies.safe],
        policies=[Named("think", think)],
    )
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2", "c3")
        bodies.let_go("c1", "c2", "c3")
        await agent.wait(prompt)
        assert order == [
            *("c1 asked", "c1 answered", "c2 asked", "c2 answered"),
            *("c3 asked", "c3 answered"),
        ]


async def test_a_refused_call_of_a_group_has_its_result_in_its_place():
    """SCH-11: its body is not entered, its siblings are, and the results stand in model order."""

    async def refuse(execution: ToolExecution) -> Allow | Deny:
        return Deny("not this one") if execution.call_id == "c2" else Allow()

    bodies = Bodies("c1", "c3")
    house = House(
        steps=[calls("safe c1", "safe c2", "safe c3"), say("done")],
        tools=[bodies.safe],
        policies=[Named("refuse", refuse)],
    )
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c3")
        bodies.let_go("c3", "c1")
        await agent.wait(prompt)
        assert bodies.order == ["c1 starts", "c3 starts", "c3 ends", "c1 ends"]
        assert results(agent.session) == [("c1", "c1"), ("c2", "DENIED"), ("c3", "c3")]
        assert calls_and_results(agent.session) == [
            *("call c1", "call c2", "call c3", "result c1", "result c2", "result c3"),
        ]


def raises(arguments: Any) -> bool:
    raise RuntimeError("cannot tell")


@pytest.mark.parametrize("rule", [raises, lambda arguments: 1, lambda arguments: "yes"], ids=["raises", "1", "yes"])
async def test_only_a_clear_yes_lets_a_call_overlap(rule):
    """SCH-12: a rule that raises or answers anything but True makes the call exclusive."""
    bodies = Bodies()
    unclear = tool(bodies.safe.function, name="unclear", parallel_safe=rule)
    house = House(
        steps=[calls("safe c1", "unclear c2", "unclear c3", "safe c4"), say("done")], tools=[bodies.safe, unclear]
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert bodies.most_at_once == 1
        assert calls_and_results(agent.session) == [
            *("call c1", "result c1", "call c2", "result c2", "call c3", "result c3", "call c4", "result c4"),
        ]


async def test_a_call_of_an_unknown_tool_is_exclusive():
    """SCH-12: it waits for the calls before it, and those after it wait for its result."""
    bodies = Bodies()
    house = House(steps=[calls("safe c1", "nothing c2", "safe c3"), say("done")], tools=[bodies.safe])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert calls_and_results(agent.session) == [
            *("call c1", "result c1", "call c2", "result c2", "call c3", "result c3"),
        ]
        assert results(agent.session) == [("c1", "c1"), ("c2", "UNKNOWN_TOOL"), ("c3", "c3")]


async def test_arguments_that_are_no_json_are_kept_as_they_came():
    """SCH-13: the call is recorded with the model's raw text, and answered INVALID_ARGUMENTS."""
    bodies = Bodies()
    house = House(steps=[call("safe", '{"a": ', id="c1"), say("done")], tools=[bodies.safe])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert [data["arguments"] for data in data_of(agent.session, "tool/call")] == ['{"a": ']
        assert results(agent.session) == [("c1", "INVALID_ARGUMENTS")]
        assert bodies.order == []


async def test_no_arguments_are_an_empty_object():
    """SCH-14: a call whose arguments are empty text gives the tool `{}`; the text is kept empty."""
    given: list[Any] = []

    @tool
    async def look(execution: ToolExecution) -> str:
        given.append(execution.arguments)
        return "ok"

    house = House(steps=[call("look", "", id="c1"), say("done")], tools=[look])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert given == [{}]
        assert [data["arguments"] for data in data_of(agent.session, "tool/call")] == [""]
        assert results(agent.session) == [("c1", "ok")]


async def test_one_tool_overlaps_for_some_arguments_and_not_for_others():
    """SCH-15: `parallel_safe` is asked with the arguments of each call."""
    bodies = Bodies("c1", "c2")
    file = tool(bodies.safe.function, name="file", parallel_safe=lambda arguments: arguments["mode"] == "read")
    modes = ["read", "read", "write", "write", "read"]
    parts = [call("file", {"mode": mode}, id=f"c{place}") for place, mode in enumerate(modes, start=1)]
    house = House(steps=[parts, say("done")], tools=[file])
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1", "c2")
        bodies.let_go("c1", "c2")
        await agent.wait(prompt)
        assert bodies.order == [
            *("c1 starts", "c2 starts", "c1 ends", "c2 ends"),
            *("c3 starts", "c3 ends", "c4 starts", "c4 ends", "c5 starts", "c5 ends"),
        ]


async def test_a_failing_scheduler_leaves_no_call_open():
    """LOOP-44: the running body is awaited, what has a result keeps it, and the rest is told as far as it is known."""
    bodies = Bodies("c1")
    house = House(
        steps=[calls("safe c1", "safe c2", "safe c3"), say("next")], tools=[bodies.safe], max_parallel_tools=2
    )
    dispatch = house.tool_service.dispatch

    async def break_down(execution: ToolExecution) -> ToolResult:
        if execution.call_id == "c2":
            raise RuntimeError("a bug in the scheduler")
        return await dispatch(execution)

    house.tool_service.dispatch = break_down  # type: ignore[method-assign]
    async with house.agent() as agent:
        prompt = agent.send("go")
        await bodies.started("c1")
        bodies.let_go("c1")
        outcome = await agent.wait(prompt)
        assert bodies.order == ["c1 starts", "c1 ends"]
        assert outcome.error == {"code": "INTERNAL", "message": "RuntimeError: a bug in the scheduler", "step": 1}
        assert calls_and_results(agent.session) == ["call c1", "call c2", "result c1", "result c2", "result c3"]
        assert results(agent.session) == [("c1", "c1"), ("c2", "TOOL_OUTCOME_UNKNOWN"), ("c3", "TOOL_NOT_STARTED")]
        assert is_balanced(agent.session)
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error INTERNAL}"]
        assert (await agent.wait(agent.send("again"))).reason == "completed"
