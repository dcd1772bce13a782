"""The JSON form of chunks, and which values are chunks."""

import json
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from app.llm.chunks import KINDS, check, content_json, failure_json, from_json, to_json
from app.llm.types import LlmError
from app.messages import (
    AssistantMessage,
    BlockEnd,
    Failure,
    Finish,
    ModelRef,
    ReasoningBlock,
    ReasoningDelta,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)
from app.session import events as ev
from app.session.history import assistant_message

FAILURE = Failure("slow down", "RATE_LIMIT", 429, 1500, "r1")

FORMS = [
    (TextDelta(0, "a"), {"kind": "text_delta", "index": 0, "text": "a"}),
    (ReasoningDelta(1, ""), {"kind": "reasoning_delta", "index": 1, "text": ""}),
    (
        ToolCallDelta(2, '{"a"', "c1", "add"),
        {"kind": "tool_call_delta", "index": 2, "id": "c1", "name": "add", "arguments": '{"a"'},
    ),
    (ToolCallDelta(2), {"kind": "tool_call_delta", "index": 2, "arguments": ""}),
    (BlockEnd(3), {"kind": "block_end", "index": 3}),
    (Usage({"in": 1, "detail": {"cached": 0}}), {"kind": "usage", "usage": {"in": 1, "detail": {"cached": 0}}}),
    (Finish("stop"), {"kind": "finish", "reason": "stop"}),
    (Finish("stop", replay_state=[{"x": 1}]), {"kind": "finish", "reason": "stop", "replay_state": [{"x": 1}]}),
    (
        Finish("error", Failure("no")),
        {"kind": "finish", "reason": "error", "failure": {"message": "no", "code": "UNKNOWN"}},
    ),
    (
        Finish("error", FAILURE),
        {
            "kind": "finish",
            "reason": "error",
            "failure": {
                "message": "slow down",
                "code": "RATE_LIMIT",
                "status": 429,
                "retry_after_ms": 1500,
                "request_id": "r1",
            },
        },
    ),
]


@pytest.mark.parametrize(("chunk", "form"), FORMS)
def test_a_chunk_has_one_form_and_comes_back_from_it(chunk, form):
    assert to_json(chunk) == form
    assert from_json(json.loads(json.dumps(form))) == chunk


def test_a_failure_has_one_form():
    assert failure_json(FAILURE) == to_json(Finish("error", FAILURE))["failure"]


def test_the_blocks_of_an_answer_come_back_from_the_log_as_they_were():
    content = (ReasoningBlock("hm"), TextBlock("a"), ToolCallBlock("c1", "add", '{"a": 1}'))
    form = content_json(content)
    assert form == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "a"},
        {"type": "tool_call", "id": "c1", "name": "add", "arguments": '{"a": 1}'},
    ]
    event = ev.AssistantMessage(1, 1, form, [], {"adapter": "a", "model": "m"}, "stop")
    assert assistant_message(event) == AssistantMessage(content, ModelRef("a", "m"))


def test_keys_of_a_later_build_are_passed_over():
    form = {"kind": "finish", "reason": "error", "failure": {"message": "no", "hint": 1}, "later": True}
    assert from_json(form) == Finish("error", Failure("no"))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, f"no chunk is of kind None; there are {', '.join(KINDS)}"),
        ({"kind": []}, f"no chunk is of kind []; there are {', '.join(KINDS)}"),
        ({"kind": "text_delta", "txt": ""}, "a text_delta chunk lacks index, text"),
        (
            {"kind": "text_delta", "index": "0", "text": ""},
            "the index of a text_delta chunk is not an integer from 0; it is of type str",
        ),
        ({"kind": "finish", "reason": "error", "failure": "no"}, "the failure of a finish is not an object"),
        ({"kind": "finish", "reason": "error", "failure": {}}, "a failure lacks message"),
    ],
)
def test_what_was_never_a_chunk_is_told(form, message):
    with pytest.raises(LlmError) as raised:
        from_json(form)
    assert raised.value.failure == Failure(message, "INVALID_STREAM")


class Reason(StrEnum):
    STOP = "stop"


cycle: dict[str, object] = {}
cycle["self"] = cycle


REASONS = "one of stop, tool_calls, max_tokens, error, aborted"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TextDelta, (-1, "a"), "the index of a text_delta chunk is not an integer from 0; it is of type int"),
        (TextDelta, (0, None), "the text of a text_delta chunk is not a string; it is of type NoneType"),
        (TextDelta, (0, Reason.STOP), "the text of a text_delta chunk is not a string; it is of type Reason"),
        (ToolCallDelta, (0, {}), "the arguments of a tool_call_delta chunk is not a string; it is of type dict"),
        (ToolCallDelta, (0, "", 1), "the id of a tool_call_delta chunk is not a string; it is of type int"),
        (ToolCallDelta, (0, "", None, 1), "the name of a tool_call_delta chunk is not a string; it is of type int"),
        (BlockEnd, (0.0,), "the index of a block_end chunk is not an integer from 0; it is of type float"),
        (Usage, ([],), "the usage of a usage chunk is not an object of JSON values; it is of type list"),
        (
            Usage,
            ({"cost": Decimal(1)},),
            "the usage of a usage chunk is not an object of JSON values; it is of type dict",
        ),
        (Usage, (cycle,), "the usage of a usage chunk is not an object of JSON values; it is of type dict"),
        (Finish, ("done",), f"the reason of a finish chunk is not {REASONS}; it is of type str"),
        (Finish, (Reason.STOP,), f"the reason of a finish chunk is not {REASONS}; it is of type Reason"),
        (Finish, ("error", "no"), "the failure of a finish chunk is not a failure; it is of type str"),
        (Finish, ("stop", None, {1}), "the replay_state of a finish chunk is not a JSON value; it is of type set"),
    ],
)
def test_a_field_of_the_wrong_type_is_an_invalid_stream(kind, fields, message):
    with pytest.raises(LlmError) as raised:
        check(kind(*fields))
    assert raised.value.failure == Failure(message, "INVALID_STREAM")


@pytest.mark.parametrize("field", ["message", "code", "status", "retry_after_ms", "request_id"])
def test_a_failure_is_one_only_if_all_its_fields_have_their_types(field):
    wrong: Any = {"message": "no", field: 0.5}
    with pytest.raises(LlmError) as raised:
        check(Finish("error", Failure(**wrong)))
    assert raised.value.failure.code == "INVALID_STREAM"


def test_a_value_that_is_too_long_for_the_log_is_a_chunk_all_the_same():
    check(Finish("stop", replay_state=10**30_000))
