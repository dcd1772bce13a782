"""Properties of every log: what may follow, what closes it, and that it reads the same at once and event by event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.llm.strict import check_provider_valid
from app.messages import TextBlock, UserMessage
from app.session import events as ev
from app.session.batch import BatchEnd, Header, chain
from app.session.errors import IllegalEvent
from app.session.grammar import TABLE, advance
from app.session.history import History, derive_messages
from app.session.log_state import LogState
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent
from app.session.recovery import Completed, NotStarted, Reconciled, Unknown, close_interrupted_turn
from app.session.session import Session
from app.session.verification import verify
from tests.support.logs import RandomWalk, legal_logs, walks
from tests.support.recording import EXTENSIONS, MARK, data_of_event, live, record
from tests.support.walk import EXTENSION, Walk

often = settings(max_examples=3 * settings().max_examples)
very_often = settings(max_examples=10 * settings().max_examples)
EVERY_TYPE = [*TABLE, "inbox/accepted", "inbox/discarded", EXTENSION]

NOT_STARTED = "tool call was never started; call the tool again if it is still needed"
STARTED = "tool call was started, but its result was not recorded"
UNKNOWN = {
    "read_only": f"{STARTED}; it may simply be called again",
    "idempotent": f"{STARTED}; it may simply be called again",
    "side_effect": (
        f"{STARTED}: it may or may not have taken effect. Verify the state, or ask the user, before calling it again"
    ),
}


def whole(state: LogState) -> tuple[Any, ...]:
    """Everything that a state is."""
    return state.turn, dict(state.pending), state.accepted, list(state.call_ids), state.header, state.length


def folded(events: Sequence[SessionEvent]) -> LogState:
    """The state of a log, from nothing but what is recorded."""
    state = LogState()
    for event in events:
        advance(state, data_of_event(event))
    return state


# -- what may come -------------------------------------------------------------------------------


def test_the_table_is_that_of_the_rules():
    """INV-05: which type may come in which state, and where it leads."""
    assert TABLE == {
        "turn/start": {"IDLE": ("OPENING",)},
        "user/message": {"OPENING": ("OPENING", "TURN"), "TURN": ("TURN",), "DONE": ("DONE",)},
        "step/start": {"TURN": ("REQUEST",)},
        "request/header": {"REQUEST": ("REQUEST",)},
        "assistant/chunk": {"REQUEST": ("REQUEST",)},
        "assistant/message": {"REQUEST": ("CALLS", "DONE")},
        "tool/call": {"CALLS": ("CALLS",)},
        "tool/nested": {"CALLS": ("CALLS",)},
        "tool/result": {"CALLS": ("CALLS", "DONE")},
        "step/end": {"REQUEST": ("TURN",), "DONE": ("TURN",)},
        "llm/retry": {"TURN": ("TURN",)},
        "turn/end": {"OPENING": ("IDLE",), "TURN": ("IDLE",)},
    }


@often
@given(walks())
def test_what_the_table_allows_is_accepted(walk: RandomWalk):
    """INV-05: any walk over the table is a legal log; its state is where the walk is, and the fold of its record."""
    session = live(walk.events)
    turn = session.state.turn
    assert [(event.type, event.text) for event in session.events] == [(e.type, e.text) for e in record(walk.events)]
    assert (turn.state, turn.turn, turn.step if turn.state in ("REQUEST", "CALLS", "DONE") else walk.step) == (
        walk.state,
        walk.turn,
        walk.step,
    )
    assert list(session.state.pending) == list(walk.pending)
    assert [call.id for call in turn.open_calls] == [call["id"] for call in walk.calls[walk.answered :]]
    assert whole(session.state) == whole(folded(session.events))


@given(walks(max_events=0))
def test_whatever_else_comes_is_refused(walk: RandomWalk):
    """INV-05: a type that may not come here, or one that may with anything wrong in it; the log stays as it was."""
    session = live()
    for _ in range(30):
        before, events = whole(session.state), session.events
        possible = walk.may_come()
        for type in EVERY_TYPE:
            for event in wrong_versions(walk, walk.make(type)) if type in possible else strays(walk, type):
                with pytest.raises(IllegalEvent) as refused:
                    session.append(event)
                assert (refused.value.state, refused.value.event) == (walk.state, event.type), event
                assert refused.value.condition, event
        assert whole(session.state) == before
        assert session.events == events
        session.append(walk.go())


def strays(walk: RandomWalk, type: str) -> Iterator[ev.EventData]:
    """Events of a type that may not come here, otherwise as right as they can be."""
    turn, step = walk.turn, walk.step
    message = {"id": "nobody", "content": "go"}
    last_call = walk.calls[-1] if walk.calls else {"id": "c1", "name": "read", "arguments": "{}"}
    id, seq = last_call["id"], walk.called.get(last_call["id"])
    match type:
        case "turn/start":
            yield ev.TurnStart(turn + 1, walk.free_of("next_turn", "next_step")[:1] or ["nobody"])
            yield ev.TurnStart(turn + 1, walk.free_of("context") or ["nobody"])
        case "user/message":
            yield ev.UserMessage(turn, message, "context")
            for accepted in walk.pending.values():
                yield ev.UserMessage(turn, accepted.message, accepted.placement)
        case "step/start":
            yield ev.StepStart(turn, step + 1)
        case "request/header":
            yield ev.RequestHeader(turn, step, "change", {"adapter": "script", "model": "test"}, [])
        case "assistant/chunk":
            yield ev.AssistantChunk(turn, step, {"kind": "text_delta", "index": 0, "text": "a"})
        case "assistant/message":
            model = {"adapter": "script", "model": "test"}
            yield ev.AssistantMessage(turn, step, [{"type": "text", "text": "a"}], walk.ranges(), model, "stop")
        case "tool/call" if not walk.is_skipping:
            yield ev.ToolCall(turn, step, id, last_call["name"], last_call["arguments"], "read_only")
        case "tool/nested":
            yield ev.ToolNested(turn, step, id, f"{id}:1", "read", "{}", False)
        case "tool/result":
            yield ev.ToolResult(turn, step, id, seq, True, error={"code": "TOOL_NOT_STARTED", "message": "no"})
        case "step/end":
            yield ev.StepEnd(turn, step)
        case "llm/retry":
            yield ev.LlmRetry(turn, step, 1, 500, {"message": "busy", "code": "RATE_LIMIT"})
        case "turn/end":
            yield ev.TurnEnd(turn, "interrupted")
        case "inbox/discarded":
            yield ev.InboxDiscarded(["nobody"], "user")


def wrong_versions(walk: RandomWalk, right: ev.EventData) -> Iterator[ev.EventData]:
    """Events that differ from a legal one in one thing that a condition of the grammar is about."""
    yield from _wrong_numbers(right)
    gone = [event.message["id"] for event in walk.events if isinstance(event, ev.InboxAccepted)]
    gone = [id for id in gone if id not in walk.pending]
    used = [block["id"] for event in walk.events if isinstance(event, ev.AssistantMessage) for block in event.calls]
    match right:
        case ev.InboxAccepted():
            for id in ("", "\x1b", "\udc81", "x" * 201, *gone[:1], *list(walk.pending)[:1]):
                yield replace(right, message={**right.message, "id": id})
            yield replace(right, message={**right.message, "content": ""})
        case ev.InboxDiscarded():
            for ids in ([], [*right.ids, right.ids[0]], [*right.ids, "nobody"], gone[:1], walk.announced[:1]):
                yield replace(right, ids=ids)
        case ev.TurnStart():
            *contexts, waking = right.input
            others = [id for id in walk.free_of("next_turn", "next_step") if id != waking]
            for ids in ([], contexts, [waking, waking], [*contexts, "nobody", waking], [waking, "nobody"], gone[:1]):
                yield replace(right, input=ids)
            yield replace(right, input=[*others[:1], "nobody"] if not others else [others[0], waking])
            if contexts:
                yield replace(right, input=[waking, *contexts])
        case ev.UserMessage():
            yield replace(right, message={**right.message, "id": "nobody"})
            yield replace(right, message={**right.message, "content": "something else"})
            yield replace(right, message={**right.message, "meta": {"more": 1}})
            yield replace(right, placement="next_step" if right.placement == "context" else "context")
            for id, accepted in walk.pending.items():
                in_order = id == walk.announced[0] if walk.announced else accepted.placement != "next_turn"
                if not in_order:
                    yield replace(right, message=accepted.message, placement=accepted.placement)
        case ev.AssistantMessage():
            yield from _wrong_messages(walk, right, used)
        case ev.ToolCall():
            for id in ("nobody", *[call["id"] for call in walk.calls if call["id"] != right.call_id]):
                yield replace(right, call_id=id)
            yield replace(right, name=right.name + "x")
            yield replace(right, arguments=right.arguments + " ")
        case ev.ToolNested():
            for id in ("nobody", *[call["id"] for call in walk.calls if call["id"] not in walk.running()]):
                yield replace(right, parent_call_id=id)
        case ev.ToolResult():
            for id in ("nobody", *[call["id"] for call in walk.calls if call["id"] != right.call_id]):
                yield replace(right, call_id=id)
            yield replace(right, call_seq=len(walk.events))
            yield replace(right, value=1, error={"code": "X", "message": "x"})
            yield replace(right, value=ev.ABSENT, error=None)
            if right.call_seq is None:
                yield replace(right, error={"code": "TOOL_OUTCOME_UNKNOWN", "message": "x"})
                yield replace(right, is_error=False, value=1, error=None)
            else:
                yield replace(right, call_seq=None)
        case ev.TurnEnd() if walk.state == "OPENING":
            yield replace(right, reason="completed")
            yield replace(right, reason="aborted", cause="user")


def _wrong_numbers(right: Any) -> Iterator[ev.EventData]:
    for name in ("turn", "step"):
        if hasattr(right, name):
            yield replace(right, **{name: getattr(right, name) + 1})
            yield replace(right, **{name: getattr(right, name) - 1})


def _wrong_messages(walk: RandomWalk, right: ev.AssistantMessage, used: list[str]) -> Iterator[ev.EventData]:
    yield replace(right, chunks=[*right.chunks, [len(walk.events), len(walk.events)]])
    if right.chunks:
        first, last = right.chunks[0][0], right.chunks[-1][1]
        yield replace(right, chunks=right.chunks[1:])
        yield replace(right, chunks=[[first - 1, right.chunks[0][1]], *right.chunks[1:]])
        if len(right.chunks) > 1:
            yield replace(right, chunks=right.chunks[::-1])
            yield replace(right, chunks=[[first, last]])
        elif last > first:
            yield replace(right, chunks=[[first, first], [first + 1, last]])
    call = {"type": "tool_call", "id": "new", "name": "read", "arguments": "{}"}
    plain = replace(right, interrupted=None)
    yield replace(plain, content=[*right.content, call, call])
    yield replace(plain, content=[*right.content, call], interrupted=True)
    for id in used[:1]:
        yield replace(plain, content=[*right.content, {**call, "id": id}])


def test_halves_of_a_character_are_the_character_in_the_state_too():
    """INV-05: what the log keeps in one way only is one thing for the grammar too: here, the id of a call."""
    walk = RandomWalk(lambda options: options[0])
    for type in ("inbox/accepted", "turn/start", "user/message", "step/start"):
        walk.take(walk.make(type))
    block = {"type": "tool_call", "id": "\ud83d\ude00", "name": "read", "arguments": '"\ud83d\ude00"'}
    model = {"adapter": "script", "model": "test"}
    session = live([*walk.events, ev.AssistantMessage(1, 1, [block], [], model, "tool_calls")])
    assert whole(session.state) == whole(folded(session.events))
    with pytest.raises(IllegalEvent):
        live([*walk.events, ev.AssistantMessage(1, 1, [block, {**block, "id": "😀"}], [], model, "tool_calls")])


# -- what closes a log ---------------------------------------------------------------------------

answers = st.lists(
    st.sampled_from([None, Unknown(), NotStarted(), Completed({"a": [1, None]})]), min_size=4, max_size=4
)


@pytest.mark.timeout(3 * settings().max_examples)
@very_often
@given(legal_logs(max_events=25), answers)
def test_every_prefix_of_a_log_is_closed_into_one_that_can_go_on(
    log: tuple[ev.EventData, ...], told: list[Reconciled | None]
):
    """RPR-12: closers are legal, balance the log, satisfy a vendor, and closing again adds nothing."""
    events, walk = record(log), Walk()
    for end in range(len(events) + 1):
        prefix = events[:end]
        open_calls = [call["id"] for call in walk.calls[walk.answered :]] if walk.state == "CALLS" else []
        known = {id: answer for id, answer in zip(open_calls, told, strict=False) if answer is not None}
        closers = close_interrupted_turn(prefix, known)
        assert [data_of_event(closer) for closer in closers] == expected_closers(walk, known)
        assert [(closer.seq, closer.time) for closer in closers] == [
            (end + n, prefix[-1].time) for n in range(len(closers))
        ]
        session = live(log[:end])
        if closers:
            session.append(*map(data_of_event, closers))
        assert_can_go_on(session, walk, prefix + closers)
        assert close_interrupted_turn(prefix + closers) == ()
        for event in log[end : end + 1]:
            walk.take(event)


def expected_closers(walk: Walk, known: dict[str, Reconciled]) -> list[ev.EventData]:
    """What the rules say, from the walk's own account."""
    closers: list[ev.EventData] = []
    if walk.state == "CALLS":
        effects = {event.call_id: event.effects for event in walk.events if isinstance(event, ev.ToolCall)}
        for call in walk.calls[walk.answered :]:
            id, seq = call["id"], walk.called.get(call["id"])
            answer = known.get(id) if seq is not None else NotStarted()
            if isinstance(answer, Completed):
                closers.append(ev.ToolResult(walk.turn, walk.step, id, seq, False, value=answer.value, reconciled=True))
                continue
            error = {"code": "TOOL_OUTCOME_UNKNOWN", "message": UNKNOWN[effects.get(id, "side_effect")]}
            if isinstance(answer, NotStarted):
                error = {"code": "TOOL_NOT_STARTED", "message": NOT_STARTED}
            closers.append(ev.ToolResult(walk.turn, walk.step, id, seq, True, error=error))
    if walk.state in ("REQUEST", "CALLS", "DONE"):
        closers.append(ev.StepEnd(walk.turn, walk.step))
    if walk.state != "IDLE":
        closers.append(ev.TurnEnd(walk.turn, "interrupted"))
    return closers


