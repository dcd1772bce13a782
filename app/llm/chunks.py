"""The chunks of a stream as the log keeps them: their JSON form, and what has to be true of one that is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any, NoReturn, TypeAlias, get_args

from app.llm.types import LlmError
from app.messages import (
    FAILURE_CODES,
    BlockEnd,
    Failure,
    Finish,
    FinishReason,
    ReasoningBlock,
    ReasoningDelta,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
)
from app.session.errors import LimitExceeded, UnstorableValue
from app.session.values import encode

JsonObject: TypeAlias = dict[str, Any]
AssistantBlock: TypeAlias = TextBlock | ReasoningBlock | ToolCallBlock


# -- to the log ----------------------------------------------------------------------------------


def to_json(chunk: StreamChunk) -> JsonObject:
    """`{"kind": ..., "index": ..., ...}`; a field that is None is left out. Shares the chunk's values."""
    data: JsonObject = {"kind": chunk.kind}
    for name, _, _ in _CHECKS[type(chunk)]:
        value = getattr(chunk, name)
        if value is not None:
            data[name] = value
    if isinstance(chunk, Usage):
        data["usage"] = dict(chunk.usage)
    elif isinstance(chunk, Finish) and chunk.failure is not None:
        data["failure"] = failure_json(chunk.failure)
    return data


def failure_json(failure: Failure) -> JsonObject:
    """`{"message", "code", "status"?, "retry_after_ms"?, "request_id"?}`."""
    data = {field.name: getattr(failure, field.name) for field in fields(failure)}
    return {name: value for name, value in data.items() if value is not None}


def content_json(content: Iterable[AssistantBlock]) -> list[JsonObject]:
    """The blocks of an assistant message as its event holds them; app.session.history reads them back."""
    return [_block_json(block) for block in content]


def _block_json(block: AssistantBlock) -> JsonObject:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ReasoningBlock():
            return {"type": "reasoning", "text": block.text}
        case ToolCallBlock():
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.arguments}


# -- from the log, or a script -------------------------------------------------------------------


def from_json(data: Mapping[str, Any]) -> StreamChunk:
    """The chunk that `to_json` wrote as `data`. Unknown keys are passed over: a later build may have written them.

    Raises LlmError INVALID_STREAM for what was never a chunk.
    """
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        _invalid(f"no chunk is of kind {kind!r}; there are {', '.join(KINDS)}")
    given = _fields(cls, data, f"a {kind} chunk")
    if given.get("failure") is not None:
        given["failure"] = _failure(given["failure"])
    chunk: StreamChunk = cls(**given)
    check(chunk)
    return chunk


def _failure(data: object) -> Failure:
    if not isinstance(data, Mapping):
        _invalid("the failure of a finish is not an object")
    return Failure(**_fields(Failure, data, "a failure"))


def _fields(cls: type[Any], data: Mapping[str, Any], what: str) -> JsonObject:
    wanted = [field for field in fields(cls) if field.init]
    if missing := [f.name for f in wanted if f.default is MISSING and f.name not in data]:
        _invalid(f"{what} lacks {', '.join(missing)}")
    return {field.name: data[field.name] for field in wanted if field.name in data}


# -- what is believed ----------------------------------------------------------------------------


def check(chunk: object) -> None:
    """Raise LlmError INVALID_STREAM unless `chunk` is a chunk whose fields have the types they say."""
    checks = _CHECKS.get(type(chunk))
    if checks is None:
        _invalid(f"the stream gave a {type(chunk).__name__}, which is no chunk")
    for name, is_right, expected in checks:
        value = getattr(chunk, name)
        if not is_right(value):
            kind = getattr(chunk, "kind", "")
            _invalid(f"the {name} of a {kind} chunk is not {expected}; it is of type {type(value).__name__}")


def is_failure(value: object) -> bool:
    """Whether `value` is a Failure whose fields have the types they say."""
    return (
        type(value) is Failure
        and type(value.message) is str
        and type(value.code) is str
        and _is_count_or_none(value.status)
        and _is_count_or_none(value.retry_after_ms)
        and _is_string_or_none(value.request_id)
    )


def with_known_code(failure: Failure) -> Failure:
    """The failure, its code UNKNOWN if it is none of FAILURE_CODES."""
    return failure if failure.code in FAILURE_CODES else replace(failure, code="UNKNOWN")


def _invalid(message: str) -> NoReturn:
    raise LlmError(Failure(message, "INVALID_STREAM"))


# A subclass (an enum of a vendor's SDK, say) is another type: the log would refuse it.


def _is_index(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_string(value: object) -> bool:
    return type(value) is str


def _is_string_or_none(value: object) -> bool:
    return value is None or type(value) is str


def _is_count_or_none(value: object) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _is_reason(value: object) -> bool:
    return type(value) is str and value in get_args(FinishReason)


def _is_failure_or_none(value: object) -> bool:
    return value is None or is_failure(value)


def _is_json(value: object) -> bool:
    with suppress(LimitExceeded):  # a value all right; that it is too much for the log is the log's to say
        try:
            encode(value)
        except UnstorableValue:
            return False
    return True


def _is_json_object(value: object) -> bool:
    return isinstance(value, Mapping) and _is_json(dict(value))


_INDEX = ("index", _is_index, "an integer from 0")
_TEXT = ("text", _is_string, "a string")

_CHECKS: Mapping[type[Any], tuple[tuple[str, Callable[[object], bool], str], ...]] = {
    TextDelta: (_INDEX, _TEXT),
    ReasoningDelta: (_INDEX, _TEXT),
    ToolCallDelta: (
        _INDEX,
        ("id", _is_string_or_none, "a string"),
        ("name", _is_string_or_none, "a string"),
        ("arguments", _is_string, "a string"),
    ),
    BlockEnd: (_INDEX,),
    Usage: (("usage", _is_json_object, "an object of JSON values"),),
    Finish: (
        ("reason", _is_reason, f"one of {', '.join(get_args(FinishReason))}"),
        ("failure", _is_failure_or_none, "a failure"),
        ("replay_state", _is_json, "a JSON value"),
    ),
}

KINDS: Mapping[str, type[Any]] = {
    "text_delta": TextDelta,
    "reasoning_delta": ReasoningDelta,
    "tool_call_delta": ToolCallDelta,
    "block_end": BlockEnd,
    "usage": Usage,
    "finish": Finish,
}
"""The class of each kind of chunk."""
