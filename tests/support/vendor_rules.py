"""What vendors refuse in the body of a request, in their words. Pure: `refusal(body)` is None for one that they take.

Stricter than any single one of them: OpenAI's rules include those of the servers that speak like it and are pickier.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PARTS = {"text": str, "image_url": dict, "input_audio": dict, "file": dict}
MESSAGE_KEYS = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"}


class Refused(Exception):
    """The request is refused with HTTP status 400 and this message."""


def sign(thinking: str) -> str:
    """The signature that the strict Anthropic server gives to a piece of thinking, and insists on later."""
    return "sig-" + hashlib.sha256(thinking.encode()).hexdigest()[:24]


def refusal(vendor: str, body: Any) -> str | None:
    """Why this vendor (openai, anthropic) refuses the body; None if it takes it."""
    try:
        {"openai": _openai, "anthropic": _anthropic}[vendor](body)
    except Refused as refused:
        return str(refused)
    return None


def _need(condition: object, message: str) -> None:
    if not condition:
        raise Refused(message)


def _common(body: Any) -> list[dict[str, Any]]:
    _need(isinstance(body, dict) and isinstance(body.get("model"), str) and body["model"], "model: Field required")
    _need(body.get("stream") is True, "this server only streams")
    messages = body.get("messages")
    _need(isinstance(messages, list) and messages, "messages: at least one message is required")
    assert isinstance(messages, list)
    _need("tools" in body or "tool_choice" not in body, "'tool_choice' is only allowed when 'tools' are specified.")
    _need(body.get("tools", [1]), "[] is too short - 'tools'")
    return messages


# ------------------------------------------------------------------------------------------------ OpenAI


def _openai(body: Any) -> None:
    messages = _common(body)
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    _need(
        all(NAME.fullmatch(name) for name in names), "Invalid 'tools[0].function.name': string does not match pattern"
    )
    _need(len(set(names)) == len(names), "tools: function names must be unique")
    for tool in body.get("tools", ()):
        _need(tool["function"]["parameters"].get("type") == "object", "schema must be of 'type: object'")
    owed: list[str] = []
    seen: set[str] = set()
    before = None
    for place, message in enumerate(messages):
        where, role = f"messages[{place}]", message.get("role")
        _need(set(message) <= MESSAGE_KEYS, f"Unknown parameter in {where}")
        if role == "tool":
            _need(
                message.get("tool_call_id") in owed,
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
            )
            _need(isinstance(message.get("content"), str), f"{where}: content of a tool message is a string")
            owed.remove(message["tool_call_id"])
        else:
            _need(
                not owed,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(owed)}",
            )
            _need(role in ("system", "user", "assistant"), f"Invalid value: {role!r} in {where}")
            _need(role != "system" or place == 0, f"{where}: the system message comes first")
            _need(role == "assistant" or role != before, f"{where}: successive {role} messages")
            _openai_content(where, message)
            owed = list(_openai_calls(where, message, seen))
        before = role
    _need(not owed, f"messages end without the results of {', '.join(owed)}")
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    for message in messages[: users[-1] if users else 0]:
        _need("reasoning_content" not in message, "reasoning_content belongs to a turn that is over")


def _openai_content(where: str, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    if message["role"] == "assistant" and content is None:
        _need(message.get("tool_calls"), f"Invalid value for 'content' in {where}: expected a string, got null.")
        return
    if isinstance(content, list) and message["role"] == "user":
        _need(content, f"{where}: content is empty")
        for part in content:
            kind = part.get("type")
            _need(kind in PARTS and isinstance(part.get(kind), PARTS[kind]), f"{where}: bad part of type {kind!r}")
            _need(kind != "text" or part["text"], f"{where}: an empty text part")
        return
    _need(isinstance(content, str) and content, f"{where}: content is no text, or empty")


def _openai_calls(where: str, message: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return
    _need(message["role"] == "assistant" and calls, f"[] is too short - '{where}.tool_calls'")
    for call in calls:
        id, function = call.get("id"), call.get("function", {})
        _need(isinstance(id, str) and id, f"{where}: a tool call without an id")
        _need(len(id) <= 40, f"Invalid '{where}.tool_calls[0].id': string too long. Expected a maximum length of 40")
        _need(id not in seen, f"{where}: duplicate tool call id {id}")
        seen.add(id)
        _need(call.get("type") == "function", f"{where}: a tool call of no type")
        _need(NAME.fullmatch(function.get("name", "")), f"Invalid '{where}.tool_calls[0].function.name'")
        _need(isinstance(function.get("arguments"), str), f"{where}: arguments are no string")
        try:
            is_object = isinstance(json.loads(function["arguments"], parse_constant=_refuse), dict)
        except ValueError:
            is_object = False
        _need(is_object, f"{where}: the arguments of a tool call are no JSON object")
        yield id


def _refuse(name: str) -> None:
    raise ValueError(name)


# ------------------------------------------------------------------------------------------------ Anthropic


def _anthropic(body: Any) -> None:
    messages = _common(body)
    limit = body.get("max_tokens")
    _need(isinstance(limit, int) and limit > 0, "max_tokens: Field required")
    _need(body.get("system", "s").strip(), "system: text content blocks must be non-empty")
    for tool in body.get("tools", ()):
        _need(NAME.fullmatch(tool["name"]), "tools.0.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'")
        _need(tool["input_schema"].get("type") == "object", "tools.0.input_schema.type: Input should be 'object'")
    _need(messages[0].get("role") == "user", 'messages: first message must use the "user" role')
    seen: set[str] = set()
    owed: set[str] = set()
    before, blocks_of_tools = None, False
    message: Any
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        role, content = message.get("role"), message.get("content")
        _need(role in ("user", "assistant"), f"{where}.role: Input should be 'user' or 'assistant'")
        _need(role != before, 'messages: roles must alternate between "user" and "assistant"')
        _need(isinstance(content, list) and content, f"{where}: all messages must have non-empty content")
        kinds = [block.get("type") for block in content]
        blocks_of_tools = blocks_of_tools or "tool_use" in kinds or "tool_result" in kinds
        results = kinds.count("tool_result")
        _need(kinds[:results] == ["tool_result"] * results, f"{where}: tool_result blocks must come first")
        found = [block["tool_use_id"] for block in content[:results]]
        _need(set(found) <= owed, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {found}")
        _need(
            owed <= set(found),
            f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {sorted(owed)}",
        )
        _need(len(set(found)) == len(found), f"{where}: each tool_use must have a single result")
        owed = set()
        for block in content:
            _anthropic_block(where, role, block)
            if block["type"] == "tool_use":
                _need(block["id"] not in seen, f"{where}: `tool_use` ids must be unique")
                seen.add(block["id"])
                owed.add(block["id"])
        _need(
            not (role == "assistant" and "thinking" in str(kinds[-1])),
            f"{where}: The final block in an assistant message cannot be `thinking`.",
        )
        before = role
    _need(not owed, f"`tool_use` ids were found without `tool_result` blocks: {sorted(owed)}")
    _need("tools" in body or not blocks_of_tools, "Requests which include `tool_use` blocks must define tools")
    if body.get("thinking", {}).get("type") == "enabled" and messages[-1]["content"][0]["type"] == "tool_result":
        first = messages[-2]["content"][0]["type"]
        _need("thinking" in first, f"Expected `thinking` or `redacted_thinking`, but found `{first}`")


def _anthropic_block(where: str, role: str, block: Mapping[str, Any]) -> None:
    kind = block.get("type")
    allowed = {"user": ("text", "image", "document", "tool_result"), "assistant": ("text", "tool_use")}[role]
    if role == "assistant" and kind == "thinking":
        _need(block.get("signature") == sign(block["thinking"]), f"{where}: Invalid `signature` in `thinking` block")
        return
    if role == "assistant" and kind == "redacted_thinking":
        _need(isinstance(block.get("data"), str), f"{where}: Invalid `data` in `redacted_thinking` block")
        return
    _need(kind in allowed, f"{where}: Input tag {kind!r} found using 'type' does not match any of the expected tags")
    match kind:
        case "text":
            _need(block["text"], "messages: text content blocks must be non-empty")
            _need(block["text"].strip(), "messages: text content blocks must contain non-whitespace text")
        case "image" | "document":
            _need(isinstance(block.get("source"), dict), f"{where}.{kind}.source: Field required")
        case "tool_use":
            _need(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]), f"{where}.tool_use.id: String should match pattern")
            _need(NAME.fullmatch(block["name"]), f"{where}.tool_use.name: String should match pattern")
            _need(isinstance(block["input"], dict), f"{where}.tool_use.input: Input should be a valid dictionary")
        case "tool_result":
            _need(isinstance(block.get("content", "."), str), f"{where}.tool_result.content: Input should be a string")
            _need(block.get("content") != "", f"{where}.tool_result: text content blocks must be non-empty")
