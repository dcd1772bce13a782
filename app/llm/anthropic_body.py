"""Our request as the body of an Anthropic messages request. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.llm import wire
from app.llm.types import LlmRequest
from app.llm.wire import JsonObject
from app.messages import AssistantMessage, Message, TextBlock, ToolCallBlock, ToolMessage, UserMessage

DEFAULT_MAX_TOKENS = 8192
"""This vendor insists on a number."""
USER_BLOCKS = {"image": "source", "document": "source"}


def body(request: LlmRequest, options: Mapping[str, Any]) -> JsonObject:
    """The whole body. `options` are keys of the vendor's own; what the request says goes over them."""
    sent: JsonObject = {"max_tokens": DEFAULT_MAX_TOKENS, **options}
    sent |= {"model": request.model.model, "stream": True, "messages": _messages(request.messages)}
    if request.max_tokens is not None:
        sent["max_tokens"] = request.max_tokens
    if request.system and request.system.strip():
        sent["system"] = request.system
    if request.temperature is not None:
        sent["temperature"] = request.temperature
    if stop := [text for text in request.stop if text.strip()]:
        sent["stop_sequences"] = stop
    sent |= _tools(request)
    if "tools" not in sent:
        sent.pop("tool_choice", None)
    if _lacks_thinking(sent["messages"]):
        sent.pop("thinking", None)
    encoded: JsonObject = wire.encodable(sent)
    return encoded


def _tools(request: LlmRequest) -> JsonObject:
    if request.tools:
        return {
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": wire.input_schema(tool)}
                for tool in request.tools
            ]
        }
    calls = (
        block
        for message in request.messages
        if isinstance(message, AssistantMessage)
        for block in message.content
        if isinstance(block, ToolCallBlock)
    )
    if not (names := dict.fromkeys(wire.wire_name(call.name) for call in calls)):
        return {}
    # A history with calls is refused unless there are tools, even when none may be called any more.
    gone = [{"name": name, "description": "Not available.", "input_schema": {"type": "object"}} for name in names]
    return {"tools": gone, "tool_choice": {"type": "none"}}


def _messages(messages: Sequence[Message]) -> list[JsonObject]:
    """The roles alternate, results stand first in the message after their calls, and nothing is empty."""
    sent: list[JsonObject] = []
    for run in wire.runs(messages):
        role = "assistant" if isinstance(run[0], AssistantMessage) else "user"
        content = list(_content(run))
        if not content:
            continue
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += content
        else:
            sent.append({"role": role, "content": content})
    return sent


def _content(run: Sequence[Message]) -> Iterator[JsonObject]:
    if isinstance(run[0], UserMessage):
        yield from wire.user_blocks([message for message in run if isinstance(message, UserMessage)], USER_BLOCKS)
    for message in run:
        if isinstance(message, ToolMessage):
            yield _result(message)
        elif isinstance(message, AssistantMessage):
            yield from _assistant_content(message)


def _result(message: ToolMessage) -> JsonObject:
    sent: JsonObject = {"type": "tool_result", "tool_use_id": wire.wire_id(message.call_id)}
    sent |= {"content": message.text} if message.text else {}
    return sent | ({"is_error": True} if message.is_error else {})


def _assistant_content(message: AssistantMessage) -> list[JsonObject]:
    content: list[JsonObject] = []
    for block in message.content:
        if isinstance(block, TextBlock) and block.text.strip():
            content.append(wire.text_block(block.text))
        elif isinstance(block, ToolCallBlock):
            content.append(
                {
                    "type": "tool_use",
                    "id": wire.wire_id(block.id),
                    "name": wire.wire_name(block.name),
                    "input": wire.arguments_object(block.arguments),
                }
            )
    for place, thinking in reversed(_own_thinking(message)):
        if place < len(content):  # an answer that was cut ends with it, and may not
            content.insert(place, thinking)
    return content


def _own_thinking(message: AssistantMessage) -> list[tuple[int, JsonObject]]:
    """The blocks of thinking that came with this message, as they were, each with how many others stood before it."""
    state = None if message.replay_state is None else json.loads(message.replay_state)
    thinking = state.get("thinking") if isinstance(state, dict) else None
    return [(place, block) for place, block in thinking or ()]


def _lacks_thinking(messages: Sequence[JsonObject]) -> bool:
    """Whether the last message holds results of calls that another model, or this one without thinking, asked for.

    Thinking may not begin in the midst of that.
    """
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return False
    return messages[-2]["content"][0]["type"] not in ("thinking", "redacted_thinking")
