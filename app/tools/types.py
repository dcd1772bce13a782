"""What a tool is, what its body is given, and what comes of a call: the words of the tool service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from app.cancel import CancelSignal
from app.middleware import Handler, Middleware
from app.session.call_keys import argument_key, idempotency_key
from app.session.events import Placement
from app.session.recovery import Reconciled, RecordedCall
from app.session.session import Session

Effects: TypeAlias = Literal["read_only", "idempotent", "side_effect"]


class ToolError(Exception):
    """Raised by a tool body that wants its own code and message to be what the model sees."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """Why a call has no value: one of the codes of docs/errors.md, or the tool's own, and the text for the model."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call: a JSON value, or a failure."""

    value: Any = None
    failure: ToolFailure | None = None

    @property
    def is_error(self) -> bool:
        return self.failure is not None

    @classmethod
    def error(cls, code: str, message: str) -> ToolResult:
        return cls(failure=ToolFailure(code, message))


class Tool(Protocol):
    """A tool as the service sees it; app.tools.schema makes one from a plain typed function."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    effects: Effects
    timeout_s: float | None

    @property
    def reconcile(self) -> Callable[[RecordedCall], Awaitable[Reconciled]] | None:
        """Asked after a crash what became of a call; it only looks, it never acts."""
        ...

    def is_parallel_safe(self, arguments: Any) -> object:
        """Exactly True if bodies with these arguments may overlap; may raise, which counts as no."""
        ...

    def validate(self, arguments: Any) -> Any:
        """The arguments as the body takes them. Raises InvalidArguments, which lists every problem with its path."""
        ...

    async def run(self, validated: Any, execution: ToolExecution) -> Any:
        """Run the body: an async function awaited, a sync one in a thread of its own. Returns what it returned."""
        ...

    def to_json(self, value: Any) -> Any:
        """A body's value (or one that `reconcile` completed with) through the declared return type, as a JSON value.

        Raises InvalidOutput when it does not fit.
        """
        ...


class InvalidArguments(Exception):
    """Arguments against a tool's schema; the message lists every problem with its path."""


class InvalidOutput(Exception):
    """A returned value against a tool's declared return type; the message names path and kind."""


Record: TypeAlias = Callable[..., Awaitable[None]]


@dataclass(slots=True, eq=False)
class ToolExecution:
    """One call on its way through the pipeline, and what its body is given.

    `raw_arguments` is the model's text; `arguments`, which is its value, and `effects`, as the tool declares them, are
    set before any policy is asked. `call_id` is the idempotency key of this call in its session, `epoch` a fencing
    token for stores that can check one, `earlier_unknown` lists (call id, code) of earlier equal calls whose effect is
    not known.
    """

    name: str
    raw_arguments: str
    call_id: str
    signal: CancelSignal = field(default_factory=CancelSignal)
    session: Session | None = None
    turn: int | None = None
    step: int | None = None
    parent: ToolExecution | None = None
    arguments: Any = None
    effects: Effects = "side_effect"
    earlier_unknown: tuple[tuple[str, str], ...] = ()
    # Set by whoever runs the call; see the methods below. `admission` is the tool service's own note.
    admission: Any = field(default=None, repr=False)
    nested: Callable[[ToolExecution, str, Any], Awaitable[ToolResult]] | None = None
    accept: Callable[[Any, Placement], str] | None = None
    record: Record | None = None

    @property
    def session_id(self) -> str | None:
        return None if self.session is None else self.session.id

    @property
    def epoch(self) -> int | None:
        return None if self.session is None else self.session.epoch.number

    @property
    def idempotency_key(self) -> str:
        """Hex SHA-256 of session id and call id, for vendors whose keys are global."""
        return idempotency_key(self.session_id or "", self.call_id)

    @property
    def argument_key(self) -> str:
        """The same for every call of this session with this tool and equal arguments; see app.session.call_keys."""
        return argument_key(self.session_id or "", self.name, self.raw_arguments)

    async def execute_nested(self, name: str, arguments: Any) -> ToolResult:
        """Call another tool from an async body. `arguments` is a JSON value. One runs at a time, in the order asked.

        Without a checkpoint of its own: the outer call is durable. Raises AgentClosed once the outer body has ended.
        """
        if self.nested is None:
            raise RuntimeError(f"tool {self.name!r} was not run by a tool service: it cannot make nested calls")
        return await self.nested(self, name, arguments)

    def inject(self, content: Any) -> str:
        """Put context into the agent's inbox; returns the message id. May be called from a sync body's thread."""
        return self._accept(content, "context")

    def steer(self, content: Any) -> str:
        """Put steering into the agent's inbox: one more step will see it. May be called from a sync body's thread."""
        return self._accept(content, "next_step")

    def _accept(self, content: Any, placement: Placement) -> str:
        if self.accept is None:
            raise RuntimeError(f"tool {self.name!r} runs without an agent: there is no inbox")
        return self.accept(content, placement)


Execute: TypeAlias = Handler[ToolExecution, ToolResult]
ToolMiddleware: TypeAlias = Middleware[ToolExecution, ToolResult]


@dataclass(frozen=True, slots=True)
class Allow:
    """A pre-execute policy lets the call pass."""


@dataclass(frozen=True, slots=True)
class Deny:
    """A pre-execute policy refuses the call; the model sees the reason."""

    reason: str


ToolPolicy: TypeAlias = Callable[[ToolExecution], Awaitable[Allow | Deny]]
Guard: TypeAlias = Callable[[ToolExecution], str | None]

ABORTED_BEFORE_DISPATCH = ToolResult.error("ABORTED_BEFORE_DISPATCH", "tool call aborted before dispatch")
