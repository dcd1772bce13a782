"""Whatever a log holds, the request made of it is one that the vendors accept."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.llm import anthropic_body, openai_body
from app.llm.service import with_own_replay_state
from app.llm.types import LlmRequest
from app.messages import Message, ModelRef, OpaqueBlock, TextBlock, ToolCallBlock, ToolMessage, ToolSpec, UserMessage
from app.session.history import derive_messages
from app.session.recovery import close_interrupted_turn
from tests.support.logs import legal_logs
from tests.support.recording import record
from tests.support.vendor_rules import refusal, sign

READ = ToolSpec("read", "", "{}")
MODEL = ModelRef("script", "test")  # the one that the generated logs were made with

names = st.one_of(st.sampled_from(["read", "", "no such tool!", "n" * 90, "é", "a.b"]), st.text(max_size=5))
arguments = st.sampled_from(
    [
        "",
        "{}",
        '{"a": 1}',
        '{"a": "\\ud800"}',
        "[1]",
        "not JSON",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a":',
        "\udc81",
        "[" * 9999,
    ]
)
texts = st.one_of(st.sampled_from(["", " ", "\n\t", "\0", "\udc81", "hello"]), st.text(max_size=8))
states = st.sampled_from(
    [
        None,
        "null",
        '{"opaque":[1]}',
        '{"reasoning":"reasoning_content"}',
        json.dumps({"thinking": [[0, {"type": "thinking", "thinking": "hm", "signature": sign("hm")}]]}),
        json.dumps({"thinking": [[0, {"type": "redacted_thinking", "data": "xx"}], [7, {"type": "thinking"}]]}),
    ]
)
options = st.sampled_from([{}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"tool_choice": "auto"}])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """What a model sees of a legal log that ended anywhere, once it was repaired; with the worst that can stand there.

    Then somebody says more: nothing is asked of a model while nothing is owed.
    """
    events = record(draw(legal_logs()))
    more = UserMessage(
        draw(st.sampled_from([(), (TextBlock("go on"),), (TextBlock(" "), OpaqueBlock('{"type":"x"}'))]))
    )
    messages = [*derive_messages([*events, *close_interrupted_turn(events)]), more]
    is_open_turn = any(isinstance(message, ToolMessage) for message in messages[-2:]) and draw(st.booleans())
    return [draw(_worse(message)) for message in (messages[:-1] if is_open_turn else messages)]


def _worse(message: Message) -> st.SearchStrategy[Message]:
    @st.composite
    def make(draw: st.DrawFn) -> Message:
        if isinstance(message, ToolMessage):
            return replace(message, text=draw(texts))
        if isinstance(message, UserMessage):
            return replace(message, content=message.content[: draw(st.integers(0, 3))])
        content = tuple(
            replace(block, name=draw(names), arguments=draw(arguments))
            if isinstance(block, ToolCallBlock)
            else replace(block, text=draw(texts.filter(bool)))
            for block in message.content
        )
        return replace(message, content=content, replay_state=draw(states))

    return make()


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(histories(), st.booleans(), st.sampled_from([None, "", " ", "Be \udc81 brief."]), options)
def test_every_history_makes_a_request_that_is_accepted(
    vendor: str, messages: list[Message], has_tools: bool, system: str | None, given_options: dict[str, object]
) -> None:
    """Also when calls were cut short, text was injected, and names, ids and arguments are rubbish."""
    request = LlmRequest(MODEL, messages, system, (READ,) if has_tools else (), max_tokens=100, stop=(" ", "END"))
    request = with_own_replay_state(request)
    if vendor == "openai":
        body = openai_body.body(request, given_options, "max_tokens")
    else:
        body = anthropic_body.body(request, given_options)
    assert refusal(vendor, json.loads(json.dumps(body, ensure_ascii=False, allow_nan=False).encode())) is None
