"""The words that models, tools and the session log share: blocks, messages, chunks, failures.

All of them are immutable, so that a message can stand in the history and in a request at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

# ------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """The model asks for a tool. `arguments` is the model's raw text, meant to be a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OpaqueBlock:
    """A block of user content that only the adapter understands (an image, say), kept as its JSON text."""

    json: str


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Who answers: the adapter's name and the model's."""

    adapter: str
    model: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    content: tuple[TextBlock | OpaqueBlock, ...]


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model answered. `replay_state` is JSON text that only the adapter and model in `model` may get back."""

    content: tuple[TextBlock | ReasoningBlock | ToolCallBlock, ...]
    model: ModelRef
    replay_state: str | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call, as the text that the model reads."""

    call_id: str
    is_error: bool
    text: str


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool. `input_schema` is a JSON schema as JSON text."""

    name: str
    description: str
    input_schema: str


# ------------------------------------------------------------------------------------------------ chunks


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int
    text: str
    kind: Literal["text_delta"] = field(default="text_delta", init=False)


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    index: int
    text: str
    kind: Literal["reasoning_delta"] = field(default="reasoning_delta", init=False)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call; `arguments` is a piece of raw text."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    kind: Literal["tool_call_delta"] = field(default="tool_call_delta", init=False)


@dataclass(frozen=True, slots=True)
class BlockEnd:
    index: int
    kind: Literal["block_end"] = field(default="block_end", init=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the vendor names them; the last one of a stream counts."""

    usage: Mapping[str, Any]
    kind: Literal["usage"] = field(default="usage", init=False)


FinishReason: TypeAlias = Literal["stop", "tool_calls", "max_tokens", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model request failed. `code` is one of FAILURE_CODES; `retry_after_ms` is the vendor's wish."""

    message: str
    code: str = "UNKNOWN"
    status: int | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None


FAILURE_CODES = [
    "NO_ADAPTER",
    "RATE_LIMIT",
    "QUOTA",
    "AUTH",
    "CONTEXT_WINDOW_EXCEEDED",
    "SERVER",
    "TIMEOUT",
    "TRANSPORT",
    "STREAM_CLOSED",
    "INVALID_STREAM",
    "EMPTY_RESPONSE",
    "ABORTED",
    "UNKNOWN",
]


@dataclass(frozen=True, slots=True)
class Finish:
    """The stream is over. `replay_state` is any JSON value that the vendor wants back."""

    reason: FinishReason
    failure: Failure | None = None
    replay_state: Any = None
    kind: Literal["finish"] = field(default="finish", init=False)


StreamChunk: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | Usage | Finish