def assert_can_go_on(session: Session, walk: Walk, closed: tuple[SessionEvent, ...]) -> None:
    assert [(event.type, event.text) for event in session.events] == [(event.type, event.text) for event in closed]
    assert session.state.turn.state == "IDLE"
    assert list(session.state.pending) == list(walk.pending)
    asked = [block["id"] for event in closed if event.type == "assistant/message" for block in _calls(event)]
    assert asked == [event.data["call_id"] for event in closed if event.type == "tool/result"]
    check_provider_valid((*derive_messages(closed), UserMessage((TextBlock("go on"),))))
    session.append(ev.InboxAccepted({"id": "the next", "content": "go on"}, "next_turn"))
    session.append(ev.TurnStart(walk.turn + 1, ["the next"]))


def _calls(event: SessionEvent) -> list[ev.JsonObject]:
    return [block for block in event.data["content"] if block["type"] == "tool_call"]


@given(legal_logs(), st.lists(st.integers(0, 2**50), min_size=40, max_size=40))
def test_closers_are_the_same_bytes_whatever_the_clock_says(log: tuple[ev.EventData, ...], times: list[int]):
    """RPR-13: closed twice they are equal; of a log with other times, they differ in the last event's time alone."""
    events = record(log)
    closers = close_interrupted_turn(events)
    assert close_interrupted_turn(events) == closers
    timed = record(log, time=times.__getitem__)
    assert close_interrupted_turn(timed) == tuple(replace(closer, time=timed[-1].time) for closer in closers)


