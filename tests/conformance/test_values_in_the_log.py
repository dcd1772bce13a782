"""Values, sizes and ids all the way: through the runtime into a store, out of it again, and on with the next turn."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.agent.agent import Agent
from app.agent.step import Step
from app.llm.scripted import call, say
from app.messages import TextBlock, TextDelta, ToolMessage, UserMessage
from app.middleware import Named
from app.session import events as ev
from app.session.errors import (
    InvalidId,
    LimitExceeded,
    SessionDeleted,
    SessionExists,
    UnstorableValue,
)
from app.session.history import derive_messages
from app.session.session import LogLimits, Session
from app.tools.schema import tool
from app.tools.types import ToolError
from persistence.sqlite import SqlitePersistence
from tests.support.house import House
from tests.support.recording import NOTE, live
from tests.support.stores import Place
from tests.support.watching import data_of, is_balanced, results
from tests.unit.session.exactly import exactly

PAIR = "\ud83d\ude00"  # two code units; the character itself is "😀"


class Recorder:
    """A post-step listener that records each value once, as an extension event."""

    appends = (NOTE,)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    async def __call__(self, step: Step) -> None:
        while self.values:
            step.append(NOTE, {"value": self.values.pop(0)})


def house_of(place: Place, values: Sequence[Any], steps: Sequence[Any], **more: Any) -> House:
    """A runtime whose tool `give` returns the n-th value, and `complain` fails with it as its message."""

    @tool
    async def give(n: int):
        return values[n]

    @tool
    async def complain(n: int):
        raise ToolError("COMPLAINT", values[n])

    return House(
        steps=steps,
        tools=[give, complain],
        persistence=place.persistence(),
        extensions=[NOTE],
        listeners_above=[Named("record", Recorder(values))],
        **more,
    )


VALUES: dict[str, list[Any]] = {
    "VAL-01": ["\0", "a\0b", {"\0": "\0"}, {"a\0b": [{"": "\0"}]}],
    "VAL-02": ["\udc81", "\ud83d", "\ude00", "\ude00\ud83d", {"\ud800": "\udfff"}],
    "VAL-03": [2**53, 2**53 + 1, 2**64, -(2**63) - 1, 10**5000, -(10**5000)],
    "VAL-04": [1, 1.0, 0, 0.0, -0.0, True, False, [1, 1.0, True], {"a": 0, "b": -0.0, "c": False}],
    "VAL-05": [1e-7, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, -2.2250738585072014e-308, 1e16, 123456789012345680.0],
    "VAL-06": [{"b": 1, "a": 2, "": 3, "__proto__": {"x": 4}, "ß": 5, "ss": 6, "SS": 7, "é": 8, "e\u0301": 9}],
    "VAL-07": ["", [], {}, None, [None, "", [], {}], {"": {}}],
}


@pytest.mark.parametrize("row", VALUES)
async def test_a_value_comes_back_from_wherever_it_was_put(place: Place, row: str):
    """VAL-01, VAL-02, VAL-03, VAL-04, VAL-05, VAL-06, VAL-07: content, `meta`, result, error text, extension event.

    Stored and loaded again each is equal to the last bit; the model reads the same before and after, and goes on.
    """
    values = VALUES[row]
    texts = [n for n, value in enumerate(values) if isinstance(value, str)]
    asked = [*(call("give", {"n": n}) for n in range(len(values))), *(call("complain", {"n": n}) for n in texts)]
    content = [{"type": "x", "value": value} for value in values]
    house = house_of(place, values, [asked, say("fine")])
    async with house.agent() as agent:
        await agent.wait(agent.send(content, id="m1", meta={"values": values}))
        events, messages = agent.session.events, agent.session.messages
    again = house_of(place, values, [say("again")])
    async with again.resumed() as agent:
        assert agent.session.events == events
        assert agent.session.messages == derive_messages(events) == messages
        message = {"id": "m1", "content": content, "meta": {"values": values}}
        for type in ("inbox/accepted", "user/message"):
            assert exactly(data_of(agent.session, type)[0]["message"], message)
        found = data_of(agent.session, "tool/result")
        assert exactly([data["value"] for data in found[: len(values)]], values)
        errors = [{"code": "COMPLAINT", "message": values[n] or "ToolError"} for n in texts]
        assert exactly([data["error"] for data in found[len(values) :]], errors)
        assert exactly([data["value"] for data in data_of(agent.session, NOTE.name)], values)
        assert (await agent.wait(agent.send("and now"))).reason == "completed"
        assert again.adapter.requests[0].messages[:-1] == messages


async def test_a_value_is_a_text_for_the_model(place: Place):
    """VAL-07: nothing is `null`, a string is itself, anything else its JSON with its own characters."""
    values = [None, "é\0\udc81", {"é": [1.0, 1]}, ""]
    asked = [call("give", {"n": n}, id=f"c{n}") for n in range(len(values))]
    house = house_of(place, values, [asked, say("fine")])
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert house.adapter.requests[1].messages[2:] == tuple(
            ToolMessage(f"c{n}", False, text) for n, text in enumerate(["null", "é\0\udc81", '{"é":[1.0,1]}', ""])
        )


async def test_a_character_may_come_in_two_halves(place: Place):
    """VAL-02: its chunks keep them; in the message, in content, in a result and in a key it is the character."""
    values = [PAIR, {PAIR: ["x" + PAIR]}]
    asked = [TextDelta(0, "a\ud83d"), TextDelta(0, "\ude00b"), call("give", {"n": 0}), call("give", {"n": 1})]
    async with house_of(place, values, [asked, say("fine")]).agent() as agent:
        await agent.wait(agent.send([{"type": "x", "value": values}], meta={PAIR: 1}))
    async with house_of(place, (), [say("again")]).resumed() as agent:
        chunks = [data["chunk"] for data in data_of(agent.session, "assistant/chunk")]
        assert [chunk["text"] for chunk in chunks if chunk["kind"] == "text_delta"][:2] == ["a\ud83d", "\ude00b"]
        assert data_of(agent.session, "assistant/message")[0]["content"][0] == {"type": "text", "text": "a😀b"}
        whole = ["😀", {"😀": ["x😀"]}]
        (accepted,) = data_of(agent.session, "inbox/accepted")
        assert exactly(accepted["message"]["content"], [{"type": "x", "value": whole}])
        assert exactly(accepted["message"]["meta"], {"😀": 1})
        assert [value for _, value in results(agent.session)] == whole
        assert [data["value"] for data in data_of(agent.session, NOTE.name)] == whole
        assert (await agent.wait(agent.send("and now"))).reason == "completed"


# -- what is refused -----------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    __slots__ = ()


def cycle() -> list[Any]:
    around: list[Any] = [1]
    around.append(around)
    return around


REFUSED: dict[str, list[tuple[Any, str]]] = {
    "VAL-02": [({PAIR: 1, "😀": 2}, "")],
    "VAL-08": [(math.nan, ""), (math.inf, ""), (-math.inf, "")],
    "VAL-09": [
        *[(b"x", ""), ({1}, ""), ((1,), ""), (datetime.datetime(2024, 1, 1), ""), (decimal.Decimal(1), "")],  # noqa: DTZ001
        *[(Colour.RED, ""), (Text("x"), ""), (object(), ""), ({1: 2}, ""), (cycle(), "/1")],
    ],
}


@pytest.mark.parametrize("row", REFUSED)
async def test_what_is_no_value_is_refused_wherever_it_is_put(place: Place, row: str):
    """VAL-02, VAL-08, VAL-09: with its path; nothing of its group is taken, and what is stored stays readable."""
    house = house_of(place, (), [say("fine")])
    async with house.agent() as agent:
        agent.inject("before")
        for bad, inside in REFUSED[row]:
            log = agent.session.events
            for attempt, path in ways_in(agent, bad):
                with pytest.raises(UnstorableValue) as refused:
                    attempt()
                assert refused.value.path == path + inside
                assert agent.session.events == log
        await house.sessions.flush(agent.session)
        assert (await house.persistence.read("s")).events == agent.session.events
        assert (await agent.wait(agent.send("go"))).reason == "completed"


def ways_in(agent: Agent, value: Any) -> list[tuple[Callable[[], object], str]]:
    """How a caller can put a value into the log, and where it then is in what the caller gave."""
    group = (ev.Extension(NOTE, {"n": 1}), ev.Extension(NOTE, {"deep": [value]}))
    return [
        (lambda: agent.send([{"type": "x", "deep": [value]}]), "/content/0/deep/0"),
        (lambda: agent.inject("go", meta={"deep": {"a": value}}), "/meta/deep/a"),
        (lambda: agent.session.append(*group), "/deep/0"),
    ]


@pytest.mark.parametrize("row", REFUSED)
async def test_a_tool_that_returns_no_value_gets_an_error_and_the_turn_goes_on(place: Place, row: str):
    """VAL-02, VAL-08: INVALID_TOOL_OUTPUT that says the tool ran; its neighbours are not touched."""
    values = [*[[bad] for bad, _ in REFUSED[row]], "good"]
    asked = [call("give", {"n": n}) for n in range(len(values))]
    async with House(
        [asked, say("fine")], tools=house_of(place, values, []).tools, persistence=place.persistence()
    ).agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert [value for _, value in results(agent.session)] == ["INVALID_TOOL_OUTPUT"] * len(REFUSED[row]) + ["good"]
        for data, (_, inside) in zip(data_of(agent.session, "tool/result"), REFUSED[row], strict=False):
            assert data["error"]["message"].startswith(
                f'the tool ran, but its result cannot be recorded: at "/0{inside}": '
            )


# -- what models write ---------------------------------------------------------------------------


async def test_the_arguments_of_a_call_are_kept_as_they_came(place: Place):
    """VAL-10: a number beyond all floats is refused, the last of equal keys counts, a lone surrogate arrives."""
    given: list[Any] = []

    @tool
    async def take(value: Any) -> None:
        given.append(value)

    raw = ['{"value": 1e400}', '{"value": 1, "value": [2]}', '{"value": "\\udc81"}', '{"value":"\udc81"}']
    steps = [[call("take", text, id=f"c{n}") for n, text in enumerate(raw)], say("fine")]
    async with House(steps, [take], persistence=place.persistence()).agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert results(agent.session) == [("c0", "INVALID_ARGUMENTS"), ("c1", None), ("c2", None), ("c3", None)]
        assert given == [[2], "\udc81", "\udc81"]
    async with House(persistence=place.persistence()).resumed() as agent:
        assert [data["arguments"] for data in data_of(agent.session, "tool/call")] == raw
        (message, _) = data_of(agent.session, "assistant/message")
        assert [block["arguments"] for block in message["content"]] == raw


async def test_ids_names_and_messages_may_be_long_and_odd(place: Place):
    """VAL-11: a call id of 1 kB, a tool name of 500 characters, an error text of 2 MB, control characters in them."""

    @tool
    async def complain() -> None:
        raise ToolError("COMPLAINT", "\0\x1b[31m\n" + "x" * 2_000_000)

    long_id, long_name = "\0\x1b\n😀" * 200, "a\0\x1b\n\x85" * 100
    asked = [call("complain", {}, id=long_id), call(long_name, {}, id="c2"), call("", {}, id="\0")]
    async with House([asked, say("fine")], [complain], persistence=place.persistence()).agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
    async with House([say("again")], persistence=place.persistence()).resumed() as agent:
        assert results(agent.session) == [(long_id, "COMPLAINT"), ("c2", "UNKNOWN_TOOL"), ("\0", "UNKNOWN_TOOL")]
        assert [data["name"] for data in data_of(agent.session, "tool/call")] == ["complain", long_name, ""]
        complaint = data_of(agent.session, "tool/result")[0]["error"]["message"]
        assert complaint == "\0\x1b[31m\n" + "x" * 2_000_000
        assert (await agent.wait(agent.send("and now"))).reason == "completed"


# -- sizes ---------------------------------------------------------------------------------------


def too_deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "setting", "limit"),
    [
        (10**20_000, "max_integer_digits", 20_000),
        (-(10**20_000), "max_integer_digits", 20_000),
        (10**1_000_000, "max_integer_digits", 20_000),
        (too_deep(200_000), "max_depth", 200_000),
    ],
    ids=["20 001 digits", "20 001 digits below zero", "1 000 001 digits", "200 001 levels"],
)
async def test_numbers_and_nesting_have_limits(value: Any, setting: str, limit: int):
    """RUL-07: told by name and at once, and the log is as it was; one less is taken."""
    house = House(extensions=[NOTE])
    async with house.agent() as agent:
        agent.inject("before")
        log = agent.session.events
        began = time.process_time()
        with pytest.raises(LimitExceeded) as refused:
            agent.session.append(ev.Extension(NOTE, {"value": value}))  # the object around it is a level too
        assert time.process_time() - began < 2
        assert (refused.value.setting, refused.value.limit) == (setting, limit)
        assert agent.session.events == log
        less = value[0] if isinstance(value, list) else 10**20_000 - 1
        (event,) = agent.session.append(ev.Extension(NOTE, {"value": less}))
        assert exactly(event.data["value"], less)


async def test_a_megabyte_of_digits_in_arguments_is_refused_at_once():
    """RUL-07: the call gets an error result, and the turn goes on."""

    @tool
    async def take(value: int) -> None:
        raise AssertionError("the body is not entered")

    raw = '{"value": ' + "1" * 1_000_000 + "}"
    async with House([call("take", raw, id="c1"), say("fine")], [take]).agent() as agent:
        began = time.process_time()
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert time.process_time() - began < 2
        assert results(agent.session) == [("c1", "INVALID_ARGUMENTS")]
        assert "max_integer_digits" in data_of(agent.session, "tool/result")[0]["error"]["message"]


async def test_an_event_has_a_largest_size(place: Place):
    """BIG-01: one byte under it and just that size are stored, one byte over it is refused with all three facts."""
    event = ev.Extension(NOTE, {"text": "x" * 1000})
    size = len(live([event]).events[0].line)
    for limit, is_taken in ((size + 1, True), (size, True), (size - 1, False)):
        house = House(persistence=place.persistence(), extensions=[NOTE], log_limits=LogLimits(max_event_bytes=limit))
        async with house.opened():
            session = await house.sessions.create()
            if is_taken:
                session.append(event)
                await house.sessions.flush(session)
                assert (await house.persistence.read(session.id)).events == session.events
                continue
            with pytest.raises(LimitExceeded) as refused:
                session.append(event)
            assert (refused.value.setting, refused.value.limit, refused.value.size) == ("max_event_bytes", limit, size)
            assert str(refused.value) == f"max_event_bytes is {limit}, and this would need {size}"
            assert len(session) == 0


@pytest.mark.parametrize("megabytes", [5, 64, 300])
async def test_a_result_that_is_too_large_is_an_error_that_says_that_the_tool_ran(megabytes: int):
    """BIG-02: it ran once, its sibling and the turn go on."""
    ran: list[str] = []

    @tool
    async def fetch(size: int) -> str:
        ran.append("fetch")
        return "x" * size

    size = megabytes * 1_000_000
    steps = [[call("fetch", {"size": size}, id="c1"), call("fetch", {"size": 3}, id="c2")], say("fine")]
    house = House(steps, [fetch])
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert results(agent.session) == [("c1", "RESULT_TOO_LARGE"), ("c2", "xxx")]
        told = "the tool ran, but its result cannot be recorded"
        assert house.adapter.requests[1].messages[-2] == ToolMessage(
            "c1", True, f"Error: {told}: it has {size + 2} bytes, the limit is {4 * 1024 * 1024}"
        )
        assert ran == ["fetch", "fetch"]


async def test_an_error_text_that_is_too_long_is_cut_and_says_so(place: Place):
    """BIG-02: to the limit of a result, with a notice at its end; the turn goes on."""

    @tool
    async def complain() -> None:
        raise ToolError("COMPLAINT", "x" * 5_000_000)

    async with House(
        [call("complain", {}, id="c1"), say("fine")], [complain], persistence=place.persistence()
    ).agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        (result,) = data_of(agent.session, "tool/result")
        limit = 4 * 1024 * 1024
        message = result["error"]["message"]
        assert len(message) + 2 == limit
        notice = f" [cut here: the message has 5000002 bytes, the limit is {limit}]"
        assert message == "x" * (limit - 2 - len(notice)) + notice


async def full_at(place: Place, limit: int) -> tuple[Session, list[str]]:
    """One prompt that leads to two parallel calls and an answer, under a limit; its log, and how the prompt ended."""

    @tool(parallel_safe=True)
    async def act() -> str:
        return "done"

    steps = [[say("Let me see"), call("act", {}, id="c1"), call("act", {}, id="c2")], say("fine")]
    house = House(steps, [act], place.persistence(), log_limits=LogLimits(max_session_events=limit))
    async with house.agent(f"s{limit}") as agent:
        outcome = await agent.wait(agent.send("go"))
        await agent.wait_idle()
        assert (await house.persistence.read(f"s{limit}")).events == agent.session.events
        assert is_balanced(agent.session)
        if outcome.is_discarded:
            return agent.session, ["discarded"]
        return agent.session, [str(outcome.reason), *([outcome.error["code"]] if outcome.error else [])]


async def test_a_log_that_fills_up_in_mid_turn_is_closed(place: Place):
    """BIG-03: wherever that is, by what only closes, as LIMIT_EXCEEDED; it is balanced and stored."""
    whole, ended = await full_at(place, 1000)
    assert ended == ["completed"]
    types = [event.type for event in whole.events]
    for limit in range(1, len(types)):
        session, ended = await full_at(place, limit)
        found = [event.type for event in session.events]
        if limit < 3:  # no room for the start of a turn and its message, which are one group
            assert (ended, found) == (["discarded"], ["inbox/accepted", "inbox/discarded"])
            continue
        assert found[:limit] == types[:limit]
        assert set(found[limit:]) <= ev.CLOSING
        if set(types[limit:]) <= ev.CLOSING:  # what the turn still needed was taken
            assert (ended, found) == (["completed"], types)
        else:
            assert (ended, found[-1]) == (["error", "LIMIT_EXCEEDED"], "turn/end")


async def test_a_log_that_is_full_takes_no_message(place: Place):
    """BIG-03: idle, every verb says so; the log is unchanged and what was pending can still be dropped."""
    house = House(persistence=place.persistence(), log_limits=LogLimits(max_session_events=3))
    async with house.agent() as agent:
        kept = [agent.inject(f"context {n}") for n in range(3)]
        for verb in (agent.send, agent.steer, agent.inject):
            with pytest.raises(LimitExceeded) as refused:
                verb("one more")
            assert (refused.value.setting, refused.value.limit, refused.value.size) == ("max_session_events", 3, 4)
        assert list(agent.session.state.pending) == kept
        assert len(agent.session) == 3
        agent.discard(kept)
        assert [event.type for event in agent.session.events] == ["inbox/accepted"] * 3 + ["inbox/discarded"]


# -- ids -----------------------------------------------------------------------------------------

IDS = ["..", "a/b", "%2e%2e", "C:\\x", "CON", "a ", "😀", "x" * 200, "../../etc/passwd", "-", "'; --", "\u2028"]
NEIGHBOURS = ["a", "A", "a ", " a", "\u00e9", "e\u0301", "\u0130", "i\u0307", "ß", "ss", "\ufb01", "fi"]


async def use_everywhere(place: Place, ids: list[str]) -> None:
    """Do everything that can be done with a session, with one of each id; each keeps to itself."""
    steps = [say(f"answer to {id}") for id in ids]
    house = House(steps, persistence=place.persistence())
    async with house.opened():
        for id in ids:
            agent = await house.agents.create(id)
            assert house.sessions.get(id) is agent.session
            await agent.wait(agent.send(f"prompt for {id}", id=id, meta={"id": id}))
            with pytest.raises(SessionExists):
                await house.sessions.create(id)
        assert len(house.sessions.live) == len(ids)
    again = House([say("again")] * len(ids), persistence=place.persistence())
    async with again.opened():
        rows = await again.sessions.list(limit=100)
        assert sorted(row.session_id for row in rows) == sorted(ids)
        for id in ids:
            found = await again.sessions.inspect(id)
            assert found.session_id == id
            assert [event.data["message"]["meta"]["id"] for event in found.events if event.type == "user/message"] == [
                id
            ]
            assert tuple(await again.sessions.read_from(id, 0)) == found.events
            child = await again.sessions.fork(id, new_id=f"{id[:190]} child" if len(id) > 1 else f"{id}{id}")
            assert (await again.sessions.inspect(child)).events == found.events
            agent = await again.agents.resume(id)
            assert agent.session.messages[0] == UserMessage((TextBlock(f"prompt for {id}"),))
            assert (await agent.wait(agent.send("and now"))).reason == "completed"
            await agent.close()
            await again.sessions.delete(child)
        for gone, id in enumerate(ids, start=1):
            await again.sessions.delete(id)
            with pytest.raises(SessionDeleted):
                await again.sessions.inspect(id)
            assert len(await again.sessions.list(limit=100)) == len(ids) - gone


async def test_ids_that_mean_something_elsewhere_mean_nothing_here(place: Place):
    """SID-01: every operation works, and nothing comes to be outside the store's own place."""
    around = set(place.directory.parent.iterdir())
    await use_everywhere(place, IDS)
    assert set(place.directory.parent.iterdir()) == around
    folders = {place.directory, place.directory / "sessions"}
    assert {path.parent for path in place.directory.rglob("*")} <= folders
    assert {path.name.split(".")[0] for path in place.directory.iterdir()} <= {"sessions"}


