"""Calls that a body makes of other tools: in order, with ids of their own, recorded, and none left behind."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.session.errors import AgentClosed, UnstorableValue
from app.tools.schema import tool
from app.tools.types import Allow, Deny, Execute, ToolError, ToolExecution, ToolResult
from tests.unit.tools.calls import ABD, call, checkpoint, failure, in_session, service, session_with_open_calls


def add(a: int, b: int) -> int:
    return a + b


def outer(body: Callable[[ToolExecution], Any], **declared: Any) -> Any:
    """A tool named `outer` with this body."""

    async def run(execution: ToolExecution) -> Any:
        return await body(execution)

    return tool(run, name="outer", **declared)


async def test_nested_calls_run_one_after_the_other_and_are_all_the_log_has_of_them() -> None:
    """PIP-21: ids, parent, records, policies and guards asked, one checkpoint in all."""
    order: list[str] = []

    async def policy(execution: ToolExecution) -> Allow | Deny:
        order.append(f"policy {execution.call_id}")
        return Allow()

    def guard(execution: ToolExecution) -> str | None:
        order.append(f"guard {execution.call_id}")
        return "not minus" if (execution.arguments or {}).get("a") == -1 else None

    async def flush() -> None:
        order.append("flush")

    async def watch(execution: ToolExecution, call_next: Execute) -> ToolResult:
        order.append(f"middleware {execution.call_id}")
        assert (execution.parent is None) is (execution.call_id == "c1")
        return await call_next(execution)

    async def body(execution: ToolExecution) -> list[Any]:
        first = execution.execute_nested("add", {"a": 1, "b": 2})
        second = execution.execute_nested("add", {"a": -1, "b": 2})
        results = await asyncio.gather(first, second)
        return [results[0].value, failure(results[1])[0]]

    session = session_with_open_calls([("c1", "outer", "{}")])
    before = len(session)
    tools = service(outer(body), add, policies=[policy], guards=[guard], middleware=[checkpoint(flush), watch])
    assert await tools.execute(in_session(session, "outer")) == ToolResult([3, "DENIED"])
    assert order == [
        *("policy c1", "guard c1", "flush", "middleware c1"),
        *("policy c1:1", "guard c1:1", "middleware c1:1"),
        *("policy c1:2", "guard c1:2"),
    ]
    assert [(event.type, event.data) for event in session.events_from(before)] == [
        (
            "tool/nested",
            {
                "turn": 1,
                "step": 1,
                "parent_call_id": "c1",
                "call_id": "c1:1",
                "name": "add",
                "arguments": '{"a":1,"b":2}',
                "is_error": False,
            },
        ),
        (
            "tool/nested",
            {
                "turn": 1,
                "step": 1,
                "parent_call_id": "c1",
                "call_id": "c1:2",
                "name": "add",
                "arguments": '{"a":-1,"b":2}',
                "is_error": True,
                "error": {"code": "DENIED", "message": "not minus"},
            },
        ),
    ]


async def test_a_nested_call_inherits_what_it_belongs_to() -> None:
    seen: list[ToolExecution] = []

    def look(execution: ToolExecution) -> None:
        seen.append(execution)

    async def body(execution: ToolExecution) -> None:
        await execution.execute_nested("look", {})
        seen.append(execution)

    session = session_with_open_calls([("c1", "outer", "{}")])
    sent: list[tuple[Any, str]] = []

    def accept(content: Any, placement: str) -> str:
        sent.append((content, placement))
        return "m2"

    await service(outer(body), look).execute(in_session(session, "outer", accept=accept))
    inner, parent = seen
    assert inner.parent is parent
    assert (inner.session, inner.turn, inner.step, inner.signal) == (session, 1, 1, parent.signal)
    assert (inner.inject("context"), sent) == ("m2", [("context", "context")])
    assert (inner.session_id, inner.epoch) == ("s1", 1)


async def test_a_nested_call_of_a_nested_call_is_recorded_under_the_call_that_the_log_knows() -> None:
    async def middle(execution: ToolExecution) -> int:
        return (await execution.execute_nested("add", {"a": 1, "b": 1})).value  # type: ignore[no-any-return]

    async def body(execution: ToolExecution) -> int:
        return (await execution.execute_nested("middle", {})).value  # type: ignore[no-any-return]

    session = session_with_open_calls([("c1", "outer", "{}")])
    before = len(session)
    assert await service(outer(body), middle, add).execute(in_session(session, "outer")) == ToolResult(2)
    recorded = [event.data for event in session.events_from(before)]
    assert [(data["parent_call_id"], data["call_id"], data["name"]) for data in recorded] == [
        ("c1", "c1:1:1", "add"),
        ("c1", "c1:1", "middle"),
    ]


async def test_when_the_body_returns_the_waiting_call_is_cancelled_and_the_running_one_awaited() -> None:
    """PIP-22: only then is the outer result taken; a later call raises."""
    order: list[str] = []
    gate, entered = asyncio.Event(), asyncio.Event()
    asked: list[asyncio.Task[ToolResult]] = []
    executions: list[ToolExecution] = []

    async def slow(name: str) -> None:
        order.append(f"{name} begins")
        entered.set()
        await gate.wait()
        order.append(f"{name} ends")

    async def body(execution: ToolExecution) -> int:
        executions.append(execution)
        for name in ("first", "second"):
            asked.append(asyncio.ensure_future(execution.execute_nested("slow", {"name": name})))
        await entered.wait()
        return 7

    session = session_with_open_calls([("c1", "outer", "{}")])
    before = len(session)
    running = asyncio.create_task(service(outer(body), slow).execute(in_session(session, "outer")))
    await entered.wait()
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [task.cancelled() for task in asked] == [False, True]
    assert not running.done()
    gate.set()
    assert await running == ToolResult(7)
    assert order == ["first begins", "first ends"]
    assert asked[0].result() == ToolResult(None)
    assert [event.data["call_id"] for event in session.events_from(before)] == ["c1:1"]
    with pytest.raises(AgentClosed):
        await executions[0].execute_nested("slow", {"name": "third"})
    assert len(session) == before + 1


@pytest.mark.parametrize(
    ("ends", "code"), [(ToolError("OWN", "x"), "OWN"), (None, "TOOL_TIMEOUT")], ids=["raises", "times out"]
)
async def test_however_the_body_ends_its_running_call_is_awaited(ends: ToolError | None, code: str) -> None:
    """PIP-22: also when it raises, or is cancelled by its timeout while it waits for the nested call."""
    gate, entered, ended = asyncio.Event(), asyncio.Event(), []

    async def slow() -> None:
        entered.set()
        await gate.wait()
        ended.append("slow")

    async def body(execution: ToolExecution) -> None:
        nested = asyncio.ensure_future(execution.execute_nested("slow", {}))
        await entered.wait()
        if ends is not None:
            raise ends
        asyncio.get_running_loop().call_later(0.05, gate.set)
        await nested

    running = asyncio.create_task(service(outer(body, timeout_s=0.02), slow).execute(call("outer")))
    await entered.wait()
    if ends is not None:
        gate.set()
    assert failure(await running)[0] == code
    assert ended == ["slow"]


async def test_a_nested_call_after_a_cancel_is_aborted_before_dispatch_and_recorded() -> None:
    seen: list[ToolResult] = []

    async def body(execution: ToolExecution) -> None:
        execution.signal.cancel()
        seen.append(await execution.execute_nested("add", {"a": 1, "b": 2}))

    session = session_with_open_calls([("c1", "outer", "{}")])
    result = await service(outer(body), add).execute(in_session(session, "outer"))
    assert failure(result)[0] == "ABORTED"
    assert seen == [ABD]
    assert session.events[-1].data["error"]["code"] == "ABORTED_BEFORE_DISPATCH"


async def test_a_caller_that_stops_waiting_ends_a_waiting_call_and_not_a_running_one() -> None:
    gate, entered, ran = asyncio.Event(), asyncio.Event(), []

    async def slow(name: str) -> None:
        ran.append(name)
        entered.set()
        await gate.wait()

    async def body(execution: ToolExecution) -> None:
        first = asyncio.ensure_future(execution.execute_nested("slow", {"name": "first"}))
        second = asyncio.ensure_future(execution.execute_nested("slow", {"name": "second"}))
        await entered.wait()
        for task in (first, second):
            task.cancel()
        await asyncio.wait((first, second))
        gate.set()
        await execution.execute_nested("slow", {"name": "third"})

    session = session_with_open_calls([("c1", "outer", "{}")])
    before = len(session)
    assert await service(outer(body), slow).execute(in_session(session, "outer")) == ToolResult(None)
    assert ran == ["first", "third"]
    assert [event.data["call_id"] for event in session.events_from(before)] == ["c1:1", "c1:3"]


async def test_cancelling_the_task_around_all_of_them_ends_them_all() -> None:
    entered, ended = asyncio.Event(), []

    async def slow() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def body(execution: ToolExecution) -> None:
        await asyncio.gather(execution.execute_nested("slow", {}), execution.execute_nested("slow", {}))

    running = asyncio.create_task(service(outer(body), slow).execute(call("outer")))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["slow"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_the_task_while_the_last_nested_call_is_awaited_ends_that_call() -> None:
    entered, ended = asyncio.Event(), []

    async def slow() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def body(execution: ToolExecution) -> None:
        asked.append(asyncio.ensure_future(execution.execute_nested("slow", {})))
        await entered.wait()
        leaving.set()

    leaving = asyncio.Event()
    asked: list[asyncio.Task[ToolResult]] = []
    running = asyncio.create_task(service(outer(body), slow).execute(call("outer")))
    await leaving.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["slow"]
    await asyncio.wait(asked)
    assert asked[0].cancelled()


async def test_running_the_body_again_counts_the_ids_on() -> None:
    async def twice(execution: ToolExecution, call_next: Execute) -> ToolResult:
        if execution.parent is None:
            await call_next(execution)
        return await call_next(execution)

    async def body(execution: ToolExecution) -> None:
        await execution.execute_nested("add", {"a": 1, "b": 2})

    session = session_with_open_calls([("c1", "outer", "{}")])
    before = len(session)
    await service(outer(body), add, middleware=[twice]).execute(in_session(session, "outer"))
    assert [event.data["call_id"] for event in session.events_from(before)] == ["c1:1", "c1:2"]


async def test_only_an_async_body_can_make_nested_calls() -> None:
    def body(execution: ToolExecution) -> None:
        asyncio.run(execution.execute_nested("add", {"a": 1, "b": 2}))

    assert failure(await service(tool(body, name="outer"), add).execute(call("outer"))) == (
        "TOOL_FAILED",
        "tool 'outer' cannot make nested calls: only an async body can",
    )


async def test_a_nested_call_that_asks_its_outer_call_for_another_fails_instead_of_waiting_for_itself() -> None:
    async def back(execution: ToolExecution) -> None:
        assert execution.parent is not None
        await execution.parent.execute_nested("add", {"a": 1, "b": 2})

    async def body(execution: ToolExecution) -> list[str]:
        return list(failure(await execution.execute_nested("back", {})))

    assert await service(outer(body), back, add).execute(call("outer")) == ToolResult(
        ["TOOL_FAILED", "a nested call of 'outer' would wait for itself: use the execution it was given"]
    )


async def test_arguments_that_are_no_json_are_the_fault_of_the_body() -> None:
    async def body(execution: ToolExecution) -> str:
        with pytest.raises(UnstorableValue) as caught:
            await execution.execute_nested("add", {"a": {1}, "b": 2})
        return str(caught.value)

    assert await service(outer(body), add).execute(call("outer")) == ToolResult(
        "the value at '/a' cannot be stored: set"
    )


async def test_an_error_of_recording_reaches_the_body_that_made_the_call() -> None:
    async def record(data: object) -> None:
        raise OSError("disk unavailable")

    async def body(execution: ToolExecution) -> None:
        await execution.execute_nested("add", {"a": 1, "b": 2})

    execution = call("outer", turn=1, step=1, record=record)
    assert failure(await service(outer(body), add).execute(execution)) == ("TOOL_FAILED", "disk unavailable")
