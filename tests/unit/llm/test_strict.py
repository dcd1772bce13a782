"""What a vendor would refuse."""

import pytest

from app.llm.strict import check_provider_valid
from app.llm.types import LlmError
from app.messages import (
    AssistantMessage,
    Failure,
    ModelRef,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
)

USER = UserMessage((TextBlock("hi"),))


def assistant(*content):
    return AssistantMessage(content, ModelRef("a", "m"))


def calls(*ids):
    return assistant(*(ToolCallBlock(id, "add", "{}") for id in ids))


def result(id):
    return ToolMessage(id, False, "")


ANSWER = assistant(ReasoningBlock("hm"), TextBlock("hello"))


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, USER],
        [UserMessage((OpaqueBlock('{"type":"image"}'),))],
        [USER, ANSWER, USER],
        [USER, calls("c1", "c2"), result("c1"), result("c2")],
        [USER, calls("c1"), result("c1"), calls("c2"), result("c2"), ANSWER, USER],
    ],
)
def test_what_every_vendor_takes_passes(messages):
    check_provider_valid(messages)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "there are no messages"),
        ([ANSWER], "messages[0]: the first message is the user's"),
        ([USER, result("c1")], "messages[1]: a result of call 'c1', which no message directly before asks for"),
        ([USER, calls("c1")], "the results of 'c1' are missing at the end"),
        ([USER, calls("c1", "c2"), result("c1"), USER], "messages[3]: the results of 'c2' are missing before it"),
        ([USER, calls("c1"), USER, result("c1")], "messages[2]: the results of 'c1' are missing before it"),
        (
            [USER, calls("c1", "c2"), result("c2"), result("c1")],
            "messages[2]: a result of call 'c2', where that of 'c1' is due",
        ),
        (
            [USER, calls("c1"), result("c1"), result("c1")],
            "messages[3]: a result of call 'c1', which no message directly before asks for",
        ),
        ([USER, calls("c1", "c1")], "messages[1]: the call id 'c1' is used before"),
        ([USER, calls("c1"), result("c1"), calls("c1")], "messages[3]: the call id 'c1' is used before"),
        ([USER, calls("")], "messages[1]: the call id '' is empty"),
        ([UserMessage(())], "messages[0]: a user message without content"),
        ([UserMessage((TextBlock(""),))], "messages[0]: an empty text block"),
        ([USER, assistant()], "messages[1]: an assistant message without text and without a call"),
        ([USER, assistant(ReasoningBlock("hm"))], "messages[1]: an assistant message without text and without a call"),
        ([USER, assistant(TextBlock(""))], "messages[1]: an empty text block"),
    ],
)
def test_what_some_vendor_refuses_is_refused_with_status_400(messages, fault):
    with pytest.raises(LlmError) as raised:
        check_provider_valid(messages)
    assert raised.value.failure == Failure(f"a vendor would refuse this request: {fault}", "UNKNOWN", status=400)
