"""What comes of a body: its value, its own error, its timeout, a cancel; and what has to stop the process does."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.session.values import encode
from app.tools.schema import tool
from app.tools.types import Execute, ToolError, ToolExecution, ToolResult
from tests.unit.tools.calls import call, checkpoint, failure, service

MAY_HAVE = "; it may have taken effect"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Strange(BaseException):
    """Neither an Exception nor one of those that stop the process."""


def raising(error: BaseException, *, sync: bool) -> Callable[..., Any]:
    async def act() -> None:
        raise error

    def act_in_thread() -> None:
        raise error

    return tool(act_in_thread if sync else act, name="act")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolError("NO_STOCK", "none left"), ("NO_STOCK", "none left")),
        (ToolError("", "none left"), ("TOOL_FAILED", "none left")),
        (ToolError("X" * 201, "none left"), ("TOOL_FAILED", "none left")),
        (ValueError("bad"), ("TOOL_FAILED", "bad")),
        (ValueError(), ("TOOL_FAILED", "ValueError")),
        (ValueError("\udc81\x00"), ("TOOL_FAILED", "\udc81\x00")),
        (Silent(), ("TOOL_FAILED", "Silent")),
        (TimeoutError("its own"), ("TOOL_FAILED", "its own")),
        (ExceptionGroup("two", [ValueError("a"), OSError("b")]), ("TOOL_FAILED", "two (2 sub-exceptions)")),
        (BaseExceptionGroup("one", [asyncio.CancelledError()]), ("TOOL_FAILED", "one (1 sub-exception)")),
        (asyncio.CancelledError(), ("TOOL_FAILED", "CancelledError")),
        (asyncio.CancelledError("said so"), ("TOOL_FAILED", "said so")),
        (StopIteration("over"), ("TOOL_FAILED", "coroutine raised StopIteration")),
        (Strange("odd"), ("TOOL_FAILED", "odd")),
    ],
    ids=repr,
)
async def test_what_a_body_raises_is_a_result(error: BaseException, expected: tuple[str, str], sync: bool) -> None:
    """PIP-05, PIP-06, CAN-36: its own code, or a failure with a message that is safe to record."""
    assert failure(await service(raising(error, sync=sync)).execute(call("act"))) == expected


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_stops_the_process_passes_also_out_of_a_thread(error: BaseException, sync: bool) -> None:
    async def main() -> ToolResult:
        return await service(raising(error, sync=sync)).execute(call("act"))

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error


@pytest.mark.parametrize("sync", [False, True])
def test_a_group_that_holds_what_stops_the_process_passes(sync: bool) -> None:
    error = BaseExceptionGroup("both", [ValueError(), KeyboardInterrupt()])

    async def main() -> ToolResult:
        return await service(raising(error, sync=sync)).execute(call("act"))

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.value is error


# -- values ----------------------------------------------------------------------------------------


async def test_a_value_that_cannot_be_recorded_is_told_with_path_and_that_the_tool_ran() -> None:
    """PIP-04, PIP-25, VAL-08"""

    def typed() -> int:
        return "five"  # type: ignore[return-value]  # the fault itself

    def untyped() -> Any:
        return {"rate": [1.0, float("nan")]}

    begin = "the tool ran, but its result cannot be recorded: "
    problem = 'at "": Input should be a valid integer, unable to parse string as an integer'
    assert failure(await service(typed).execute(call("typed"))) == ("INVALID_TOOL_OUTPUT", begin + problem)
    assert failure(await service(untyped).execute(call("untyped"))) == (
        "INVALID_TOOL_OUTPUT",
        begin + 'at "/rate/1": NaN',
    )


@pytest.mark.parametrize("megabytes", [5, 64, 300])
async def test_a_result_over_the_limit_is_an_error_that_says_the_tool_ran(megabytes: int) -> None:
    """BIG-02: told with size and limit; the body is run once."""
    size = megabytes * 1024 * 1024
    runs = []

    def act() -> str:
        runs.append(1)
        return "x" * (size - 2)

    assert failure(await service(act).execute(call("act"))) == (
        "RESULT_TOO_LARGE",
        f"the tool ran, but its result cannot be recorded: it has {size} bytes, the limit is 4194304",
    )
    assert runs == [1]


async def test_a_result_at_the_limit_is_kept() -> None:
    def act(n: int) -> str:
        return "é" * n  # six bytes each, in quotes

    tools = service(act, max_result_bytes=602)
    assert await tools.execute(call("act", '{"n":100}')) == ToolResult("é" * 100)
    assert failure(await tools.execute(call("act", '{"n":101}')))[0] == "RESULT_TOO_LARGE"


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\udc81", "\x00"])
async def test_an_error_text_over_the_limit_is_cut_and_says_so(character: str) -> None:
    """BIG-02: what is left, the notice included, fits."""
    stored = len(encode(character)) - 2
    text = character * 10_000
    code, message = failure(
        await service(raising(ValueError(text), sync=False), max_result_bytes=1000).execute(call("act"))
    )
    kept, notice = message[: message.index(" [")], message[message.index(" [") :]
    assert (code, notice) == (
        "TOOL_FAILED",
        f" [cut here: the message has {10_000 * stored + 2} bytes, the limit is 1000]",
    )
    assert set(kept) == {character}
    assert 1000 - stored < len(encode(message)) <= 1000


async def test_what_the_tool_does_to_its_value_afterwards_is_not_seen() -> None:
    shared: dict[str, Any] = {"n": [1]}

    def act():  # nothing declared: the value is taken as it is
        return shared

    result = await service(act).execute(call("act"))
    shared["n"].append(object())
    assert result == ToolResult({"n": [1]})


# -- timeouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ("side_effect", "tool call timed out after 0.01 s" + MAY_HAVE),
        ("idempotent", "tool call timed out after 0.01 s" + MAY_HAVE),
        ("read_only", "tool call timed out after 0.01 s"),
    ],
)
async def test_an_async_body_over_its_timeout_is_cancelled_and_awaited_to_its_end(effects: Any, message: str) -> None:
    """PIP-23: the timeout is kept though the call is cancelled afterwards."""
    ended = []

    async def act(execution: ToolExecution) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            execution.signal.cancel()
            await asyncio.sleep(0)
            ended.append("ended")

    made = tool(act, effects=effects, timeout_s=0.01)
    assert failure(await service(made).execute(call("act"))) == ("TOOL_TIMEOUT", message)
    assert ended == ["ended"]


@pytest.mark.parametrize("instead", [7, ValueError("cleaning up")])
async def test_a_timeout_stays_one_whatever_the_body_makes_of_it(instead: Any) -> None:
    async def act() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if isinstance(instead, ValueError):
                raise instead from None
        return 7

    tools = service(act, default_timeout_s=0.01)
    assert failure(await tools.execute(call("act")))[0] == "TOOL_TIMEOUT"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_tools_own_timeout_goes_before_the_default() -> None:
    async def act() -> int:
        await asyncio.sleep(0.05)
        return 1

    assert await service(tool(act, timeout_s=60), default_timeout_s=0.001).execute(call("act")) == ToolResult(1)


async def test_a_stuck_thread_times_out_at_once_and_its_late_value_is_ignored() -> None:
    """PIP-24: the thread waits for what the event loop does only afterwards, so the loop was not held up."""
    release, left = threading.Event(), threading.Event()

    def act() -> int:
        release.wait()
        left.set()
        return 1

    result = await service(tool(act, timeout_s=0.01)).execute(call("act"))
    assert not left.is_set()
    release.set()
    await asyncio.to_thread(left.wait)
    assert failure(result) == ("TOOL_TIMEOUT", "tool call timed out after 0.01 s" + MAY_HAVE)


def test_a_thread_that_ends_after_its_loop_is_closed_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release, unhandled = threading.Event(), list[object]()
    threads: concurrent.futures.Future[threading.Thread] = concurrent.futures.Future()
    monkeypatch.setattr(threading, "excepthook", unhandled.append)

    def act() -> None:
        threads.set_result(threading.current_thread())
        release.wait()

    result = asyncio.run(service(tool(act, timeout_s=0.01)).execute(call("act")))
    assert failure(result)[0] == "TOOL_TIMEOUT"
    thread = threads.result()
    assert thread.daemon
    release.set()
    thread.join()
    assert unhandled == []


async def test_only_the_bodys_time_counts() -> None:
    """POL-49: neither a slow checkpoint nor a slow policy is a timeout of the tool."""

    async def slow() -> None:
        await asyncio.sleep(0.05)

    async def above(execution: ToolExecution, call_next: Execute) -> ToolResult:
        return await call_next(execution)

    async def act() -> int:
        return 1

    tools = service(tool(act, timeout_s=0.01), middleware=[checkpoint(slow), above])
    assert await tools.execute(call("act")) == ToolResult(1)


# -- the signal ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effects", "message"),
    [
        ("side_effect", "tool call aborted after it had started" + MAY_HAVE),
        ("idempotent", "tool call aborted after it had started" + MAY_HAVE),
        ("read_only", "tool call aborted"),
    ],
)
async def test_a_body_is_awaited_though_the_signal_is_set_and_its_value_becomes_aborted(
    effects: Any, message: str
) -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    async def act() -> int:
        entered.set()
        await gate.wait()
        return 1

    execution = call("act")
    running = asyncio.create_task(service(tool(act, effects=effects)).execute(execution))
    await entered.wait()
    execution.signal.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    gate.set()
    assert failure(await running) == ("ABORTED", message)


@pytest.mark.parametrize("sync", [False, True])
async def test_a_body_that_raises_after_the_signal_keeps_its_own_error(sync: bool) -> None:
    """CAN-20"""
    entered = threading.Event()

    async def act(execution: ToolExecution) -> None:
        entered.set()
        await execution.signal.wait()
        raise ToolError("STOPPED", "half way")

    def act_in_thread(execution: ToolExecution) -> None:
        entered.set()
        while not execution.signal.is_cancelled:
            threading.Event().wait(0.001)
        raise ToolError("STOPPED", "half way")

    execution = call("act")
    running = asyncio.create_task(service(tool(act_in_thread if sync else act, name="act")).execute(execution))
    await asyncio.to_thread(entered.wait)
    execution.signal.cancel()
    assert failure(await running) == ("STOPPED", "half way")


# -- the task --------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallows", [False, True])
async def test_cancelling_the_callers_task_cancels_the_body_and_is_no_result(swallows: bool) -> None:
    entered, ended = asyncio.Event(), []

    async def act() -> int:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            if not swallows:
                raise
        return 1

    running = asyncio.create_task(service(act).execute(call("act")))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["cancelled"]


async def test_cancelling_the_callers_task_while_a_policy_thinks_is_no_refusal() -> None:
    asked = asyncio.Event()

    async def slow(execution: ToolExecution) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async def act() -> None: ...

    running = asyncio.create_task(service(act, policies=[slow]).execute(call("act")))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
