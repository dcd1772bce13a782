"""The live log and its observers: what append takes and refuses, who is told, and in which order."""

from __future__ import annotations

import datetime
import decimal
import enum
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from app.agent.agent import Agent
from app.agent.step import Step
from app.llm.scripted import call, fail, say
from app.middleware import Named
from app.session import events as ev
from app.session.errors import IllegalEvent, ReentrantAppend, SessionNotFound, UnstorableValue
from app.session.record import SessionEvent
from app.session.session import Session
from app.session.values import decode, encode
from app.tools.schema import tool
from app.tools.types import ToolExecution
from tests.support.asked import Asked
from tests.support.house import House
from tests.support.recording import EXTENSIONS, MARK, NOTE, live
from tests.support.stores import Place
from tests.support.watching import at

MODEL = {"adapter": "script", "model": "test"}
ACCEPTED = ev.InboxAccepted({"id": "m1", "content": "go"}, "next_turn")
OPENED = (ACCEPTED, ev.TurnStart(1, ["m1"]), ev.UserMessage(1, ACCEPTED.message, "next_turn"))
ASKING = (*OPENED, ev.StepStart(1, 1))


def blocks(*ids: str) -> list[ev.JsonObject]:
    return [{"type": "tool_call", "id": id, "name": "act", "arguments": "{}"} for id in ids]


def answer(content: list[ev.JsonObject], chunks: list[list[int]] | None = None, **more: Any) -> ev.AssistantMessage:
    return ev.AssistantMessage(1, 1, content, chunks or [], MODEL, "stop", **more)


def started(id: str, turn: int = 1, step: int = 1) -> ev.ToolCall:
    return ev.ToolCall(turn, step, id, "act", "{}", "read_only")


def result(id: str, seq: int | None, turn: int = 1, step: int = 1, value: Any = "done") -> ev.ToolResult:
    return ev.ToolResult(turn, step, id, seq, False, value=value)


def not_started(id: str) -> ev.ToolResult:
    return ev.ToolResult(1, 1, id, None, True, error={"code": "TOOL_NOT_STARTED", "message": "no"})


def names(session: Session) -> list[str]:
    return [event.type for event in session.events]


# -- appending -----------------------------------------------------------------------------------


async def test_groups_are_numbered_on_and_nothing_is_stored_by_appending():
    """LOG-01: seq is 0, 1, 2, ... over three groups; the store has never heard of the session."""
    house = House()
    async with house.opened():
        session = await house.sessions.create("s")
        groups = [session.append(ACCEPTED), session.append(*OPENED[1:]), session.append(ev.StepStart(1, 1))]
        assert [[event.seq for event in group] for group in groups] == [[0], [1, 2], [3]]
        assert session.events == tuple(event for group in groups for event in group)
        assert names(session) == ["inbox/accepted", "turn/start", "user/message", "step/start"]
        assert session.durable == 0
        assert await house.sessions.list() == []
        with pytest.raises(SessionNotFound):
            await house.sessions.inspect("s")


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    __slots__ = ()


def cycle() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


BAD: list[tuple[Any, str]] = [
    *[(math.nan, ""), (math.inf, ""), (-math.inf, ""), (b"x", ""), ({1}, ""), ((1,), ""), (object(), "")],
    *[(datetime.date(2024, 1, 1), ""), (decimal.Decimal(1), ""), (Colour.RED, ""), (Text("x"), "")],
    *[({1: 2}, ""), ({"a": {None: 2}}, "/a"), (cycle(), "/0"), ({"\ud83d\ude00": 1, "😀": 2}, "")],
]
"""A value of each refused kind, and where in it the pointer ends."""

