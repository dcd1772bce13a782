"""Our messages as the bodies that vendors are sent, compared whole."""

from __future__ import annotations

from typing import Any

from app.llm import anthropic_body, openai_body
from app.llm.types import LlmRequest
from app.llm.wire import arguments_object, wire_id, wire_name
from app.messages import (
    AssistantMessage,
    Message,
    ModelRef,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

MODEL = ModelRef("a", "m")
ADD = ToolSpec("add", "Add.", '{"properties":{"a":{"type":"integer"}}}')
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s1"}
REDACTED = {"type": "redacted_thinking", "data": "x"}


def user(*texts: str) -> UserMessage:
    return UserMessage(tuple(map(TextBlock, texts)))


CONVERSATION: list[Message] = [
    user("How much is it?"),
    user("In euros."),
    AssistantMessage(
        (
            ReasoningBlock("hm"),
            TextBlock("One moment."),
            ToolCallBlock("c1", "add", '{"a": 1}'),
            ToolCallBlock("c2#1", "add", ""),
        ),
        MODEL,
        '{"thinking":[[0,{"type":"thinking","thinking":"hm","signature":"s1"}],[1,{"type":"redacted_thinking","data":"x"}]],'
        '"reasoning":"reasoning_content"}',
    ),
    ToolMessage("c1", False, "3"),
    ToolMessage("c2#1", True, "Error: no"),
]
REQUEST = LlmRequest(MODEL, CONVERSATION, "Be brief.", (ADD,), 0.5, 100, ("END",))
C2 = wire_id("c2#1")


def test_a_conversation_with_calls_becomes_an_openai_body() -> None:
    assert openai_body.body(REQUEST, {"seed": 7, "model": "not this"}, "max_tokens") == {
        "stream_options": {"include_usage": True},
        "seed": 7,
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How much is it?\n\nIn euros."},
            {
                "role": "assistant",
                "content": "One moment.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                    {"id": C2, "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ],
                "reasoning_content": "hm",
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "tool", "tool_call_id": C2, "content": "Error: no"},
        ],
        "temperature": 0.5,
        "max_tokens": 100,
        "stop": ["END"],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}],
    }


def test_a_conversation_with_calls_becomes_an_anthropic_body() -> None:
    assert anthropic_body.body(REQUEST, {"thinking": {"type": "enabled", "budget_tokens": 1024}}) == {
        "max_tokens": 100,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "model": "m",
        "stream": True,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "How much is it?"}, {"type": "text", "text": "In euros."}],
            },
            {
                "role": "assistant",
                "content": [
                    THINKING,
                    {"type": "text", "text": "One moment."},
                    REDACTED,
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": C2, "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
                    {"type": "tool_result", "tool_use_id": C2, "content": "Error: no", "is_error": True},
                ],
            },
        ],
        "system": "Be brief.",
        "temperature": 0.5,
        "stop_sequences": ["END"],
        "tools": [{"name": "add", "description": "Add.", "input_schema": SCHEMA}],
    }


def messages_of(*messages: Message) -> tuple[Any, Any]:
    """What both vendors are sent of these messages."""
    request = LlmRequest(MODEL, messages)
    return openai_body.body(request, {}, "max_tokens")["messages"], anthropic_body.body(request, {})["messages"]


def test_text_taken_in_after_results_stands_after_them() -> None:
    calls = AssistantMessage((ToolCallBlock("c1", "add", "{}"),), MODEL)
    openai, anthropic = messages_of(user("a"), calls, ToolMessage("c1", False, "3"), user("b"))
    assert openai[2:] == [{"role": "tool", "tool_call_id": "c1", "content": "3"}, {"role": "user", "content": "b"}]
    results = [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}, {"type": "text", "text": "b"}]
    assert anthropic[2:] == [{"role": "user", "content": results}]


def test_an_empty_message_says_that_it_is_empty() -> None:
    openai, anthropic = messages_of(UserMessage(()), user(" \n"))
    assert openai == [{"role": "user", "content": "(empty message)"}]
    assert anthropic == [{"role": "user", "content": [{"type": "text", "text": "(empty message)"}]}]


def test_a_block_of_another_vendor_is_told_of_in_words() -> None:
    """Blocks of a vendor's own pass unchanged; for one of the other, the whole request would be refused."""
    image = OpaqueBlock('{"type":"image","source":{"type":"url","url":"http://h/a.png"}}')
    image_url = OpaqueBlock('{"type":"image_url","image_url":{"url":"http://h/a.png"}}')
    openai, anthropic = messages_of(UserMessage((image, image_url)))
    assert openai[0]["content"] == [
        {"type": "text", "text": '(a block of type "image", which this model cannot be sent)'},
        {"type": "image_url", "image_url": {"url": "http://h/a.png"}},
    ]
    assert anthropic[0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "http://h/a.png"}},
        {"type": "text", "text": '(a block of type "image_url", which this model cannot be sent)'},
    ]


