"""Equal calls of one session share a key, and those of unknown effect can be found by it."""

import hashlib
import json

import pytest

from app.session import events as ev
from app.session.call_keys import argument_key, parse_arguments
from app.session.errors import LimitExceeded
from app.session.record import SessionEvent, to_json
from app.session.unknown_calls import UnknownCalls
from app.session.values import encode
from app.tools.types import ToolExecution


def key(arguments: str, session_id: str = "s1", name: str = "pay") -> str:
    return argument_key(session_id, name, arguments)


def test_it_is_the_digest_of_one_compact_ascii_text() -> None:
    text = '["s1","pay",{"":[true,null,0.5],"a":{"b":"\\u00e9\\udc81"},"z":3}]'
    assert (
        key('{"z": 3.0, "a": {"b": "é\\udc81"}, "": [true, null, 5e-1]}') == hashlib.sha256(text.encode()).hexdigest()
    )


def test_the_order_of_keys_and_the_way_numbers_are_written_do_not_matter() -> None:
    """KEY-01: one key for the session's equal calls, whatever their call ids; another idempotency key for each."""
    one = ToolExecution("pay", '{"a":1,"b":2}', "c1")
    other = ToolExecution("pay", '{"b":2,"a":1.0}', "c2")
    assert one.argument_key == other.argument_key
    assert one.idempotency_key != other.idempotency_key
    assert key('{"a":1,"b":2}') == key('{"b":2e0,"a":1.0}')


def test_another_session_tool_or_argument_is_another_key() -> None:
    """KEY-01"""
    arguments = '{"a":1}'
    keys = [key(arguments), key(arguments, session_id="s2"), key(arguments, name="refund"), key('{"a":2}')]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0", "-0.0"),
        ("1e22", "10000000000000000000000"),
        ("1e300", str(int(1e300))),
        ("", "{}"),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('"\\ud83d\\ude00"', '"\U0001f600"'),
        (" [ 1 ] ", "[1]"),
        ("not JSON", '"not JSON"'),
        ("1e400", '"1e400"'),
        ("NaN", '"NaN"'),
    ],
)
def test_what_is_equal_in_value_has_one_key(one: str, other: str) -> None:
    assert key(one) == key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ("1", '"1"'),
        ("9007199254740993", "9007199254740992.0"),
        ("[[],[]]", "[[[]]]"),
        ('["a","b"]', '["a,b"]'),
        ('{"a":{"b":1}}', '{"a":{},"b":1}'),
        ('"\\udc81"', '"?"'),
        ("{}", "[]"),
    ],
)
def test_what_differs_in_value_has_two(one: str, other: str) -> None:
    assert key(one) != key(other)


def test_keys_are_ordered_by_code_point_and_not_by_utf_16() -> None:
    text = '["s1","pay",{"\\uffff":1,"\\ud83d\\ude00":2}]'
    assert key(json.dumps({"\U0001f600": 2, "\uffff": 1})) == hashlib.sha256(text.encode()).hexdigest()


def test_neither_depth_nor_long_integers_stop_it() -> None:
    assert key("[" * 150_000 + "]" * 150_000) != key("[" * 149_999 + "]" * 149_999)
    assert key("1" * 15_000) == key(" " + "1" * 15_000)


def test_what_passes_the_limits_counts_as_text() -> None:
    too_deep = "[" * 200_001 + "]" * 200_001
    with pytest.raises(LimitExceeded):
        parse_arguments(too_deep)
    assert key(too_deep) == key(json.dumps(too_deep))


# -- calls whose effect is not known ---------------------------------------------------------------


def recorded(seq: int, data: ev.EventData) -> SessionEvent:
    return SessionEvent(seq, 0, data.type, encode(to_json(data)))


