"""A set of tools: unique names, what models are told, and what became of a call that a crash cut short."""

import asyncio
import logging
from datetime import date
from typing import Any

import pytest

from app.messages import ToolSpec
from app.session.errors import ConfigurationError
from app.session.recovery import Completed, NotStarted, RecordedCall, Unknown
from app.tools.schema import tool
from app.tools.tool_set import ToolSet

RECORDED = RecordedCall("s1", "c1", "pay", '{"n":1}', 3)


def pay(n: int) -> date:
    """Pay."""
    return date(2026, 1, n)


def asking(answer: Any) -> ToolSet:
    """A set whose tool `pay` answers like this when it is asked what became of a call."""

    async def reconcile(call: RecordedCall) -> Any:
        assert call is RECORDED
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return ToolSet([tool(pay, reconcile=reconcile)], reconcile_timeout_s=60, max_result_bytes=100)


def test_models_are_told_of_the_tools_in_order() -> None:
    tools = ToolSet([tool(pay), tool(pay, name="again", description="Twice.")])
    schema = '{"additionalProperties":false,"properties":{"n":{"type":"integer"}},"required":["n"],"type":"object"}'
    assert tools.specs == (ToolSpec("pay", "Pay.", schema), ToolSpec("again", "Twice.", schema))
    assert list(tools.tools) == ["pay", "again"]
    assert tools.get("gone") is None


def test_names_are_unique() -> None:
    with pytest.raises(ConfigurationError, match="there are two tools named 'pay'"):
        ToolSet([tool(pay), tool(pay)])


def test_an_object_that_declares_itself_wrongly_is_refused() -> None:
    for part, wrong, problem in (
        ("name", "a b", "tool 'a b': a name is"),
        ("effects", "none", "tool 'pay': effects is one of"),
        ("timeout_s", 0, "tool 'pay': timeout_s is a number of seconds above 0"),
        ("reconcile", "yes", "tool 'pay': reconcile is an async function"),
        ("description", None, "tool 'pay': description is a text"),
        ("input_schema", {"type": {1}}, "tool 'pay': input_schema is no JSON: the value at '/type'"),
    ):
        made = tool(pay)
        setattr(made, part, wrong)
        with pytest.raises(ConfigurationError) as caught:
            ToolSet([made])
        assert str(caught.value).startswith(problem)


def test_only_a_tool_with_reconcile_offers_it() -> None:
    assert asking(Unknown()).offers("pay")
    assert not ToolSet([tool(pay)]).offers("pay")
    assert not ToolSet([]).offers("pay")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Completed(date(2026, 1, 2)), Completed("2026-01-02")),
        (Completed("2026-01-02"), Completed("2026-01-02")),
        (NotStarted(), NotStarted()),
        (Unknown(), Unknown()),
    ],
)
async def test_what_a_tool_finds_out_is_told_in_the_form_that_is_stored(
    answer: Any, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await asking(answer).ask(RECORDED) == told
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ValueError("secret"), "reconcile of 'pay' raised ValueError"),
        (asyncio.CancelledError(), "reconcile of 'pay' raised CancelledError"),
        (
            Completed("soon"),
            (
                'the tool ran, but its result cannot be recorded: at "": Input should be a valid date or datetime, '
                "input is too short"
            ),
        ),
        (True, "reconcile of 'pay' answered bool, not Completed, NotStarted or Unknown"),
        (Completed, "reconcile of 'pay' answered type, not Completed, NotStarted or Unknown"),
    ],
    ids=repr,
)
async def test_an_answer_that_cannot_be_used_leaves_the_call_unknown_and_is_logged(
    answer: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await asking(answer).ask(RECORDED) == Unknown()
    assert caplog.messages == [f"call 'c1' of session s1 stays unknown: {why}"]


async def test_a_value_too_large_to_be_recorded_leaves_the_call_unknown() -> None:
    async def reconcile(call: RecordedCall) -> Completed:
        return Completed("x" * 99)

    def text() -> str:
        return ""

    made = tool(text, name="pay", reconcile=reconcile)
    assert await ToolSet([made], max_result_bytes=100).ask(RECORDED) == Unknown()
    assert await ToolSet([made], max_result_bytes=101).ask(RECORDED) == Completed("x" * 99)


async def test_a_tool_that_takes_too_long_is_ended_and_leaves_the_call_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = []

    async def reconcile(call: RecordedCall) -> NotStarted:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return NotStarted()

    tools = ToolSet([tool(pay, reconcile=reconcile)], reconcile_timeout_s=0.01)
    assert await tools.ask(RECORDED) == Unknown()
    assert ended == ["ended"]
    assert caplog.messages == ["call 'c1' of session s1 stays unknown: reconcile of 'pay' took longer than 0.01 s"]


async def test_a_tool_that_is_gone_leaves_the_call_unknown(caplog: pytest.LogCaptureFixture) -> None:
    assert await ToolSet([]).ask(RECORDED) == Unknown()
    assert caplog.messages == ["call 'c1' of session s1 stays unknown: there is no tool named 'pay' any more"]
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        assert await ToolSet([tool(pay)]).ask(RECORDED) == Unknown()
    assert caplog.messages == []
