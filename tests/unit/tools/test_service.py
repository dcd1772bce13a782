"""The phases of a call before and around its body: who is asked, in which order, and what each refusal says."""

import asyncio
from typing import Any

import pytest

from app.middleware import Named
from app.session import events as ev
from app.session.errors import PersistenceUnavailable, SessionFenced, SessionNotLive
from app.tools.schema import tool
from app.tools.types import Allow, Deny, Execute, ToolExecution, ToolResult
from tests.unit.tools.calls import (
    ABD,
    call,
    cancelled,
    checkpoint,
    failure,
    in_session,
    service,
    session_with_open_calls,
)


class Order:
    """Notes what happens; `entered` says whether a body was, `flushes` how many checkpoints were made."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def flush(self) -> None:
        self.seen.append("flush")

    async def policy(self, execution: ToolExecution) -> Allow | Deny:
        self.seen.append("policy")
        return Allow()

    def guard(self, execution: ToolExecution) -> str | None:
        self.seen.append("guard")
        return None

    async def outer(self, execution: ToolExecution, call_next: Execute) -> ToolResult:
        self.seen.append("middleware")
        return await call_next(execution)

    async def body(self, n: int = 0) -> int:
        self.seen.append("body")
        return n


def everything(order: Order, **parts: Any) -> Any:
    defaults: dict[str, Any] = {
        "policies": [order.policy],
        "guards": [order.guard],
        "middleware": [order.outer, checkpoint(order.flush)],
    }
    return service(tool(order.body, name="act"), **(defaults | parts))


async def test_the_phases_run_in_order() -> None:
    """PIP-01: resolve, validate, policies, guards, middleware, body, output."""
    order = Order()

    class Watched:
        name, description, input_schema = "act", "", {"type": "object"}
        effects, timeout_s, reconcile = "side_effect", None, None

        def is_parallel_safe(self, arguments: Any) -> bool:
            return False

        def validate(self, arguments: Any) -> Any:
            order.seen.append("validate")
            return arguments

        async def run(self, validated: Any, execution: ToolExecution) -> Any:
            return await order.body(validated["n"])

        def to_json(self, value: Any) -> Any:
            order.seen.append("output")
            return value

    tools = service(
        Watched(), policies=[order.policy], guards=[order.guard], middleware=[order.outer, checkpoint(order.flush)]
    )
    assert await tools.execute(call("act", '{"n":7}')) == ToolResult(7)
    assert order.seen == ["validate", "policy", "guard", "middleware", "flush", "body", "output"]


async def test_a_cancelled_call_asks_nobody() -> None:
    """POL-16: the signal is set already."""
    order = Order()
    assert await everything(order).execute(call("act", "not even JSON", signal=cancelled())) == ABD
    assert order.seen == []


@pytest.mark.parametrize(
    ("name", "arguments", "code", "message"),
    [
        ("gone", "{}", "UNKNOWN_TOOL", "there is no tool named 'gone'"),
        ("x\x00" * 250, "{}", "UNKNOWN_TOOL", "there is no tool named '" + "x\\x00" * 250 + "'"),
        (
            "act",
            '{"n": "x", "m": 1}',
            "INVALID_ARGUMENTS",
            (
                'the arguments do not fit: at "/n": Input should be a valid integer, unable to parse string as an '
                'integer; at "/m": Extra inputs are not permitted'
            ),
        ),
        (
            "act",
            "{n: 1}",
            "INVALID_ARGUMENTS",
            (
                "the arguments cannot be read as JSON: Expecting property name enclosed in double quotes: "
                "line 1 column 2 (char 1)"
            ),
        ),
        (
            "act",
            '{"n": 1e400}',
            "INVALID_ARGUMENTS",
            "the arguments cannot be read as JSON: the number 1e400 is beyond all floats",
        ),
        ("act", '{"n": NaN}', "INVALID_ARGUMENTS", "the arguments cannot be read as JSON: NaN is not JSON"),
        ("act", "[1]", "INVALID_ARGUMENTS", 'the arguments do not fit: at "": Input should be an object'),
    ],
)
async def test_what_cannot_be_run_is_refused_before_any_checkpoint(
    name: str, arguments: str, code: str, message: str
) -> None:
    """POL-17, PIP-03, SCH-13, VAL-10: unknown tools and unfit arguments."""
    order = Order()
    execution = call(name, arguments)
    assert failure(await everything(order).execute(execution)) == (code, message)
    assert order.seen == []
    assert execution.raw_arguments == arguments


async def test_empty_arguments_are_an_empty_object() -> None:
    """SCH-14"""
    given = []

    def act(execution: ToolExecution) -> None:
        given.append(execution.arguments)

    assert await service(act).execute(call("act", "")) == ToolResult(None)
    assert given == [{}]


async def test_the_last_of_equal_keys_counts_and_lone_surrogates_arrive() -> None:
    """VAL-10"""

    def act(text: str, execution: ToolExecution) -> list[Any]:
        return [text, execution.arguments]

    result = await service(act).execute(call("act", '{"text":"a","text":"\\udc81"}'))
    assert result == ToolResult(["\udc81", {"text": "\udc81"}])


async def test_a_validator_that_fails_in_its_own_way_is_a_refusal() -> None:
    class Broken:
        name, description, input_schema = "act", "", {"type": "object"}
        effects, timeout_s, reconcile = "side_effect", None, None

        def is_parallel_safe(self, arguments: Any) -> bool:
            return False

        def validate(self, arguments: Any) -> Any:
            return arguments["missing"]

        async def run(self, validated: Any, execution: ToolExecution) -> Any: ...

        def to_json(self, value: Any) -> Any: ...

    assert failure(await service(Broken()).execute(call("act"))) == (
        "INVALID_ARGUMENTS",
        "the arguments do not fit: KeyError: 'missing'",
    )


# -- policies and guards ---------------------------------------------------------------------------


async def test_the_first_denial_ends_the_list() -> None:
    """POL-14, PIP-07: no later policy, no guard, no checkpoint, no body."""
    order = Order()

    async def denies(execution: ToolExecution) -> Deny:
        return Deny("not on Sundays")

    tools = everything(order, policies=[order.policy, denies, order.policy])
    assert failure(await tools.execute(call("act"))) == ("DENIED", "not on Sundays")
    assert order.seen == ["policy"]


async def test_a_guards_reason_is_a_denial() -> None:
    """POL-15: the first reason wins, and there is no checkpoint."""
    order = Order()

    def no(execution: ToolExecution) -> str:
        return f"no {execution.arguments['n']}"

    tools = everything(order, guards=[order.guard, no, order.guard])
    assert failure(await tools.execute(call("act", '{"n":3}'))) == ("DENIED", "no 3")
    assert order.seen == ["policy", "guard"]


async def test_a_policy_or_guard_that_fails_or_gives_no_clear_answer_is_a_refusal() -> None:
    """PIP-11: it raises."""

    async def boom(execution: ToolExecution) -> Allow:
        raise KeyError("who")

    async def cancels(execution: ToolExecution) -> Allow:
        raise asyncio.CancelledError

    async def yes(execution: ToolExecution) -> Any:
        return True

    def sync(execution: ToolExecution) -> Any:
        return Allow()

    def bad(execution: ToolExecution) -> str:
        raise ValueError("guard")

    async def awaits(execution: ToolExecution) -> None: ...

    def false(execution: ToolExecution) -> Any:
        return False

    async def asked(**parts: Any) -> tuple[str, str]:
        order = Order()
        answer = failure(await everything(order, **parts).execute(call("act")))
        assert not {"flush", "body"} & set(order.seen)
        return answer

    begin = "failed, so the tool was not run:"
    assert await asked(policies=[boom]) == ("POLICY_FAILED", f"'boom' {begin} 'who'")
    assert await asked(policies=[cancels]) == ("POLICY_FAILED", f"'cancels' {begin} CancelledError")
    assert await asked(policies=[yes]) == ("POLICY_FAILED", f"'yes' {begin} it answered bool, not Allow or Deny")
    assert await asked(policies=[sync]) == (
        "POLICY_FAILED",
        f"'sync' {begin} object Allow can't be used in 'await' expression",
    )
    assert await asked(guards=[bad]) == ("POLICY_FAILED", f"'bad' {begin} guard")
    assert await asked(guards=[awaits]) == (
        "POLICY_FAILED",
        f"'awaits' {begin} it answered coroutine, not a reason or None",
    )
    assert await asked(guards=[false]) == ("POLICY_FAILED", f"'false' {begin} it answered bool, not a reason or None")


async def test_a_policy_cannot_change_what_runs() -> None:
    async def meddles(execution: ToolExecution) -> Allow:
        execution.arguments["text"] = "other"
        return Allow()

    def act(text: str) -> str:
        return text

    assert await service(act, policies=[meddles]).execute(call("act", '{"text":"given"}')) == ToolResult("given")


@pytest.mark.parametrize("answer", [Allow(), Deny("too late")])
async def test_a_policy_is_awaited_though_the_signal_is_set_and_its_refusal_is_kept(answer: Allow | Deny) -> None:
    """CAN-21: a denial after the cancel stays a denial; otherwise the call is aborted, and nobody else is asked."""
    order, gate, asked = Order(), asyncio.Event(), asyncio.Event()

    async def slow(execution: ToolExecution) -> Allow | Deny:
        asked.set()
        await gate.wait()
        return answer

    execution = call("act")
    running = asyncio.create_task(everything(order, policies=[slow, order.policy]).execute(execution))
    await asked.wait()
    execution.signal.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    gate.set()
    assert await running == (ABD if isinstance(answer, Allow) else ToolResult.error("DENIED", "too late"))
    assert order.seen == []


async def test_admission_and_dispatch_are_the_two_halves_of_execution() -> None:
    order = Order()
    tools, execution = everything(order), call("act", '{"n":2}')
    assert await tools.admit(execution) is None
    assert (order.seen, execution.arguments) == (["policy", "guard"], {"n": 2})
    assert await tools.dispatch(execution) == ToolResult(2)
    with pytest.raises(RuntimeError, match="was not admitted"):
        await tools.dispatch(call("act"))


async def test_earlier_calls_of_unknown_effect_are_known_to_guards_and_bodies() -> None:
    """KEY-03: a guard can deny on it; without a guard the body runs."""
    session = session_with_open_calls([("c1", "act", '{"n":1}')])
    later = [("c2", '{"n": 1.0}'), ("c3", '{"n":2}')]
    error = {"code": "TOOL_OUTCOME_UNKNOWN", "message": "."}
    session.append(ev.ToolResult(1, 1, "c1", len(session) - 1, True, error=error), ev.StepEnd(1, 1))

    def once(execution: ToolExecution) -> str | None:
        return f"look at {execution.earlier_unknown[0][0]} first" if execution.earlier_unknown else None

    seen = []

    def act(n: int, execution: ToolExecution) -> None:
        seen.append((execution.call_id, execution.earlier_unknown))

    for call_id, arguments in later:
        assert not (await service(act).execute(in_session(session, "act", arguments, call_id=call_id))).is_error
    assert seen == [("c2", (("c1", "TOOL_OUTCOME_UNKNOWN"),)), ("c3", ())]
    guarded = await service(act, guards=[once]).execute(in_session(session, "act", '{"n":1}', call_id="c4"))
    assert failure(guarded) == ("DENIED", "look at c1 first")


# -- checkpoint and lost sessions ------------------------------------------------------------------


async def test_a_failed_checkpoint_is_a_result_with_the_message_of_its_error() -> None:
    """POL-11: the body is not entered, and nothing is raised."""
    order = Order()
    error = PersistenceUnavailable("s1", "no route")

    async def flush() -> None:
        raise error

    tools = everything(order, middleware=[order.outer, checkpoint(flush)])
    assert failure(await tools.execute(call("act"))) == ("CHECKPOINT_FAILED", str(error))
    assert order.seen == ["policy", "guard", "middleware"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_cancelled_during_its_checkpoint_is_aborted_even_if_that_fails(fails: bool) -> None:
    """POL-48: aborted before dispatch, not a failed checkpoint."""
    order = Order()
    execution = call("act")

    async def flush() -> None:
        execution.signal.cancel()
        if fails:
            raise OSError("disk unavailable")

    assert await everything(order, middleware=[checkpoint(flush)]).execute(execution) == ABD
    assert order.seen == ["policy", "guard"]


async def test_a_checkpoint_that_finds_the_session_lost_says_so_though_the_loss_sets_the_signal() -> None:
    session = session_with_open_calls([("c1", "act", "{}")])
    execution = in_session(session, "act")

    async def flush() -> None:
        session.lost = SessionFenced("s1")
        execution.signal.cancel("fenced")
        raise session.lost

    order = Order()
    result = await everything(order, middleware=[checkpoint(flush)]).execute(execution)
    assert failure(result) == ("CHECKPOINT_FAILED", str(session.lost))
    assert order.seen == ["policy", "guard"]


async def test_no_body_is_entered_for_a_lost_or_released_session_whatever_the_policy() -> None:
    for error in (SessionFenced("s1"), SessionNotLive("s1")):
        order = Order()
        session = session_with_open_calls([("c1", "act", "{}")])
        if isinstance(error, SessionFenced):
            session.lost = error
        else:
            session.is_live = False
        result = await everything(order, middleware=[]).execute(in_session(session, "act"))
        assert failure(result) == ("CHECKPOINT_FAILED", str(error))
        assert "body" not in order.seen


async def test_no_body_is_entered_once_the_signal_is_set_inside_the_middleware() -> None:
    order = Order()

    async def cancels(execution: ToolExecution, call_next: Execute) -> ToolResult:
        execution.signal.cancel()
        return await call_next(execution)

    assert await everything(order, middleware=[checkpoint(order.flush), cancels]).execute(call("act")) == ABD
    assert order.seen == ["policy", "guard", "flush"]


# -- middleware ------------------------------------------------------------------------------------


async def test_a_middleware_that_raises_is_named_and_it_is_said_if_the_tool_had_run() -> None:
    """PIP-12"""

    async def early(execution: ToolExecution, call_next: Execute) -> ToolResult:
        raise KeyError("early")

    async def late(execution: ToolExecution, call_next: Execute) -> ToolResult:
        await call_next(execution)
        raise ValueError

    async def cancels(execution: ToolExecution, call_next: Execute) -> ToolResult:
        raise asyncio.CancelledError

    async def asked(middleware: Any) -> tuple[str, str]:
        return failure(await everything(Order(), middleware=[middleware]).execute(call("act")))

    after = "; the tool had run, it may have taken effect"
    assert await asked(early) == ("MIDDLEWARE_FAILED", "middleware 'early' failed: 'early'")
    assert await asked(late) == ("MIDDLEWARE_FAILED", "middleware 'late' failed: ValueError" + after)
    assert await asked(cancels) == ("MIDDLEWARE_FAILED", "CancelledError")
    reads = service(tool(Order().body, name="act", effects="read_only"), middleware=[late])
    assert failure(await reads.execute(call("act"))) == ("MIDDLEWARE_FAILED", "middleware 'late' failed: ValueError")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (ToolResult(3), ToolResult(3)),
        (ToolResult("4"), ToolResult(4)),
        (ToolResult.error("CACHED", "old"), ToolResult.error("CACHED", "old")),
        (
            ToolResult("x"),
            ToolResult.error(
                "INVALID_TOOL_OUTPUT",
                "the tool did not run, and the result given in its place cannot be recorded: "
                'at "": Input should be a valid integer, unable to parse string as an integer',
            ),
        ),
        (
            ToolResult(10**300),
            ToolResult.error(
                "RESULT_TOO_LARGE",
                "the tool did not run, and the result given in its place cannot be recorded: "
                "it has 301 bytes, the limit is 300",
            ),
        ),
        (7, ToolResult.error("MIDDLEWARE_FAILED", "a middleware returned int, not a ToolResult")),
        (
            ToolResult.error("", "x"),
            ToolResult.error("MIDDLEWARE_FAILED", "a middleware returned a failure without code and message"),
        ),
    ],
)
async def test_a_result_that_a_middleware_makes_is_checked_like_a_bodys(made: Any, expected: ToolResult) -> None:
    """PIP-13: the body is not entered."""
    order = Order()

    async def instead(execution: ToolExecution, call_next: Execute) -> Any:
        return made

    tools = everything(order, middleware=[instead], max_result_bytes=300)
    assert await tools.execute(call("act")) == expected
    assert "body" not in order.seen


async def test_what_a_middleware_does_to_a_result_is_looked_at_again() -> None:
    async def spoils(execution: ToolExecution, call_next: Execute) -> ToolResult:
        result = await call_next(execution)
        result.value["at"] = object()
        return result

    def act() -> dict[str, Any]:
        return {}

    assert failure(await service(act, middleware=[spoils]).execute(call("act"))) == (
        "INVALID_TOOL_OUTPUT",
        'the tool ran, but its result cannot be recorded: at "/at": object',
    )


async def test_a_value_that_a_middleware_gives_after_a_cancel_is_dropped() -> None:
    async def instead(execution: ToolExecution, call_next: Execute) -> ToolResult:
        execution.signal.cancel()
        return ToolResult(1)

    async def repeats(execution: ToolExecution, call_next: Execute) -> ToolResult:
        await call_next(execution)
        return await instead(execution, call_next)

    assert await everything(Order(), middleware=[instead]).execute(call("act")) == ABD
    assert failure(await everything(Order(), middleware=[repeats]).execute(call("act")))[0] == "ABORTED"


async def test_calling_the_next_one_twice_runs_checkpoint_and_body_twice() -> None:
    """POL-40: with the same call id, and one result."""
    order = Order()
    ids = []

    async def twice(execution: ToolExecution, call_next: Execute) -> ToolResult:
        await call_next(execution)
        return await call_next(execution)

    def act(execution: ToolExecution) -> int:
        order.seen.append("body")
        ids.append(execution.call_id)
        return len(ids)

    assert await service(act, middleware=[twice, checkpoint(order.flush)]).execute(call("act")) == ToolResult(2)
    assert order.seen == ["flush", "body", "flush", "body"]
    assert ids == ["c1", "c1"]


# -- what may overlap ------------------------------------------------------------------------------


def test_only_a_tool_that_says_true_for_these_arguments_is_parallel_safe() -> None:
    """SCH-12, SCH-15: anything else, an unknown tool and unreadable arguments are exclusive."""

    def rule(answer: Any) -> Any:
        return lambda arguments: answer

    def act(n: int = 0) -> None: ...

    async def awaits(arguments: Any) -> bool:
        return True

    tools = service(
        tool(act, name="safe", parallel_safe=True),
        tool(act, name="not"),
        tool(act, name="one", parallel_safe=rule(1)),
        tool(act, name="yes", parallel_safe=rule("yes")),
        tool(act, name="awaits", parallel_safe=awaits),
        tool(act, name="even", parallel_safe=lambda arguments: arguments["n"] % 2 == 0),
    )
    safe = [(name, text) for name, text in SAFETY if tools.is_parallel_safe(name, text)]
    assert safe == [("safe", "{}"), ("safe", ""), ("even", '{"n":2}')]


SAFETY = [
    *(
        ("safe", "{}"),
        ("safe", ""),
        ("safe", "not JSON"),
        ("not", "{}"),
        ("one", "{}"),
        ("yes", "{}"),
        ("awaits", "{}"),
    ),
    *(("even", '{"n":2}'), ("even", '{"n":1}'), ("even", "{}"), ("even", "[]"), ("unknown", "{}")),
]


def test_a_service_shows_its_lists_in_order() -> None:
    order = Order()
    tools = everything(order)
    assert [entry.name for entry in tools.policies + tools.guards] == ["policy", "guard"]
    assert [entry.name for entry in tools.middleware] == ["outer", "checkpoint"]
    assert tools.policies == (Named("policy", order.policy),)
    assert [spec.name for spec in tools.tool_set.specs] == ["act"]