def log(*calls: tuple[str, str, str, object]) -> UnknownCalls:
    """The index of a log with one step for each (call id, arguments, effects, code or value)."""
    unknown = UnknownCalls()
    for step, (call_id, arguments, effects, end) in enumerate(calls, 1):
        is_error = isinstance(end, str) and end.isupper()
        error = {"code": end, "message": "."} if is_error else None
        value = ev.ABSENT if is_error else end
        unknown.add(recorded(step, ev.ToolCall(1, step, call_id, "pay", arguments, effects)))  # type: ignore[arg-type]
        unknown.add(recorded(step, ev.ToolResult(1, step, call_id, step, is_error, value=value, error=error)))
        unknown.add(recorded(step, ev.StepEnd(1, step)))
    return unknown


def test_calls_of_unknown_effect_are_found_by_their_key_in_the_order_of_the_log() -> None:
    """KEY-04: what was aborted, timed out or lost is listed; what only reads, what failed and what succeeded is not."""
    unknown = log(
        ("c1", '{"a":1}', "side_effect", "TOOL_OUTCOME_UNKNOWN"),
        ("c2", '{"a":2}', "side_effect", "ABORTED"),
        ("c3", '{"a":1.0}', "idempotent", "TOOL_TIMEOUT"),
        ("c4", '{"a":1}', "read_only", "ABORTED"),
        ("c5", '{"a":1}', "side_effect", "TOOL_FAILED"),
        ("c6", '{"a":1}', "side_effect", {"text": '"ABORTED"', "code": "ABORTED"}),
        ("c7", '{"a":1}', "side_effect", "ABORTED"),
    )
    assert unknown.matching("s1", key('{"a":1}')) == (
        ("c1", "TOOL_OUTCOME_UNKNOWN"),
        ("c3", "TOOL_TIMEOUT"),
        ("c7", "ABORTED"),
    )
    assert unknown.matching("s1", key('{"a":2}')) == (("c2", "ABORTED"),)
    assert unknown.matching("s1", key('{"a":3}')) == ()


def test_what_is_added_after_somebody_asked_is_found_too() -> None:
    unknown = log(("c1", "{}", "side_effect", "ABORTED"))
    assert unknown.matching("s1", key("")) == (("c1", "ABORTED"),)
    unknown.add(recorded(7, ev.ToolCall(1, 2, "c2", "pay", "", "side_effect")))
    assert unknown.matching("s1", key("")) == (("c1", "ABORTED"),)
    error = {"code": "TOOL_TIMEOUT", "message": "."}
    unknown.add(recorded(8, ev.ToolResult(1, 2, "c2", 7, True, error=error)))
    assert unknown.matching("s1", key("")) == (("c1", "ABORTED"), ("c2", "TOOL_TIMEOUT"))


def test_the_end_of_a_step_lets_go_of_its_calls() -> None:
    assert log(("c1", "{}", "side_effect", 1))._of_step == []


def test_an_index_without_such_calls_is_false() -> None:
    assert not log(("c1", "{}", "side_effect", 1), ("c2", "{}", "read_only", "ABORTED"))
    assert log(("c1", "{}", "side_effect", "ABORTED"))


def test_a_call_skipped_by_cancellation_is_none_of_them() -> None:
    assert not log(
        ("c1", "{}", "side_effect", "ABORTED_BEFORE_DISPATCH"), ("c2", "{}", "side_effect", "TOOL_NOT_STARTED")
    )


def test_of_several_calls_in_a_step_the_one_answered_is_taken() -> None:
    unknown = UnknownCalls()
    for n, name in enumerate(("c1", "c2", "c3")):
        unknown.add(recorded(n, ev.ToolCall(1, 1, name, "pay", f'{{"n":{n}}}', "side_effect")))
    error = {"code": "ABORTED", "message": "."}
    unknown.add(recorded(3, ev.ToolResult(1, 1, "c1", 0, False, value=None)))
    unknown.add(recorded(4, ev.ToolResult(1, 1, "c2", 1, True, error=error)))
    assert unknown.matching("s1", key('{"n":1}')) == (("c2", "ABORTED"),)
    assert unknown.matching("s1", key('{"n":0}')) == unknown.matching("s1", key('{"n":2}')) == ()