CARRIERS: dict[str, tuple[tuple[ev.EventData, ...], Callable[[Any], ev.EventData], str]] = {
    "extension": ((), lambda value: ev.Extension(NOTE, {"a": [value]}), "/a/0"),
    "message content": (
        (),
        lambda value: ev.InboxAccepted({"id": "m9", "content": [{"type": "x", "a/b": [0, value]}]}, "context"),
        "/message/content/0/a~1b/1",
    ),
    "message meta": (
        (),
        lambda value: ev.InboxAccepted({"id": "m9", "content": "go", "meta": {"~": value}}, "context"),
        "/message/meta/~0",
    ),
    "request header": (
        ASKING,
        lambda value: ev.RequestHeader(1, 1, "initial", {**MODEL, "seeds": [value]}, []),
        "/config/seeds/0",
    ),
    "tool schema": (
        ASKING,
        lambda value: ev.RequestHeader(
            1, 1, "initial", MODEL, [{"name": "a", "description": "", "schema": {"x": value}}]
        ),
        "/tools/0/schema/x",
    ),
    "chunk": (
        ASKING,
        lambda value: ev.AssistantChunk(1, 1, {"kind": "usage", "usage": {"n": value}}),
        "/chunk/usage/n",
    ),
    "replay state": (ASKING, lambda value: answer([], replay_state=[[value]]), "/replay_state/0/0"),
    "tool result": (
        (*ASKING, answer(blocks("c1")), started("c1")),
        lambda value: result("c1", 5, value={"deep": [[value]]}),
        "/value/deep/0/0",
    ),
}