# -- what a log reads as -------------------------------------------------------------------------


@given(legal_logs(min_events=40))
def test_a_log_reads_the_same_at_once_and_event_by_event(log: tuple[ev.EventData, ...]):
    """LOOP-41: the messages of every prefix, folded from nothing, one event at a time, and by the live session."""
    history, session, events = History(), live(), record(log)
    for seq, event in enumerate(log):
        history.add(event)
        session.append(event)
        assert history.messages == session.messages == derive_messages(events[: seq + 1])


@given(legal_logs(), st.sets(st.integers(0, 39)))
def test_a_log_that_is_read_back_adds_up_to_what_it_was(log: tuple[ev.EventData, ...], borders: set[int]):
    """INV-05: state and messages of a live session equal those of its stored log, whatever the batches it came in."""
    session, header = live(log), Header.make("s", 0)
    ends: list[BatchEnd] = []
    start, head = 0, header.digest
    for seq in range(len(log)):
        if seq in borders or seq == len(log) - 1:
            head = chain(head, session.events[start : seq + 1])
            ends.append(BatchEnd(seq, "caller", 0, head))
            start = seq + 1
    stored = StoredLog("s", header.text, session.events, tuple(ends), len(log), head, Holder(1, None, 0.0))
    read, fold = verify(stored, {extension.name: extension for extension in EXTENSIONS if extension != MARK})
    assert read == header
    assert whole(fold.state) == whole(session.state)
    assert fold.history.messages == session.messages
