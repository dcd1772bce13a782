"""The repair of a turn cut short by a crash: a pure function from the log to the events that close it.

It runs no tool, reads no clock and asks nobody: what `reconcile` found out comes in as `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.session import events as ev
from app.session.call_keys import argument_key, idempotency_key, parse_arguments
from app.session.grammar import advance
from app.session.log_state import CALLS, DONE, IDLE, REQUEST, LogState, OpenCall
from app.session.record import SessionEvent, parse, to_json
from app.session.values import encode

NOT_STARTED_TEXT = "tool call was never started; call the tool again if it is still needed"
_UNKNOWN = "tool call was started, but its result was not recorded"
REPEATABLE_TEXT = f"{_UNKNOWN}; it may simply be called again"
SIDE_EFFECT_TEXT = (
    f"{_UNKNOWN}: it may or may not have taken effect. Verify the state, or ask the user, before calling it again"
)


@dataclass(frozen=True, slots=True)
class Completed:
    """The call took effect, and this is its value."""

    value: Any


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The call did not take effect."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell what became of the call."""


Reconciled: TypeAlias = Completed | NotStarted | Unknown


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call whose start is recorded and whose result is not, as `reconcile` is given it."""

    session_id: str
    call_id: str
    name: str
    raw_arguments: str
    epoch: int

    @property
    def arguments(self) -> Any:
        """The parsed arguments. Raises ValueError, LimitExceeded if the model's text is no JSON."""
        return parse_arguments(self.raw_arguments)

    @property
    def idempotency_key(self) -> str:
        """As the body was given it."""
        return idempotency_key(self.session_id, self.call_id)

    @property
    def argument_key(self) -> str:
        """As the body was given it."""
        return argument_key(self.session_id, self.name, self.raw_arguments)


def close_interrupted_turn(
    events: Sequence[SessionEvent], answers: Mapping[str, Reconciled] | None = None
) -> tuple[SessionEvent, ...]:
    """The events that close the open turn of a legal log, or none. `answers` maps call ids to what is known of them.

    Each has the time of the last event. Closing a log with its closers gives none again.
    """
    state = LogState()
    for event in events:
        extension = ev.Extension(ev.ExtensionType(event.type), event.data)
        advance(state, parse(event.type, event.data) if event.type in ev.CATALOGUE else extension)
    return as_records(closing_events(state, answers or {}), len(events), events[-1].time) if events else ()


def as_records(closers: Sequence[ev.EventData], next_seq: int, time: int) -> tuple[SessionEvent, ...]:
    """The closers as they are recorded, from `next_seq` on."""
    return tuple(SessionEvent(next_seq + n, time, e.type, encode(to_json(e))) for n, e in enumerate(closers))


def closing_events(state: LogState, answers: Mapping[str, Reconciled]) -> tuple[ev.EventData, ...]:
    """A result for each open call in the order of the message, `step/end` if a step is open, `turn/end`."""
    turn = state.turn
    if turn.state == IDLE:
        return ()
    closers: list[ev.EventData] = list(closing_results(state, answers))
    if turn.state in (REQUEST, CALLS, DONE):
        closers.append(ev.StepEnd(turn.turn, turn.step))
    return (*closers, ev.TurnEnd(turn.turn, "interrupted"))


def closing_results(state: LogState, answers: Mapping[str, Reconciled]) -> tuple[ev.ToolResult, ...]:
    """A result for each call of the open step that has none, in the order of the message."""
    return tuple(_close_call(state, call, answers.get(call.id, Unknown())) for call in state.turn.open_calls)


def _close_call(state: LogState, call: OpenCall, answer: Reconciled) -> ev.ToolResult:
    turn, step = state.turn.turn, state.turn.step
    if call.seq is not None and isinstance(answer, Completed):
        return ev.ToolResult(turn, step, call.id, call.seq, False, value=answer.value, reconciled=True)
    if call.seq is None or isinstance(answer, NotStarted):
        error = {"code": "TOOL_NOT_STARTED", "message": NOT_STARTED_TEXT}
    else:
        text = SIDE_EFFECT_TEXT if call.effects == "side_effect" else REPEATABLE_TEXT
        error = {"code": "TOOL_OUTCOME_UNKNOWN", "message": text}
    return ev.ToolResult(turn, step, call.id, call.seq, True, error=error)