@pytest.mark.parametrize(("bad", "place"), BAD, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_value_that_cannot_be_stored_is_refused_with_its_path(carrier: str, bad: Any, place: str):
    """LOG-02: in the data of any event; nothing of its group is taken and nobody is told."""
    before, carry, path = CARRIERS[carrier]
    session = live(before)
    told: list[object] = []
    session.observe(told.append)
    events, state = session.events, session.state.snapshot()
    with pytest.raises(UnstorableValue) as refused:
        session.append(ev.Extension(MARK, {"n": 1}), carry(bad))
    assert refused.value.path == path + place
    assert session.events == events
    assert session.state.snapshot() == state
    assert told == []
    (next_one,) = session.append(carry("good"))
    assert next_one.seq == len(events)
    assert told == [next_one]


async def test_nesting_of_100_000_levels_is_kept(place: Place):
    """LOG-04: appended, stored and loaded again it is equal."""
    text = '{"a":[' * 50_000 + "1" + "]}" * 50_000
    house = House(persistence=place.persistence(), extensions=EXTENSIONS)
    async with house.opened():
        session = await house.sessions.create("s")
        session.append(ev.Extension(NOTE, decode(text)))  # type: ignore[arg-type]  # it is an object
        assert session.events[0].text == text
        await house.sessions.release(session)
    again = House(persistence=place.persistence(), extensions=EXTENSIONS)
    async with again.opened():
        resumed = await again.sessions.resume("s")
        assert resumed.events == session.events
        assert encode(resumed.events[0].data) == text


def test_what_is_in_the_log_cannot_be_changed_from_outside():
    """LOG-05: neither through what was appended nor through what was read."""
    session = live()
    body = {"tags": ["a"], "deep": {"n": 1}}
    message = {"id": "m1", "content": [{"type": "text", "text": "original"}]}
    first, second = session.append(ev.Extension(NOTE, body), ev.InboxAccepted(message, "context"))
    body["tags"].append("b")  # type: ignore[attr-defined]
    body["deep"]["n"] = 2  # type: ignore[index]
    message["content"][0]["text"] = "changed"  # type: ignore[index]
    first.data["tags"].append("c")
    first.data.clear()
    session.events[1].data["message"]["content"].clear()
    session.state.pending["m1"].value["content"].clear()
    assert session.events == (first, second)
    assert first.data == {"tags": ["a"], "deep": {"n": 1}}
    original = {"id": "m1", "content": [{"type": "text", "text": "original"}]}
    assert second.data["message"] == session.state.pending["m1"].value == original


def test_a_snapshot_of_the_events_does_not_grow():
    """LOG-14: what was taken before an append is as it was after it."""
    session = live([ACCEPTED])
    held, some = session.events, session.events_from(0)
    session.append(*OPENED[1:])
    assert (len(held), len(some), len(session)) == (1, 1, 3)


# -- observers -----------------------------------------------------------------------------------


def test_an_observer_that_raises_is_contained_and_logged_once(caplog):
    """LOG-07: the event stays, the others are told, and the log says it once."""
    session = live()
    told: list[object] = []
    session.observe(told.append)

    def broken(event: object) -> None:
        raise RuntimeError("this observer is broken")

    session.observe(broken)
    session.observe(told.append)
    with caplog.at_level(logging.DEBUG):
        (event,) = session.append(ACCEPTED)
    assert session.events == (event,)
    assert told == [event, event]
    (entry,) = caplog.records
    assert entry.exc_info is not None
    assert "this observer is broken" in str(entry.exc_info[1])


def test_an_observer_cannot_append():
    """LOG-08: it is told ReentrantAppend; the outer append is fine, and the others are told in order."""
    session = live()
    told: list[object] = []
    refused: list[type[Exception]] = []

    def append(event: object) -> None:
        try:
            session.append(ev.Extension(NOTE, {}))
        except ReentrantAppend as error:
            refused.append(type(error))

    session.observe(append)
    session.observe(told.append)
    group = session.append(*OPENED)
    assert refused == [ReentrantAppend] * 3
    assert session.events == group
    assert told == list(group)
    assert session.append(ev.StepStart(1, 1))[0].seq == 3


ALL_TYPES = [*ev.CATALOGUE, NOTE.name]


class Listener:
    """Records an extension event after each step."""

    appends = (NOTE,)

    async def __call__(self, step: Step) -> None:
        step.append(NOTE, {"step": step.step})


def lively_house() -> House:
    """One turn of it has every type of event but `inbox/discarded`."""

    @tool
    async def inner() -> str:
        return "inside"

    @tool
    async def outer(execution: ToolExecution) -> str:
        return str((await execution.execute_nested("inner", {})).value)

    return House(
        steps=[fail("RATE_LIMIT"), call("outer", {}, id="c1"), say("done"), *[say("again")] * 9],
        tools=[inner, outer],
        retry=Asked(retries=1),
        listeners_above=[Named("note", Listener())],
        extensions=[NOTE],
    )


@pytest.mark.parametrize("type", ALL_TYPES)
async def test_what_observers_put_into_the_inbox_is_recorded_after_the_publication(type: str):
    """OBS-01: in the order of the calls, before the outer append returns; everybody is told in the order of the log."""
    house = lively_house()
    async with house.agent() as agent:
        session = agent.session
        told_first: list[int] = []
        told_last: list[int] = []
        session.observe(lambda told: told_first.append(told.seq) if isinstance(told, SessionEvent) else None)
        acted = act_at_first(agent, type)
        session.observe(lambda told: told_last.append(told.seq) if isinstance(told, SessionEvent) else None)
        grown = lengths_after_appends(session)
        agent.discard([agent.inject("not needed")])
        prompt = agent.send("go")
        await agent.wait(prompt)
        await agent.wait_idle()
        (end, dropped) = acted
        new = session.events[end : end + 4]
        assert [event.type for event in new] == ["inbox/accepted"] * 3 + ["inbox/discarded"]
        assert [event.data["placement"] for event in new[:3]] == ["next_turn", "next_step", "context"]
        sent, steered, _ = (event.data["message"]["id"] for event in new[:3])
        assert new[3].data == {"ids": [*dropped, sent, steered], "cause": "an observer"}
        assert grown[end] == end + 4
        assert told_first == told_last == list(range(len(session)))


def act_at_first(agent: Agent, type: str) -> list[Any]:
    """Use every verb at the first event of this type; gives the end of its group, and who waits by then."""
    acted: list[Any] = []

    def act() -> None:
        acted.append(len(agent.session))
        acted.append([entry.id for entry in agent.session.state.pending_of("next_turn", "next_step")])
        agent.send("one")
        agent.steer("two")
        agent.inject("three")
        agent.cancel("an observer")
        assert len(agent.session) == acted[0]

    at(agent.session, type, act)
    return acted


def lengths_after_appends(session: Session) -> dict[int, int]:
    """For each append from now on: where its own group ends, and the length of the log when it returned."""
    grown: dict[int, int] = {}
    append = session.append

    def watched(*data: ev.EventData) -> tuple[SessionEvent, ...]:
        group = append(*data)
        grown[group[-1].seq + 1] = len(session)
        return group

    session.append = watched  # type: ignore[method-assign]
    return grown


@pytest.mark.parametrize("deep", [10, 2000])
async def test_a_chain_of_messages_from_an_observer_is_recorded_in_order(deep: int):
    """OBS-02: each acceptance sends one more, ten deep and deeper than any stack."""
    async with House().agent() as agent:

        def one_more(told: object) -> None:
            if isinstance(told, SessionEvent) and told.seq < deep:
                agent.inject(f"message {told.seq + 1}")

        agent.session.observe(one_more)
        agent.inject("message 0")
        contents = [event.data["message"]["content"] for event in agent.session.events]
        assert contents == [f"message {n}" for n in range(deep + 1)]


# -- the grammar, at append ----------------------------------------------------------------------


def refused(before: tuple[ev.EventData, ...], *group: ev.EventData) -> IllegalEvent:
    """The error of appending a group; fails if it changed anything."""
    session = live(before)
    events, state = session.events, session.state.snapshot()
    with pytest.raises(IllegalEvent) as error:
        session.append(*group)
    assert session.events == events
    assert session.state.snapshot() == state
    return error.value


CALLED = (*ASKING, answer(blocks("c1", "c2")), started("c1"))
CHUNK = {"kind": "text_delta", "index": 0, "text": "a"}


@pytest.mark.parametrize(
    ("before", "event", "state"),
    [
        (ASKING, ev.AssistantChunk(2, 1, CHUNK), "REQUEST"),
        (ASKING, ev.AssistantChunk(1, 2, CHUNK), "REQUEST"),
        (ASKING, ev.AssistantChunk(1, 0, CHUNK), "REQUEST"),
        (CALLED, started("c2", turn=2), "CALLS"),
        (CALLED, started("c2", step=2), "CALLS"),
        (CALLED, result("c1", 5, turn=0), "CALLS"),
        (CALLED, result("c1", 5, step=2), "CALLS"),
    ],
)
def test_an_event_of_another_turn_or_step_is_refused(before, event, state):
    """INV-01: a chunk, a call, a result; the error names the state and the condition."""
    error = refused(before, event)
    assert (error.state, error.event) == (state, event.type)
    assert error.condition in ("turn 1 is open", "step 1 is the last")


def test_a_result_needs_its_call():
    """INV-02: without a `tool/call` only TOOL_NOT_STARTED may come, and without a seq; its call cannot follow it."""
    asked = (*ASKING, answer(blocks("c1", "c2")))
    for event in (
        result("c1", None),
        result("c1", 4),
        ev.ToolResult(1, 1, "c1", None, True, error={"code": "TOOL_OUTCOME_UNKNOWN", "message": "no"}),
        ev.ToolResult(1, 1, "c1", 4, True, error={"code": "TOOL_NOT_STARTED", "message": "no"}),
        not_started("c2"),
    ):
        assert refused(asked, event).state == "CALLS"
    assert refused((*asked, not_started("c1")), started("c1")).state == "CALLS"
    assert names(live((*asked, not_started("c1"), not_started("c2"))))[-2:] == ["tool/result", "tool/result"]


def test_a_call_has_one_result():
    """INV-02: a second one is refused, with calls open and without."""
    answered = (*CALLED, result("c1", 5))
    assert refused(answered, result("c1", 5)).state == "CALLS"
    done = (*answered, started("c2"), result("c2", 7))
    for id, seq in (("c1", 5), ("c2", 7)):
        assert refused(done, result(id, seq)).state == "DONE"


HEADER = ev.RequestHeader(1, 1, "initial", MODEL, [])


@pytest.mark.parametrize(
    ("before", "event", "state"),
    [
        ((ACCEPTED,), ev.TurnStart(2, ["m1"]), "IDLE"),
        ((ACCEPTED,), ev.TurnStart(0, ["m1"]), "IDLE"),
        (OPENED, ev.StepStart(1, 2), "TURN"),
        (OPENED, ev.StepStart(1, 0), "TURN"),
        ((*ASKING, ev.StepEnd(1, 1)), ev.StepStart(1, 1), "TURN"),
        ((*ASKING, ev.StepEnd(1, 1)), ev.StepStart(1, 3), "TURN"),
        (ASKING, ev.TurnEnd(1, "completed"), "REQUEST"),
        (CALLED, ev.TurnEnd(1, "completed"), "CALLS"),
        ((*ASKING, answer([])), ev.TurnEnd(1, "completed"), "DONE"),
        (CALLED, ev.StepEnd(1, 1), "CALLS"),
        ((*CALLED, result("c1", 5)), ev.StepEnd(1, 1), "CALLS"),
        ((*ASKING, HEADER), HEADER, "REQUEST"),
        ((*ASKING, ev.AssistantChunk(1, 1, CHUNK)), HEADER, "REQUEST"),
    ],
)
def test_what_skips_or_leaves_something_open_is_refused(before, event, state):
    """INV-03: a turn or step number skipped, an end with something open, a second or late header."""
    error = refused(before, event)
    assert (error.state, error.event) == (state, event.type)


@pytest.mark.parametrize(
    "config",
    [{"adapter": 1}, {"model": None}, {"stop": "END"}, {"stop": [1]}, {"max_tokens": 1.5}, {"temperature": "hot"}],
)
def test_a_header_that_no_request_can_be_made_of_is_refused(config):
    """INV-06: at append already, as when it is loaded."""
    error = refused(ASKING, ev.RequestHeader(1, 1, "initial", MODEL | config, []))
    assert (error.state, error.event) == ("REQUEST", "request/header")


def test_a_group_with_an_illegal_event_leaves_nothing():
    """INV-04: neither the legal one before it nor what it changed."""
    error = refused((ACCEPTED,), ev.TurnStart(1, ["m1"]), ev.StepStart(1, 1))
    assert (error.state, error.event) == ("OPENING", "step/start")
    accepted = ev.InboxAccepted({"id": "m2", "content": "more"}, "context")
    assert refused((ACCEPTED,), accepted, accepted).state == "IDLE"
    assert refused(ASKING, HEADER, answer(blocks("c1", "c2")), started("c2")).state == "CALLS"


IN_EVERY_STATE = {
    "IDLE": (),
    "OPENING": OPENED[:2],
    "TURN": OPENED,
    "REQUEST": ASKING,
    "CALLS": CALLED,
    "DONE": (*ASKING, answer([])),
}


@pytest.mark.parametrize("state", IN_EVERY_STATE)
def test_a_declared_extension_may_stand_anywhere(state: str):
    """INV-07: it changes neither the state nor history, and is what it was declared; an undeclared type is refused."""
    session = live(IN_EVERY_STATE[state])
    assert session.state.turn.state == state
    turn, pending, messages = session.state.turn, session.state.pending, session.messages
    otherwise = ev.ExtensionType(NOTE.name, ignorable=True), ev.ExtensionType(MARK.name)
    plain, ignorable = session.append(ev.Extension(otherwise[0], {"n": 1}), ev.Extension(otherwise[1], {}))
    assert (plain.type, plain.data, plain.ignorable) == ("test/note", {"n": 1}, False)
    assert (ignorable.type, ignorable.ignorable) == ("test/mark", True)
    assert (session.state.turn, session.state.pending, session.messages) == (turn, pending, messages)
    for name in ("test/other", "session/title", "tool/result", "turn/end", "test/note "):
        error = refused(IN_EVERY_STATE[state], ev.Extension(ev.ExtensionType(name, ignorable=True), {}))
        assert (error.state, error.event) == (state, name)


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "times"),
    [
        (lambda n: 7_000_000, [7_000_000] * 100),
        (lambda n: 7_000_000 - 3_600_000 * (n >= 50), [7_000_000] * 50 + [3_400_000] * 50),
    ],
    ids=["frozen", "an hour back"],
)
async def test_the_order_is_that_of_seq_whatever_the_clock_does(place: Place, clock, times):
    """TIM-01: on every read, with the times as they were stamped."""
    asked = iter(range(-1, 10_000))  # the first time is that of the header
    house = House(persistence=place.persistence(), extensions=EXTENSIONS, clock=lambda: clock(next(asked)))
    async with house.opened():
        session = await house.sessions.create("s")
        for n in range(100):
            session.append(ev.Extension(NOTE, {"n": n}))
            if n % 7 == 0:
                await house.sessions.flush(session)
        await house.sessions.release(session)
        logs = [session.events, (await house.sessions.inspect("s")).events]
        logs.append(tuple(await house.sessions.read_from("s", 0)))
        logs.append((*await house.sessions.read_from("s", 0, 50), *await house.sessions.read_from("s", 50)))
        logs.append((await house.sessions.resume("s")).events)
        for log in logs:
            assert [(event.seq, event.data["n"], event.time) for event in log] == [(n, n, times[n]) for n in range(100)]
        (row,) = await house.sessions.list()
        assert (row.created_at, row.next_seq) == (7_000_000, 100)
