"""Logs that are none, or those of another build: refused with the place and left as they are, or kept and gone on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.agent.requests import make_request, rebuild_requests
from app.llm.scripted import say
from app.session import events as ev
from app.session.batch import Batch, BatchEnd, Header
from app.session.errors import CorruptLog, PersistenceError, UnknownEventType, UnsupportedFormat
from app.session.history import derive_messages
from app.session.ownership import Epoch, Owner
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent
from app.session.values import encode
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.samples import ALREADY_OVER
from tests.support.house import House, shorten
from tests.support.logs import random_walk
from tests.support.recording import EXTENSIONS, MARK, NOTE, record
from tests.support.stores import Place
from tests.support.watching import taken

MODEL = {"adapter": "script", "model": "test"}


def turn(number: int) -> list[ev.EventData]:
    """A turn of one answered step: seven events."""
    message = {"id": f"m{number}", "content": f"prompt {number}"}
    text = [{"type": "text", "text": f"answer {number}"}]
    return [
        *(ev.InboxAccepted(message, "next_turn"), ev.TurnStart(number, [f"m{number}"])),
        *(ev.UserMessage(number, message, "next_turn"), ev.StepStart(number, 1)),
        *(ev.AssistantMessage(number, 1, text, [], MODEL, "stop"), ev.StepEnd(number, 1)),
        ev.TurnEnd(number, "completed"),
    ]


async def write(house: House, events: Sequence[SessionEvent], *borders: int, header: Header | None = None) -> None:
    """Store a session as a faulty or newer writer would: digests and batches are right, whatever the events say.

    Its lease has run out when it begins.
    """
    header = header or Header.make("s", 1)
    writer = Writer(house.persistence, header, Epoch.first(Owner("the writer", ALREADY_OVER)), header.digest)
    for start, end in zip((0, *borders), (*borders, len(events)), strict=True):
        await writer.write(events=events[start:end])


async def refusals(house: House, place: Place, boundary: int | None = None) -> list[PersistenceError]:
    """What loading, forking and looking raise or report; fails if any of it changed anything."""
    before = await picture(house, place)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: house.sessions.resume("s"),
        lambda: house.agents.resume("s"),
        lambda: house.sessions.fork("s", boundary, "child"),
        lambda: look(house),
    ]
    told = []
    for attempt in attempts:
        with pytest.raises(PersistenceError) as refused:
            await attempt()
        told.append(refused.value)
    assert await picture(house, place) == before
    assert house.sessions.live == ()
    return told


async def look(house: House) -> None:
    """Raise what looking at the session finds wrong with it, whether that is told in words or as an exception."""
    problem = (await house.sessions.inspect("s")).problem
    assert problem is not None
    raise problem


async def picture(house: House, place: Place) -> object:
    """The session as far as it can be read, and every byte of the files."""
    try:
        log: object = replace(await house.persistence.read("s"), holder=Holder(0, None, 0.0))
    except PersistenceError as error:
        log = str(error)
    paths = (path for path in place.directory.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return log, {str(path): path.read_bytes() for path in sorted(paths)}


def house_of(place: Place, *answers: str) -> House:
    return House([say(answer) for answer in answers], persistence=place.persistence(), extensions=EXTENSIONS)


# -- the header ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ('{"format":2,"id":"s","created_at":1}', "2"),
        ('{"format":2}', "2"),
        ('{"parent":[],"id":{"new":"s"},"format":10}', "10"),
        ('{"format":0,"id":"s","created_at":1}', "0"),
        ('{"format":-1,"id":"s","created_at":1}', "-1"),
        ('{"format":"1","id":"s","created_at":1}', '"1"'),
        ('{"format":true,"id":"s","created_at":1}', "true"),
        ('{"format":1.0,"id":"s","created_at":1}', "1.0"),
        ('{"id":"other","created_at":"x"}', "null"),
    ],
)
async def test_a_log_of_another_format_is_told_as_such(place: Place, text: str, format: str):
    """VER-01: before anything else in its header is looked at; a newer one asks for a newer build."""
    house = house_of(place)
    async with house.opened():
        await write(house, record(turn(1)), header=Header("s", text, 1))
        for told in await refusals(house, place):
            assert (type(told), told.code) == (UnsupportedFormat, "UNSUPPORTED_FORMAT")
            assert isinstance(told, UnsupportedFormat)
            assert (told.session_id, told.format) == ("s", format)
            assert ("use a newer build" in str(told)) is (format in ("2", "10"))


@pytest.mark.parametrize(
    "text",
    ["[]", "7", "null", '"s"', "{", "", '{"format":1,"id":"other","created_at":1}', '{"format":1,"id":"s"}'],
)
async def test_a_header_that_is_none_is_damage(place: Place, text: str):
    """VER-04: not an object, not JSON, that of another session, or lacking what every header has."""
    house = house_of(place)
    async with house.opened():
        await write(house, record(turn(1)), header=Header("s", text, 1))
        for told in await refusals(house, place):
            assert isinstance(told, CorruptLog)
            assert (told.session_id, told.where) == ("s", "the header")


# -- events of another build ---------------------------------------------------------------------


def later_by_one(events: Sequence[SessionEvent]) -> tuple[SessionEvent, ...]:
    return tuple(replace(event, seq=event.seq + 1) for event in events)


@pytest.mark.parametrize("type", ["test/gone", "tool/progress", "nonsense", ""])
async def test_an_unknown_type_is_told_with_its_place(place: Place, type: str):
    """VER-05: loading, forking and importing refuse the log; looking, reading and exporting show what is stored."""
    plain = record(turn(1))
    events = (*plain[:6], SessionEvent(6, 1, type, '{"n":1}'), *later_by_one(plain[6:]))
    house = house_of(place)
    async with house.opened():
        await write(house, events, 3)
        for told in await refusals(house, place, 7):
            assert isinstance(told, UnknownEventType)
            assert (told.session_id, told.type, told.seq) == ("s", type, 6)
        found = await house.sessions.inspect("s")
        assert found.events == events
        assert (found.closers, found.open_calls) == ((), ())
        assert tuple(await house.sessions.read_from("s", 5)) == events[5:]
        assert [row.next_seq for row in await house.sessions.list()] == [8]
        exported = [line async for line in await house.sessions.export("s")]
        assert exported[1:-1] == [event.line for event in events]
        await house.sessions.delete("s")
        with pytest.raises(UnknownEventType) as refused:
            await House(extensions=EXTENSIONS).sessions.import_(exported)
        assert (refused.value.session_id, refused.value.type, refused.value.seq) == ("s", type, 6)


async def test_a_type_that_is_declared_no_longer_is_unknown(place: Place):
    """VER-05: written where it was declared, it cannot be read where it is not."""
    house = house_of(place)
    async with house.opened():
        session = await house.sessions.create("s")
        session.append(ev.Extension(NOTE, {"n": 1}), ev.Extension(MARK, {"n": 2}))
        await house.sessions.release(session)
    other = House(persistence=place.persistence(), extensions=[MARK])
    async with other.opened():
        found = await other.sessions.inspect("s")
        assert isinstance(found.problem, UnknownEventType)
        assert (found.problem.type, found.problem.seq) == (NOTE.name, 0)
        with pytest.raises(UnknownEventType):
            await other.sessions.resume("s")
    again = house_of(place)
    async with again.opened():
        assert (await again.sessions.resume("s")).events == session.events


async def test_an_ignorable_event_of_an_unknown_type_is_kept_as_it_is(place: Place):
    """VER-06: loaded, forked, exported, imported and gone on after; in history it is nothing."""
    strange = SessionEvent(3, 5, "future/word", '{"b":1,"a":[1.0]}', ignorable=True)
    plain = record(turn(1))
    events = (*plain[:3], strange, *later_by_one(plain[3:]))
    house = house_of(place, "more")
    async with house.opened():
        await write(house, events, 4)
        await house.sessions.fork("s", new_id="child")
        agent = await house.agents.resume("s")
        assert agent.session.events == (await house.sessions.inspect("child")).events == events
        assert agent.session.messages == derive_messages(plain)
        assert (await agent.wait(agent.send("go on"))).reason == "completed"
        assert (await house.persistence.read("s")).events[3] == strange
        exported = [line async for line in await house.sessions.export("s")]
        assert exported[4] == strange.line
    other = House(extensions=EXTENSIONS)
    async with other.opened():
        await other.sessions.import_(exported)
        assert (await other.persistence.read("s")).events[3] == strange


async def test_keys_of_a_later_build_are_kept(place: Place):
    """VER-12: in the data of a known event; the model sees what it would have seen without them."""
    plain = record(turn(1))
    newer = tuple(replace(event, text='{"zz":[1,{"y":2.0}],' + event.text[1:-1] + ',"later":null}') for event in plain)
    house = house_of(place, "more")
    async with house.opened():
        await write(house, newer)
        agent = await house.agents.resume("s")
        assert agent.session.events == newer
        assert agent.session.messages == derive_messages(plain)
        assert (await agent.wait(agent.send("go on"))).reason == "completed"
        assert (await house.persistence.read("s")).events[: len(newer)] == newer


async def test_a_tool_may_be_gone(place: Place):
    """VER-12: its calls and results stay in history, and the session goes on without it."""
    message = {"id": "m1", "content": "go"}
    asked = [{"type": "tool_call", "id": "c1", "name": "gone", "arguments": "{}"}]
    events = record(
        [
            *(ev.InboxAccepted(message, "next_turn"), ev.TurnStart(1, ["m1"]), ev.UserMessage(1, message, "next_turn")),
            *(ev.StepStart(1, 1), ev.AssistantMessage(1, 1, asked, [], MODEL, "tool_calls")),
            ev.ToolCall(1, 1, "c1", "gone", "{}", "read_only"),
        ]
    )
    house = house_of(place, "more")
    async with house.opened():
        await write(house, events)
        agent = await house.agents.resume("s")
        assert shorten(agent.session.closers) == ["tool/result", "step/end", "turn/end{interrupted}"]
        assert (await agent.wait(agent.send("go on"))).reason == "completed"
        assert house.adapter.requests[0].messages == derive_messages(agent.session.events)[:-1]
        assert taken(agent.session)[-1] == (2, "go on", "next_turn")


# -- a broken grammar ----------------------------------------------------------------------------

OPEN = [ev.InboxAccepted({"id": "m2", "content": "go"}, "next_turn"), ev.TurnStart(2, ["m2"])]
TAKEN = [*OPEN, ev.UserMessage(2, {"id": "m2", "content": "go"}, "next_turn"), ev.StepStart(2, 1)]
ASKED = ev.AssistantMessage(
    2, 1, [{"type": "tool_call", "id": "c1", "name": "act", "arguments": "{}"}], [], MODEL, "tool_calls"
)

BROKEN: dict[str, tuple[list[ev.EventData], ev.EventData, str]] = {
    "an orphan result": (
        TAKEN,
        ev.ToolResult(2, 1, "c1", 10, False, value="done"),
        "tool/result may not be appended in state REQUEST: it may only come in CALLS",
    ),
    "a result of an unknown call": (
        [*TAKEN, ASKED, ev.ToolCall(2, 1, "c1", "act", "{}", "read_only")],
        ev.ToolResult(2, 1, "c9", 12, False, value="done"),
        "the next call without a result is 'c1'",
    ),
    "a result of a call that was not recorded": (
        [*TAKEN, ASKED],
        ev.ToolResult(2, 1, "c1", None, False, value="done"),
        "a call that was never recorded is TOOL_NOT_STARTED",
    ),
    "an unknown call": (
        [*TAKEN, ASKED],
        ev.ToolCall(2, 1, "c9", "act", "{}", "read_only"),
        "the next call of the message is 'c1'",
    ),
    "a claim of an unknown message": (OPEN[:1], ev.TurnStart(2, ["m9"]), "not pending: 'm9'"),
    "an unknown message": (
        OPEN,
        ev.UserMessage(2, {"id": "m9", "content": "go"}, "next_turn"),
        "message 'm9' is not pending",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_log_that_breaks_the_grammar_is_refused_when_it_is_loaded(place: Place, kind: str):
    """INV-06: with seq and condition; what was closed before can still be forked from, what comes after cannot."""
    before, bad, condition = BROKEN[kind]
    after: list[ev.EventData] = [ev.StepEnd(2, 1), ev.TurnEnd(2, "completed")]
    events = record([*turn(1), *before, bad, *after])
    house = house_of(place, "more")
    async with house.opened():
        await write(house, events, 5)
        for told in await refusals(house, place):
            assert isinstance(told, CorruptLog)
            assert told.where == f"seq {7 + len(before)}"
            assert condition in told.reason
        assert (await house.sessions.inspect("s")).events == events
        await house.sessions.fork("s", 6, "child")
        child = await house.agents.resume("child")
        assert child.session.events == events[:7]
        assert (await child.wait(child.send("go on"))).reason == "completed"


REPLACEMENTS = [None, 0, -1, 1.5, True, "", "x", "context", [], [1], ["x"], [[2, 1]], {}, {"type": "text"}, {"a": 1}]


def test_what_can_be_read_can_be_sent():
    """INV-06: with any one thing in it changed or gone, a log is refused with a seq, or requests can be made of it."""
    events = record(random_walk(617, 70).events)
    assert {event.type for event in events} == {*ev.CATALOGUE, NOTE.name, MARK.name}
    tried: set[tuple[str, str]] = set()
    outcomes: set[str] = set()
    for seq, event in enumerate(events):
        for what, text in changed(event):
            if (event.type, what) not in tried:
                tried.add((event.type, what))
                outcomes.add(try_to_send([*events[:seq], replace(event, text=text), *events[seq + 1 :]], seq))
    assert outcomes == {"refused", "sent"}


def try_to_send(events: list[SessionEvent], changed: int) -> str:
    header = Header.make("s", 0)
    batch = Batch(tuple(events), header.digest, "caller")
    end = BatchEnd(len(events) - 1, "caller", 0, batch.digest)
    stored = StoredLog("s", header.text, batch.events, (end,), len(events), batch.digest, Holder(1, None, 0.0))
    try:
        _, fold = verify(stored, {extension.name: extension for extension in EXTENSIONS})
    except CorruptLog as error:
        refused = error
    else:
        assert fold.history.messages == derive_messages(events)
        assert fold.state.header is not None
        make_request(fold.state.header, fold.history.messages, "s", None)
        assert len(rebuild_requests("s", events)) > 3
        for call_id in fold.state.call_ids:
            fold.unknown_calls.matching("s", call_id)
        return "sent"
    assert refused.where in [f"seq {seq}" for seq in range(changed, len(events))], events[changed]
    return "refused"


def changed(event: SessionEvent) -> Iterator[tuple[str, str]]:
    """The event's data with one thing replaced or gone: a name for what was done, and the text."""
    for path, _, _ in places(event.data):
        for replacement in (*REPLACEMENTS, "gone"):
            data = event.data
            holder, key = next((holder, key) for found, holder, key in places(data) if found == path)
            if replacement == "gone":
                del holder[key]
            else:
                holder[key] = replacement
            yield f"{path} {replacement!r}", encode(data)


def places(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place of a JSON value: its path, what holds it, and under which key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield f"{path}/{key}", value, key
        yield from places(value[key], f"{path}/{key}")