async def test_ids_that_look_alike_are_different(place: Place):
    """SID-02: in case, in normal form, in a space at an end."""
    await use_everywhere(place, NEIGHBOURS)


ILLEGAL = ["", "x" * 201, "a\0b", "\x1b", "a\x85", "\udc81"]


@pytest.mark.parametrize("id", ILLEGAL, ids=ascii)
async def test_an_illegal_id_is_refused_before_anything_is_asked(tmp_path: Path, id: str):
    """SID-03: the store is not even open, and no operation comes to notice it."""
    sessions = House(persistence=SqlitePersistence(tmp_path / "sessions.db")).sessions
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: sessions.create(id),
        lambda: sessions.resume(id),
        lambda: sessions.resume(id, force=True),
        lambda: sessions.inspect(id),
        lambda: sessions.read_from(id, 0),
        lambda: sessions.fork(id),
        lambda: sessions.fork("parent", new_id=id),
        lambda: sessions.delete(id),
        lambda: sessions.list(after=(0, id)),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidId) as refused:
            await attempt()
        assert refused.value.id == id


@pytest.mark.parametrize("id", ILLEGAL, ids=ascii)
async def test_an_illegal_message_id_is_refused(id: str):
    """SID-03: by every verb, and nothing is recorded."""
    async with House().agent() as agent:
        for verb in (agent.send, agent.steer, agent.inject):
            with pytest.raises(InvalidId):
                verb("go", id=id)
        assert len(agent.session) == 0
