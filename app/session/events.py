"""Every event a session log can hold: one frozen dataclass each, and the notices that observers get besides.

An event's data is checked against these annotations (app.session.record) when it is appended and again when it is
read. A field left at None is not written, except where None is itself a fact (`call_seq`, a tool result's `value`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
Placement: TypeAlias = Literal["next_turn", "next_step", "context"]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final[Any] = _Absent()
"""Marks a field that is not there, where None is a value."""

KEEP_NONE = {"none_is_a_value": True}


class EventData:
    """Base of the catalogue."""

    __slots__ = ()
    type: ClassVar[str]


@dataclass(frozen=True, slots=True)
class InboxAccepted(EventData):
    type: ClassVar[str] = "inbox/accepted"
    message: JsonObject
    placement: Placement


@dataclass(frozen=True, slots=True)
class InboxDiscarded(EventData):
    type: ClassVar[str] = "inbox/discarded"
    ids: list[str]
    cause: str


@dataclass(frozen=True, slots=True)
class TurnStart(EventData):
    type: ClassVar[str] = "turn/start"
    turn: int
    input: list[str]


@dataclass(frozen=True, slots=True)
class UserMessage(EventData):
    type: ClassVar[str] = "user/message"
    turn: int
    message: JsonObject
    placement: Placement


@dataclass(frozen=True, slots=True)
class StepStart(EventData):
    type: ClassVar[str] = "step/start"
    turn: int
    step: int


@dataclass(frozen=True, slots=True)
class RequestHeader(EventData):
    """What every request until the next header is made with: `config` is {adapter, model, temperature?, ...}."""

    type: ClassVar[str] = "request/header"
    turn: int
    step: int
    reason: Literal["initial", "resume", "change"]
    config: JsonObject
    tools: list[JsonObject]
    system: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantChunk(EventData):
    type: ClassVar[str] = "assistant/chunk"
    turn: int
    step: int
    chunk: JsonObject


@dataclass(frozen=True, slots=True)
class AssistantMessage(EventData):
    """`chunks` are inclusive ranges of the seqs of this step's chunks; `model` is {adapter, model}."""

    type: ClassVar[str] = "assistant/message"
    turn: int
    step: int
    content: list[JsonObject]
    chunks: list[list[int]]
    model: JsonObject
    finish: str
    usage: JsonObject | None = None
    replay_state: Any = field(default=ABSENT, metadata=KEEP_NONE)
    interrupted: Literal[True] | None = None

    @property
    def calls(self) -> list[JsonObject]:
        """The tool_call blocks, in order."""
        return [block for block in self.content if block.get("type") == "tool_call"]


@dataclass(frozen=True, slots=True)
class ToolCall(EventData):
    type: ClassVar[str] = "tool/call"
    turn: int
    step: int
    call_id: str
    name: str
    arguments: str
    effects: Literal["read_only", "idempotent", "side_effect"]


@dataclass(frozen=True, slots=True)
class ToolNested(EventData):
    type: ClassVar[str] = "tool/nested"
    turn: int
    step: int
    parent_call_id: str
    call_id: str
    name: str
    arguments: str
    is_error: bool
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ToolResult(EventData):
    """Either `value` (any JSON, None too) or `error` {code, message}; `call_seq` is None if no call was recorded."""

    type: ClassVar[str] = "tool/result"
    turn: int
    step: int
    call_id: str
    call_seq: int | None = field(metadata=KEEP_NONE)
    is_error: bool
    value: Any = field(default=ABSENT, metadata=KEEP_NONE)
    error: JsonObject | None = None
    reconciled: Literal[True] | None = None


@dataclass(frozen=True, slots=True)
class StepEnd(EventData):
    type: ClassVar[str] = "step/end"
    turn: int
    step: int


@dataclass(frozen=True, slots=True)
class LlmRetry(EventData):
    type: ClassVar[str] = "llm/retry"
    turn: int
    step: int
    retry: int
    delay_ms: int
    failure: JsonObject
    max_retries: int | None = None


@dataclass(frozen=True, slots=True)
class TurnEnd(EventData):
    """`cause` belongs to `aborted`, `error` {message, code?, step?} to `error`."""

    type: ClassVar[str] = "turn/end"
    turn: int
    reason: Literal["completed", "max_tokens", "aborted", "error", "interrupted"]
    cause: str | None = None
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class ExtensionType:
    """An event type of somebody's own, `name/word`; a reader that does not know an ignorable one may skip it."""

    name: str
    ignorable: bool = False


@dataclass(frozen=True, slots=True)
class Extension(EventData):
    """An event of a declared extension type; changes no state and is never part of what the model sees."""

    kind: ExtensionType
    body: JsonObject

    @property
    def type(self) -> str:  # type: ignore[override]  # the one event whose type is not its class's
        return self.kind.name


CATALOGUE: dict[str, type[EventData]] = {
    cls.type: cls
    for cls in (
        InboxAccepted,
        InboxDiscarded,
        TurnStart,
        UserMessage,
        StepStart,
        RequestHeader,
        AssistantChunk,
        AssistantMessage,
        ToolCall,
        ToolNested,
        ToolResult,
        StepEnd,
        LlmRetry,
        TurnEnd,
    )
}

CLOSING = frozenset(["tool/result", "tool/nested", "step/end", "turn/end", "inbox/discarded"])
"""Events that record an effect, or only close or drop something: never refused for the log's length."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """A notice, not an event: what the agent is doing now."""

    status: Literal["idle", "running", "closed"]


@dataclass(frozen=True, slots=True)
class AgentError:
    """A notice, not an event: a turn failed, or its final flush or a background write did."""

    code: str
    message: str
    turn: int | None = None
    step: int | None = None


Notice: TypeAlias = AgentStatus | AgentError
