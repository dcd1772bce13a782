"""What all vendors' requests have in common: nothing that can be recorded may make one be refused for its form.

Pure. The log keeps what happened; here a value that no vendor takes is replaced by the nearest one that they do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, cast

from app.messages import Message, OpaqueBlock, TextBlock, ToolSpec, UserMessage
from app.session.values import decode

JsonObject: TypeAlias = dict[str, Any]

EMPTY_MESSAGE = "(empty message)"
MOST_NESTED = 100
"""Arguments nested deeper are sent as text: vendors' parsers, and the encoder here, give up somewhere above that."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NO_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def wire_id(call_id: str) -> str:
    """The call's id if vendors take it (letters, digits, `_`, `-`, at most 40), else one computed from it alone."""
    if _ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def wire_name(name: str) -> str:
    """The name of a tool that a model asked for, which may be any text, as vendors take it in a history."""
    return _NO_NAME_CHARACTER.sub("_", name)[:64] or "unnamed"


def arguments_object(raw: str) -> JsonObject:
    """A call's arguments as an object. Text that is none is kept inside one, so that the model sees what it wrote."""
    if not raw:
        return {}
    try:
        value = json.loads(raw)
        json.dumps(value, allow_nan=False)  # Python reads NaN, and 1e999 as infinity
    except (ValueError, RecursionError):
        return {"arguments": raw}
    return value if isinstance(value, dict) and not _is_deeper(value, MOST_NESTED) else {"arguments": raw}


def _is_deeper(value: object, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(_is_deeper(each, limit - 1) for each in inside)


def input_schema(tool: ToolSpec) -> JsonObject:
    """The tool's schema, which says that arguments are an object even if whoever declared it left that out."""
    return {"type": "object", **cast(JsonObject, decode(tool.input_schema))}


def runs(messages: Iterable[Message]) -> list[list[Message]]:
    """The messages, with neighbours of one kind together: what nobody spoke between is one message to a vendor."""
    return [list(group) for _, group in groupby(messages, type)]


def user_blocks(messages: Sequence[UserMessage], known: Mapping[str, str]) -> list[JsonObject]:
    """The blocks of neighbouring user messages, never none.

    `known` are the types of blocks that the vendor takes beside text, each with the key that holds its object. Of other
    blocks the model is told that they are there. Text without a visible character is left out.
    """
    blocks = [block for message in messages for block in message.content]
    sent = [made for block in blocks if (made := _user_block(block, known)) is not None]
    return sent or [text_block(EMPTY_MESSAGE)]


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user_block(block: TextBlock | OpaqueBlock, known: Mapping[str, str]) -> JsonObject | None:
    if isinstance(block, TextBlock):
        return text_block(block.text) if block.text.strip() else None
    sent = cast(JsonObject, decode(block.json))
    kind, text = sent["type"], sent.get("text")
    if kind == "text" and isinstance(text, str):  # with keys beside, which are some vendor's own
        return text_block(text) if text.strip() else None
    if isinstance(sent.get(known.get(kind, "")), dict):
        return sent
    return text_block(f"(a block of type {json.dumps(kind)}, which this model cannot be sent)")


def encodable(value: Any) -> Any:
    """A copy in which each half of a character pair that stands alone is U+FFFD: UTF-8 has no bytes for it."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list) else value