def test_halves_of_characters_are_replaced_on_the_wire() -> None:
    openai, anthropic = messages_of(user("a\udc81b😀"))
    assert openai[0]["content"] == anthropic[0]["content"][0]["text"] == "a\ufffdb😀"


def test_reasoning_goes_back_only_while_its_turn_is_open() -> None:
    """Between calls and results some servers insist on it; afterwards some refuse it."""
    openai, _ = messages_of(*CONVERSATION, AssistantMessage((TextBlock("3"),), MODEL), user("And in dollars?"))
    assert "reasoning_content" not in openai[1]


def test_replay_state_of_another_kind_is_passed_over() -> None:
    for state in ("null", "[1]", '{"opaque":[1]}', '"x"'):
        openai, anthropic = messages_of(user("a"), AssistantMessage((TextBlock("b"),), MODEL, state), user("c"))
        assert openai[1] == {"role": "assistant", "content": "b"}
        assert anthropic[1] == {"role": "assistant", "content": [{"type": "text", "text": "b"}]}


def test_what_stands_beside_a_call_goes_back_with_it() -> None:
    calls = (ToolCallBlock("c1", "add", "{}"), ToolCallBlock("c2", "add", "{}"))
    state = '{"extra_content":[{"google":{"thought_signature":"sig"}},null]}'
    openai, _ = messages_of(
        user("a"), AssistantMessage(calls, MODEL, state), ToolMessage("c1", False, "1"), ToolMessage("c2", False, "2")
    )
    assert [call.get("extra_content") for call in openai[1]["tool_calls"]] == [
        {"google": {"thought_signature": "sig"}},
        None,
    ]


def test_calls_in_a_history_are_explained_where_no_tool_is_enabled_any_more() -> None:
    """Anthropic refuses a history with calls in a request without tools."""
    calls = AssistantMessage((ToolCallBlock("c1", "add", "{}"),), MODEL)
    request = LlmRequest(MODEL, [user("a"), calls, ToolMessage("c1", False, "")])
    body = anthropic_body.body(request, {"tool_choice": {"type": "any"}})
    gone = {"name": "add", "description": "Not available.", "input_schema": {"type": "object"}}
    assert (body["tools"], body["tool_choice"]) == ([gone], {"type": "none"})
    assert body["messages"][2] == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]}


def test_thinking_does_not_begin_between_calls_and_their_results() -> None:
    """The calls were another model's, or made without thinking: with it, the vendor wants its blocks before them."""
    calls = AssistantMessage((ToolCallBlock("c1", "add", "{}"),), ModelRef("b", "m"))
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    open_turn = LlmRequest(MODEL, [user("a"), calls, ToolMessage("c1", False, "1")], tools=(ADD,))
    assert "thinking" not in anthropic_body.body(open_turn, thinking)
    next_turn = LlmRequest(MODEL, [*open_turn.messages, AssistantMessage((TextBlock("1"),), MODEL), user("b")])
    assert anthropic_body.body(next_turn, thinking)["thinking"] == thinking["thinking"]


def test_thinking_that_ends_a_cut_answer_is_left_out() -> None:
    state = '{"thinking":[[1,{"type":"thinking","thinking":"hm","signature":"s1"}]]}'
    _, anthropic = messages_of(user("a"), AssistantMessage((TextBlock("b"),), MODEL, state), user("c"))
    assert anthropic[1]["content"] == [{"type": "text", "text": "b"}]


def test_ids_and_names_that_vendors_refuse_are_mapped_the_same_each_time() -> None:
    assert [wire_id(id) for id in ("c_1-A", "x" * 40)] == ["c_1-A", "x" * 40]
    odd = ["", "c1#1.1.0", "x" * 41, "\udc81", "é"]
    mapped = [wire_id(id) for id in odd]
    assert mapped == [wire_id(id) for id in odd]
    assert len(set(mapped)) == len(odd)
    assert [wire_name(name) for name in ("add", "", "a b!", "é" * 70)] == ["add", "unnamed", "a_b_", "_" * 64]


def test_arguments_that_are_no_object_are_kept_as_text_inside_one() -> None:
    deep = '{"a":' * 200 + "1" + "}" * 200
    for raw in ("[1]", "not JSON", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, deep, "null"):
        assert arguments_object(raw) == {"arguments": raw}
    assert arguments_object("") == {}
    assert arguments_object('{"a": {"b": [1]}}') == {"a": {"b": [1]}}


def test_the_limit_of_an_answer_has_the_vendors_name_and_default() -> None:
    request = LlmRequest(MODEL, [user("a")])
    assert anthropic_body.body(request, {})["max_tokens"] == anthropic_body.DEFAULT_MAX_TOKENS
    assert anthropic_body.body(request, {"max_tokens": 7})["max_tokens"] == 7
    assert "max_tokens" not in openai_body.body(request, {}, "max_tokens")
    limited = LlmRequest(MODEL, [user("a")], max_tokens=9)
    assert openai_body.body(limited, {}, "max_completion_tokens")["max_completion_tokens"] == 9
