"""Which event may follow which: one table, and its further conditions.

`append` checks it, recovery walks it, reading checks it; there is no way to switch it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.session.errors import IllegalEvent, InvalidId, UnstorableValue
from app.session.events import EventData, Extension
from app.session.identifiers import check_id
from app.session.log_state import (
    CALLS,
    DONE,
    IDLE,
    OPENING,
    REQUEST,
    TURN,
    LogState,
    OpenCall,
    Pending,
    State,
    TurnState,
    fingerprint,
)
from app.session.record import problem
from app.session.values import encode

TABLE: Mapping[str, Mapping[State, tuple[State, ...]]] = {
    "turn/start": {IDLE: (OPENING,)},
    "user/message": {OPENING: (OPENING, TURN), TURN: (TURN,), DONE: (DONE,)},
    "step/start": {TURN: (REQUEST,)},
    "request/header": {REQUEST: (REQUEST,)},
    "assistant/chunk": {REQUEST: (REQUEST,)},
    "assistant/message": {REQUEST: (CALLS, DONE)},
    "tool/call": {CALLS: (CALLS,)},
    "tool/nested": {CALLS: (CALLS,)},
    "tool/result": {CALLS: (CALLS, DONE)},
    "step/end": {REQUEST: (TURN,), DONE: (TURN,)},
    "llm/retry": {TURN: (TURN,)},
    "turn/end": {OPENING: (IDLE,), TURN: (IDLE,)},
}
"""For each event type the states it may come in, and those it may lead to; inbox and extension events change none."""


def advance(log: LogState, event: EventData) -> None:
    """Take the next event into the state. Raises IllegalEvent, and then nothing has changed."""
    if condition := problem(event):
        raise IllegalEvent(log.turn.state, event.type, condition)
    if not isinstance(event, Extension):
        follow = TABLE.get(event.type)
        if follow is not None and log.turn.state not in follow:
            raise IllegalEvent(log.turn.state, event.type, f"it may only come in {' or '.join(follow)}")
        try:
            _RULES[event.type](log, event)
        except _Broken as broken:
            raise IllegalEvent(log.turn.state, event.type, str(broken)) from None
    log.length += 1


class _Broken(Exception):
    """A condition that does not hold, in words."""


def _need(holds: bool, condition: str) -> None:
    if not holds:
        raise _Broken(condition)


def _text(field: str, value: object) -> str:
    """The JSON text of a field. What cannot be stored in it is told by its place in the event's data."""
    try:
        return encode(value)
    except UnstorableValue as error:
        raise UnstorableValue(f"/{field}{error.path}", error.kind) from None


# One function for each type: checks the conditions first, then changes the state. Nothing may fail after a change.


def _accepted(log: LogState, event: Any) -> None:
    message_id = event.message["id"]
    _need(message_id not in log.accepted, f"message {message_id!r} was accepted before")
    try:
        check_id(message_id)
    except InvalidId as error:
        raise _Broken(str(error)) from None
    text = _text("message", event.message)
    log.accepted[message_id] = fingerprint(text, event.placement)
    log.pending = {**log.pending, message_id: Pending(message_id, text, event.placement)}


def _discarded(log: LogState, event: Any) -> None:
    _need(bool(event.ids) and len(set(event.ids)) == len(event.ids), "ids are one or more, each once")
    _need_pending(log, event.ids)
    log.pending = _without(log.pending, event.ids)


def _need_pending(log: LogState, ids: list[str]) -> None:
    unknown = [i for i in ids if i not in log.pending or i in log.turn.announced]
    _need(not unknown, f"not pending: {', '.join(map(repr, unknown))}")


def _without(pending: Mapping[str, Pending], ids: list[str]) -> dict[str, Pending]:
    left = dict(pending)
    for message_id in ids:
        del left[message_id]
    return left


def _turn_start(log: LogState, event: Any) -> None:
    _need(event.turn == log.turn.turn + 1, f"the next turn is {log.turn.turn + 1}")
    _need(
        bool(event.input) and len(set(event.input)) == len(event.input), "input names one or more messages, each once"
    )
    _need_pending(log, event.input)
    placements = [log.pending[i].placement for i in event.input]
    _need(placements[-1] != "context", "the last message of input is one that wakes")
    _need(all(p == "context" for p in placements[:-1]), "only the last message of input wakes")
    log.turn = TurnState(OPENING, turn=event.turn, announced=tuple(event.input))


def _user_message(log: LogState, event: Any) -> None:
    turn = log.turn
    _need(event.turn == turn.turn, f"turn {turn.turn} is open")
    _need(not turn.is_interrupted, "only step/end follows an interrupted message")
    message_id = event.message["id"]
    entry = log.pending.get(message_id)
    if entry is None:
        raise _Broken(f"message {message_id!r} is not pending")
    if turn.state == OPENING:
        _need(message_id == turn.announced[0], f"the next announced message is {turn.announced[0]!r}")
    else:
        _need(entry.placement != "next_turn", "a next_turn message is only taken as the input of a turn")
    same = entry.placement == event.placement and entry.message == _text("message", event.message)
    _need(same, f"message {message_id!r} was accepted with other content or placement")
    log.pending = _without(log.pending, [message_id])
    announced = turn.announced[1:]
    state = TURN if turn.state == OPENING and not announced else turn.state
    log.turn = turn._replace(state=state, announced=announced, may_retry=False)


