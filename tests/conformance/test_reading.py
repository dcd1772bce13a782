"""Looking at stored sessions, forking and deleting them: by whoever asks, beside a live owner, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.llm.scripted import gate, say
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import (
    InvalidBoundary,
    OpenTurn,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from app.session.record import SessionEvent
from app.session.recovery import close_interrupted_turn
from app.session.store import SessionStore
from persistence.contract.base import contents
from persistence.memory import MemoryPersistence
from tests.support.faults import FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import Clock, House, types
from tests.support.interrupted import Open, leave
from tests.support.stores import Place, place_of
from tests.support.virtual_time import virtual_time
from tests.support.watching import data_of, notices, taken

MODEL = {"adapter": "script", "model": "test"}


def house_of(place: Place, *answers: str) -> House:
    return House([say(answer) for answer in answers], persistence=place.persistence())


def turn(number: int, end: ev.TurnEnd | None = None, *during: ev.EventData) -> list[ev.EventData]:
    """A turn of one answered step, and what came during it."""
    message = {"id": f"m{number}", "content": f"prompt {number}"}
    text = [{"type": "text", "text": f"answer {number}"}]
    return [
        *(ev.InboxAccepted(message, "next_turn"), ev.TurnStart(number, [f"m{number}"])),
        *(ev.UserMessage(number, message, "next_turn"), ev.StepStart(number, 1), *during),
        *(ev.AssistantMessage(number, 1, text, [], MODEL, "stop"), ev.StepEnd(number, 1)),
        end or ev.TurnEnd(number, "completed"),
    ]


def accepted(id: str, placement: ev.Placement = "next_turn") -> ev.InboxAccepted:
    return ev.InboxAccepted({"id": id, "content": f"this is {id}"}, placement)


async def stored(house: House, *events: ev.EventData, id: str = "s") -> tuple[SessionEvent, ...]:
    """A session of these events, stored and released."""
    session = await house.sessions.create(id)
    for event in events:
        session.append(event)
    await house.sessions.release(session)
    return session.events


# -- looking -------------------------------------------------------------------------------------


async def test_an_unknown_session_is_told_by_every_operation(place: Place):
    """RD-01: load, inspect, read_from, fork, export, delete; and nothing comes to be stored by asking."""
    house = house_of(place)
    async with house.opened():
        sessions = house.sessions
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: sessions.resume("unknown"),
            lambda: sessions.resume("unknown", force=True),
            lambda: house.agents.resume("unknown"),
            lambda: sessions.inspect("unknown"),
            lambda: sessions.read_from("unknown", 0),
            lambda: sessions.fork("unknown"),
            lambda: sessions.fork("unknown", 3, "child"),
            lambda: sessions.export("unknown"),
            lambda: sessions.delete("unknown"),
        ]
        for attempt in attempts:
            with pytest.raises(SessionNotFound) as told:
                await attempt()
            assert (type(told.value), told.value.session_id) == (SessionNotFound, "unknown")
        assert await sessions.list() == []
        assert sessions.live == ()
        await stored(house, *turn(1), id="child")


CALLS = (Open("a"), Open("b", effects="read_only"), Open("c", effects=None))


async def test_inspecting_shows_what_is_stored_and_what_it_would_become(place: Place):
    """RD-02: twice, beside the claim of its dead owner; nothing is written, nothing taken over."""
    events = await leave(place.persistence(), *CALLS)
    house = house_of(place)
    async with house.opened():
        before = await contents(house.persistence)
        for _ in range(2):
            found = await house.sessions.inspect("s")
            assert found.events == events
            assert found.closers == close_interrupted_turn(events)
            assert [event.type for event in found.closers] == [*["tool/result"] * 3, "step/end", "turn/end"]
            assert found.balanced == events + found.closers
            assert [(call.id, call.effects) for call in found.open_calls] == [
                ("a", "side_effect"),
                ("b", "read_only"),
                ("c", None),
            ]
            assert (found.problem, found.torn) == (None, None)
            assert (found.holder.epoch, found.holder.owner) == (1, "test")
            assert found.holder.lease_left_s > 0
            assert [end.reason for end in found.ends] == ["caller"]
        assert await contents(house.persistence) == before


async def test_inspecting_leaves_the_files_as_they_are(tmp_path):
    """RD-02: byte for byte."""
    place = place_of("sqlite", str(tmp_path))
    await leave(place.persistence(), *CALLS)
    house = house_of(place)

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}

    async with house.opened():
        before = files()
        for _ in range(2):
            await house.sessions.inspect("s")
            await house.sessions.read_from("s", 0)
            await house.sessions.list()
        assert files() == before


async def test_resuming_stores_what_was_shown(place: Place):
    """RD-03: once; looked at again it is balanced, and resumed again it gets nothing more."""
    await leave(place.persistence(), *CALLS)
    house = house_of(place)
    async with house.opened():
        shown = await house.sessions.inspect("s")
        session = await house.sessions.resume("s", force=True)
        assert (session.events, session.closers) == (shown.balanced, shown.closers)
        for _ in range(2):
            found = await house.sessions.inspect("s")
            assert (found.events, found.closers, found.open_calls) == (shown.balanced, (), ())
            assert [end.reason for end in found.ends] == ["caller", "recovery"]
            await house.sessions.release(session)
            session = await house.sessions.resume("s")
            assert session.closers == ()


async def test_neither_empty_nor_deleted_sessions_are_listed(place: Place):
    """RD-07."""
    house = house_of(place)
    async with house.opened():
        for id in ("kept", "deleted"):
            await stored(house, *turn(1), id=id)
        session = await house.sessions.create("empty")
        session.append(accepted("m1"))
        await house.sessions.delete("deleted")
        assert [row.session_id for row in await house.sessions.list()] == ["kept"]
        await house.sessions.flush(session)
        assert sorted(row.session_id for row in await house.sessions.list()) == ["empty", "kept"]


async def test_events_are_read_from_any_seq(place: Place):
    """RD-13: six events; at or past the end there are none, and what is no seq is refused."""
    house = house_of(place)
    async with house.opened():
        events = await stored(house, *turn(1)[:6])
        for seq, rest in ((0, events), (3, events[3:]), (6, ()), (99, ())):
            assert tuple(await house.sessions.read_from("s", seq)) == rest
        no_seqs: list[Any] = [-1, 1.5, True, "1", None]
        for no_seq in no_seqs:
            with pytest.raises(ValueError):
                await house.sessions.read_from("s", no_seq)


async def test_pages_show_every_session_once_newest_first(place: Place):
    """RD-24: 250 sessions, eight of each time, and more of the same times and later ones created meanwhile."""
    clock = Clock(1000)
    house = House(persistence=place.persistence(), clock=clock)
    async with house.opened():
        old: list[tuple[int, str]] = []
        for n in range(250):
            clock.now_ms = 1000 + n // 8
            id = f"{'aZé😀'[n % 4]}{n}"
            await stored(house, accepted("m1"), id=id)
            old.append((clock.now_ms, id))
        seen: list[tuple[int, str]] = []
        page = 0
        while rows := await house.sessions.list(20, seen[-1] if seen else None):
            assert len(rows) <= 20
            seen += [(row.created_at, row.session_id) for row in rows]
            for created_at in (9999, 1000 + page):
                clock.now_ms = created_at
                await stored(house, accepted("m1"), id=f"new {page} {created_at}")
            page += 1
        assert seen == sorted(seen, reverse=True)
        assert [place for place in seen if place in set(old)] == sorted(old, reverse=True)


# -- forking -------------------------------------------------------------------------------------


async def test_a_fork_shares_the_log_up_to_the_last_end_of_a_turn(place: Place):
    """FRK-01: its header names the parent, which may be live elsewhere and is not touched; both go on by themselves."""
    house = house_of(place)
    other = House([say("the child's")], persistence=place.persistence(), clock=Clock(77))
    async with house.opened(), other.opened():
        parent = await house.sessions.create("s", {"title": "the parent's"})
        parent.append(*turn(1), *turn(2), *turn(3)[:4])
        await house.sessions.flush(parent)
        before = await contents(house.persistence)
        assert await other.sessions.fork("s", new_id="child") == "child"
        after = await contents(house.persistence)
        assert "child" in after
        assert {id: kept for id, kept in after.items() if id != "child"} == before
        child = await other.sessions.inspect("child")
        assert child.events == parent.events[:14]
        assert child.header_text == '{"format":1,"id":"child","created_at":77,"parent":{"id":"s","seq":13}}'
        assert (child.closers, child.problem, [end.reason for end in child.ends]) == ((), None, ["fork"])
        agent = await other.agents.resume("child")
        assert agent.session.messages == parent.messages[:4]
        await agent.wait(agent.send("go on"))
        assert taken(agent.session)[-1] == (3, "go on", "next_turn")
        parent.append(ev.StepEnd(3, 1), ev.TurnEnd(3, "completed"))
        await house.sessions.flush(parent)
        assert (await other.sessions.inspect("s")).events == parent.events


async def test_a_fork_gets_an_id_of_its_own(place: Place):
    """FRK-01: thirty-two random hexadecimal digits, if none is given."""
    house = house_of(place)
    async with house.opened():
        await stored(house, *turn(1))
        ids = {await house.sessions.fork("s") for _ in range(3)}
        assert len(ids) == 3
        assert all(len(id) == 32 and set(id) <= set("0123456789abcdef") for id in ids)
        assert sorted(row.session_id for row in await house.sessions.list()) == sorted(["s", *ids])


ENDS = [
    ev.TurnEnd(1, "completed"),
    ev.TurnEnd(2, "max_tokens"),
    ev.TurnEnd(3, "aborted", cause="user"),
    ev.TurnEnd(4, "error", error={"message": "busy", "code": "RATE_LIMIT", "step": 1}),
    ev.TurnEnd(5, "interrupted"),
]


async def test_a_fork_may_start_at_any_end_of_a_turn(place: Place):
    """FRK-02: however the turn ended."""
    house = house_of(place)
    async with house.opened():
        events = await stored(house, *(event for end in ENDS for event in turn(end.turn, end)))
        for end in ENDS:
            boundary = 7 * end.turn - 1
            child = await house.sessions.resume(await house.sessions.fork("s", boundary))
            assert child.events == events[: boundary + 1]
            assert child.header.parent == {"id": "s", "seq": boundary}
            assert child.state.turn.turn == end.turn


async def test_a_fork_starts_nowhere_else(place: Place):
    """FRK-03: inside a turn, at another event between turns, before the start, past the end, or with no closed turn."""
    house = house_of(place)
    async with house.opened():
        await stored(house, accepted("m0", "context"), *turn(1), *between("m8"), *turn(2), *between("m9"))
        await stored(house, accepted("m1"), ev.TurnStart(1, ["m1"]), id="open")
        await stored(house, accepted("m1"), id="no turn")
        inside = [*range(2, 7), *range(11, 16)]
        outside = [0, 1, 8, 9, 10, 17, 18, 19, 99, -1, -17]
        cases: list[tuple[str, int | None, type[Exception]]] = [
            *(("s", seq, OpenTurn) for seq in inside),
            *(("s", seq, InvalidBoundary) for seq in outside),
            *(("open", seq, error) for seq, error in ((None, InvalidBoundary), (0, InvalidBoundary), (1, OpenTurn))),
            *(("open", seq, InvalidBoundary) for seq in (2, 99, -1)),
            *(("no turn", seq, InvalidBoundary) for seq in (None, 0, 1)),
        ]
        before = await contents(house.persistence)
        for id, seq, error in cases:
            with pytest.raises(error) as told:
                await house.sessions.fork(id, seq, "child")
            assert type(told.value) is error, (id, seq)
        assert await contents(house.persistence) == before
        await house.sessions.fork("s", 7, "child")


def between(id: str) -> list[ev.EventData]:
    return [accepted(id, "context"), ev.InboxDiscarded([id], "user")]


async def test_that_an_id_is_taken_is_told_before_a_bad_boundary(place: Place):
    """FRK-04: of a child that is stored, live here and not stored yet, or its own parent."""
    house = house_of(place)
    async with house.opened():
        await stored(house, *turn(1))
        await stored(house, *turn(1), id="taken")
        await house.sessions.create("live")
        for child in ("taken", "live", "s"):
            for boundary in (3, 99, -1):
                with pytest.raises(SessionExists) as told:
                    await house.sessions.fork("s", boundary, child)
                assert told.value.session_id == child
        with pytest.raises(SessionExists):
            await house.sessions.fork("unknown", new_id="taken")


async def test_what_was_pending_at_the_boundary_runs_in_the_parent_alone(place: Place):
    """FRK-07: the child has dropped it, with the cause `fork`, so nothing runs twice."""
    during = (accepted("context", "context"), accepted("prompt"), accepted("steering", "next_step"))
    house = house_of(place)
    async with house.opened():
        await stored(house, *turn(1, None, *during), accepted("later"))
        await house.sessions.fork("s", new_id="child")
    async with house_of(place, "the child's").resumed("child") as child:
        await child.wait_idle()
        assert data_of(child.session, "inbox/discarded") == [
            {"ids": ["context", "prompt", "steering"], "cause": "fork"}
        ]
        assert types(child.session)[-2:] == ["turn/end{completed}", "inbox/discarded"]
        assert "later" not in child.session.state.accepted
        await child.wait(child.send("go on"))
        assert [message[1] for message in taken(child.session)] == ["prompt 1", "go on"]
    async with house_of(place, "two", "three").resumed() as parent:
        await parent.wait_idle()
        assert data_of(parent.session, "inbox/discarded") == []
        assert [(number, content) for number, content, _ in taken(parent.session)[1:]] == [
            (2, "this is context"),
            (2, "this is prompt"),
            (2, "this is steering"),
            (3, "this is later"),
        ]


# -- deleting ------------------------------------------------------------------------------------


async def test_a_deleted_session_is_gone_for_good(place: Place):
    """DEL-01: for every operation, after a restart too; deleting it again is no error."""
    house = house_of(place)
    async with house.opened():
        await stored(house, *turn(1))
        await stored(house, *turn(1), id="other")
        exported = [line async for line in await house.sessions.export("s")]
        await house.sessions.delete("s")
    for _ in range(2):
        house = house_of(place)
        async with house.opened():
            await assert_deleted(house.sessions, exported)
            await house.sessions.delete("s")
            await house.sessions.fork("other")
            await house.sessions.release(await house.sessions.resume("other"))


async def assert_deleted(sessions: SessionStore, exported: list[str]) -> None:
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: sessions.resume("s"),
        lambda: sessions.resume("s", force=True),
        lambda: sessions.inspect("s"),
        lambda: sessions.read_from("s", 0),
        lambda: sessions.create("s"),
        lambda: sessions.fork("other", new_id="s"),
        lambda: sessions.fork("s", new_id="child"),
        lambda: sessions.export("s"),
        lambda: sessions.import_(exported),
    ]
    for attempt in attempts:
        with pytest.raises(SessionDeleted) as told:
            await attempt()
        assert told.value.session_id == "s"
    assert "s" not in [row.session_id for row in await sessions.list()]


async def test_an_append_in_flight_does_not_bring_a_deleted_session_back(place: Place):
    """DEL-02: whoever waits for it is told, the agent closes, and the session stays deleted."""
    faulty = FaultyPersistence(place.persistence())
    house = House([say("one"), say("two")], persistence=faulty)
    async with house.agent() as agent:
        await agent.wait(agent.send("one"))
        append = faulty.hold("append")
        agent.inject("by the way")
        flushing = asyncio.ensure_future(house.sessions.flush(agent.session))
        await append.reached()
        await delete_elsewhere(place)
        append.open()
        with pytest.raises(SessionDeleted):
            await flushing
        with pytest.raises(SessionDeleted):
            await agent.wait_idle()
        with pytest.raises(SessionDeleted):
            agent.send("two")
        await agent.close()
        assert (agent.status, house.sessions.live) == ("closed", ())
    async with house.opened():
        with pytest.raises(SessionDeleted):
            await house.sessions.inspect("s")


async def delete_elsewhere(place: Place, id: str = "s") -> None:
    """As another process does."""
    other = house_of(place)
    async with other.opened():
        await other.sessions.delete(id)


async def test_a_session_deleted_here_ends_its_agent_at_once(place: Place):
    """DEL-02: no checkpoint has to find it out; the running turn ends in memory, and nothing of it is stored."""
    held = Gate()
    house = House([[say("one"), gate(held)]], persistence=place.persistence())
    async with house.agent() as agent:
        agent.send("go")
        await held.reached.wait()
        await house.sessions.delete("s")
        assert isinstance(agent.session.lost, SessionDeleted)
        with pytest.raises(SessionDeleted):
            await agent.wait_idle()
        await agent.close()
        assert types(agent.session)[-1] == "turn/end{error SESSION_DELETED}"
        with pytest.raises(SessionDeleted):
            await house.sessions.read_from("s", 0)


@virtual_time
async def test_the_window_of_a_deleted_session_ends_in_its_agents_end():
    """DEL-02: a batch that waits for its window finds out, and nothing is stored."""
    persistence = MemoryPersistence(lease_clock=lambda: asyncio.get_running_loop().time())
    house = House([say("one")], persistence=persistence, drain_limits=DrainLimits(write_behind_ms=200))
    async with house.agent() as agent:
        await agent.wait(agent.send("one"))
        agent.inject("by the way")
        seen = notices(agent.session)
        await persistence.delete("s")
        assert agent.session.lost is None
        await asyncio.sleep(0.3)
        assert isinstance(agent.session.lost, SessionDeleted)
        assert (agent.status, seen[-1]) == ("closed", ev.AgentStatus("closed"))
        assert await persistence.list(10) == []


@virtual_time
async def test_the_heartbeat_of_a_deleted_session_ends_its_turn():
    """DEL-02: within a third of the lease, though the turn has nothing to write."""
    persistence = MemoryPersistence(lease_clock=lambda: asyncio.get_running_loop().time())
    held = Gate()
    house = House([[say("one"), gate(held)]], persistence=persistence)
    async with house.agent() as agent:
        agent.send("go")
        await held.reached.wait()
        await persistence.delete("s")
        assert agent.session.lost is None
        await asyncio.sleep(house.owner.lease_s / 3 + 1)
        with pytest.raises(SessionDeleted):
            await agent.wait_idle()
        await agent.close()
        assert types(agent.session)[-1] == "turn/end{error SESSION_DELETED}"
        assert await persistence.list(10) == []
