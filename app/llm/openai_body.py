"""Our request as the body of an OpenAI-compatible chat completion. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.llm import wire
from app.llm.types import LlmRequest
from app.llm.wire import JsonObject
from app.messages import AssistantMessage, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolMessage, UserMessage

USER_BLOCKS = {"image_url": "image_url", "input_audio": "input_audio", "file": "file"}
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers that show their reasoning put it, in answers and in what is sent back to them."""


def body(request: LlmRequest, options: Mapping[str, Any], max_tokens_key: str) -> JsonObject:
    """The whole body. `options` are keys of the vendor's own; what the request says goes over them."""
    sent: JsonObject = {"stream_options": {"include_usage": True}, **options}
    sent |= {"model": request.model.model, "stream": True, "messages": list(_messages(request))}
    if request.temperature is not None:
        sent["temperature"] = request.temperature
    if request.max_tokens is not None:
        sent[max_tokens_key] = request.max_tokens
    if request.stop:
        sent["stop"] = list(request.stop)
    if request.tools:
        sent["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": wire.input_schema(tool),
                },
            }
            for tool in request.tools
        ]
    else:
        for key in ("tool_choice", "parallel_tool_calls"):  # refused where there are no tools
            sent.pop(key, None)
    encoded: JsonObject = wire.encodable(sent)
    return encoded


def _messages(request: LlmRequest) -> Iterator[JsonObject]:
    if request.system:
        yield {"role": "system", "content": request.system}
    users = [place for place, message in enumerate(request.messages) if isinstance(message, UserMessage)]
    last_user, place = users[-1] if users else -1, 0
    for run in wire.runs(request.messages):
        if isinstance(run[0], UserMessage):
            yield {"role": "user", "content": _user_content(run)}
        else:
            yield from (_message(message, place > last_user) for message in run)
        place += len(run)


def _user_content(run: Sequence[Message]) -> str | list[JsonObject]:
    blocks = wire.user_blocks([message for message in run if isinstance(message, UserMessage)], USER_BLOCKS)
    if all(block["type"] == "text" for block in blocks):  # many servers take nothing but a string
        return "\n\n".join(block["text"] for block in blocks)
    return blocks


def _message(message: Message, is_in_open_turn: bool) -> JsonObject:
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": wire.wire_id(message.call_id), "content": message.text}
    assert isinstance(message, AssistantMessage)
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    calls = [block for block in message.content if isinstance(block, ToolCallBlock)]
    sent: JsonObject = {"role": "assistant", "content": "\n\n".join(texts) or None}
    state = _own_state(message)
    if calls:
        sent["tool_calls"] = [_call(call, extra) for call, extra in zip(calls, _extras(state, len(calls)), strict=True)]
    reasoning = "".join(block.text for block in message.content if isinstance(block, ReasoningBlock))
    # Between calls and their results some servers insist on it; of a turn that is over some refuse it.
    if is_in_open_turn and reasoning and state.get("reasoning") in REASONING_FIELDS:
        sent[state["reasoning"]] = reasoning
    return sent


def _call(call: ToolCallBlock, extra: object) -> JsonObject:
    function = {"name": wire.wire_name(call.name), "arguments": _arguments(call.arguments)}
    sent: JsonObject = {"id": wire.wire_id(call.id), "type": "function", "function": function}
    return sent if extra is None else {**sent, "extra_content": extra}


def _arguments(raw: str) -> str:
    """The text as the model wrote it if it is an object: some servers parse it, and refuse the whole request else."""
    made = wire.arguments_object(raw)
    return raw if raw and made != {"arguments": raw} else json.dumps(made, ensure_ascii=False)


def _own_state(message: AssistantMessage) -> JsonObject:
    state = None if message.replay_state is None else json.loads(message.replay_state)
    return state if isinstance(state, dict) else {}


def _extras(state: JsonObject, count: int) -> list[object]:
    extras = state.get("extra_content")
    return extras if isinstance(extras, list) and len(extras) == count else [None] * count