def _step_start(log: LogState, event: Any) -> None:
    _need_turn(log, event)
    _need(event.step == log.turn.step + 1, f"the next step is {log.turn.step + 1}")
    log.turn = TurnState(REQUEST, turn=event.turn, step=event.step)


def _need_turn(log: LogState, event: Any) -> None:
    if event.turn != log.turn.turn:  # asked of every chunk: the words are made for those who need them
        raise _Broken(f"turn {log.turn.turn} is open")


def _need_step(log: LogState, event: Any) -> None:
    _need_turn(log, event)
    if event.step != log.turn.step:
        raise _Broken(f"step {log.turn.step} is the last")


def _request_header(log: LogState, event: Any) -> None:
    _need_step(log, event)
    _need(not log.turn.has_header, "a step has one header")
    _need(not log.turn.chunks, "a header comes before any chunk")
    log.header = header_text(event.config, event.system, event.tools)
    log.turn = log.turn._replace(has_header=True)


def header_text(config: Any, system: str | None, tools: Any) -> str:
    """The part of a request header that is compared with the one before."""
    return f"[{_text('config', config)},{_text('system', system)},{_text('tools', tools)}]"


def _chunk(log: LogState, event: Any) -> None:
    _need_step(log, event)
    seq, ranges = log.length, log.turn.chunks
    follows_on = bool(ranges) and ranges[-1][1] == seq - 1
    ranges = (*ranges[:-1], (ranges[-1][0], seq)) if follows_on else (*ranges, (seq, seq))
    log.turn = log.turn._replace(chunks=ranges)


def _assistant_message(log: LogState, event: Any) -> None:
    _need_step(log, event)
    _need(tuple(map(tuple, event.chunks)) == log.turn.chunks, "it cites the chunks of its own step, as ranges")
    calls = tuple(OpenCall(block["id"], block["name"], block["arguments"]) for block in event.calls)
    ids = [call.id for call in calls]
    _need(not (event.interrupted and calls), "an interrupted message asks for no calls")
    _need(len(set(ids)) == len(ids), "call ids are unique in their session")
    _need(not any(i in log.call_ids for i in ids), "call ids are unique in their session")
    log.call_ids.update(dict.fromkeys(ids))
    state = CALLS if calls else DONE
    log.turn = log.turn._replace(state=state, calls=calls, is_interrupted=bool(event.interrupted))


def _tool_call(log: LogState, event: Any) -> None:
    _need_step(log, event)
    turn = log.turn
    _need(turn.started < len(turn.calls), "every call of the message has its tool/call")
    call = turn.calls[turn.started]
    _need(event.call_id == call.id, f"the next call of the message is {call.id!r}")
    _need((event.name, event.arguments) == (call.name, call.arguments), "it is not what the message asked for")
    recorded = replace(call, seq=log.length, effects=event.effects)
    calls = (*turn.calls[: turn.started], recorded, *turn.calls[turn.started + 1 :])
    log.turn = turn._replace(calls=calls, started=turn.started + 1)


def _tool_nested(log: LogState, event: Any) -> None:
    _need_step(log, event)
    turn = log.turn
    running = [call.id for call in turn.calls[turn.answered : turn.started]]
    _need(event.parent_call_id in running, "its outer call is not open")


def _tool_result(log: LogState, event: Any) -> None:
    _need_step(log, event)
    turn = log.turn
    call = turn.calls[turn.answered]
    _need(event.call_id == call.id, f"the next call without a result is {call.id!r}")
    _need(event.call_seq == call.seq, f"its tool/call has seq {call.seq}")
    not_started = event.error is not None and event.error["code"] == "TOOL_NOT_STARTED"
    _need(call.seq is not None or not_started, "a call that was never recorded is TOOL_NOT_STARTED")
    answered = turn.answered + 1
    state = DONE if answered == len(turn.calls) else CALLS
    log.turn = turn._replace(state=state, answered=answered, started=max(turn.started, answered))


def _step_end(log: LogState, event: Any) -> None:
    _need_step(log, event)
    failed = log.turn.state == REQUEST
    log.turn = TurnState(TURN, turn=event.turn, step=event.step, may_retry=failed)


def _llm_retry(log: LogState, event: Any) -> None:
    _need_step(log, event)
    _need(log.turn.may_retry, "it follows the end of a step that has no assistant message")
    log.turn = log.turn._replace(may_retry=False)


def _turn_end(log: LogState, event: Any) -> None:
    _need_turn(log, event)
    _need(
        log.turn.state != OPENING or event.reason == "interrupted", "only an interrupted turn ends before its messages"
    )
    log.turn = TurnState(turn=event.turn)


_RULES: Mapping[str, Callable[[LogState, Any], None]] = {
    "inbox/accepted": _accepted,
    "inbox/discarded": _discarded,
    "turn/start": _turn_start,
    "user/message": _user_message,
    "step/start": _step_start,
    "request/header": _request_header,
    "assistant/chunk": _chunk,
    "assistant/message": _assistant_message,
    "tool/call": _tool_call,
    "tool/nested": _tool_nested,
    "tool/result": _tool_result,
    "step/end": _step_end,
    "llm/retry": _llm_retry,
    "turn/end": _turn_end,
}
