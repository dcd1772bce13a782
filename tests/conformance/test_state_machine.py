"""An agent driven at random through failures, cancels, crashes and resumes, and held to an account kept beside it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from app.agent.agent import Agent
from app.agent.requests import rebuild_requests
from app.llm.script import Parts
from app.llm.scripted import call, cut, fail, reason, say
from app.llm.strict import check_provider_valid
from app.messages import Finish
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import AgentClosed, MessageConflict, PersistenceUnavailable, SessionNotFound
from app.session.record import SessionEvent
from app.session.recovery import Completed, NotStarted, close_interrupted_turn
from app.session.session import Session
from policy.checkpoint import EveryEventCheckpointPolicy, SemanticCheckpointPolicy
from tests.support.account import Account
from tests.support.counting import count
from tests.support.faults import DOWN, FailAfter, FailBefore
from tests.support.lives import Life, World
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.watching import at

RAN = (None, "ABORTED", "TOOL_FAILED")
STARTED_BY_THE_LOOP = ("user/message", "step/start", "request/header", "llm/retry")

names = st.sampled_from(["safe", "safe", "safe", "alone", "alone", "sure", "sure", "absent"])
doings = [*["value"] * 6, "raise", "inject", "steer", "nested", "cancelled", "denied", "unreadable"]
calls = st.builds(
    lambda name, rounds, then, id: call(name, "{" if then == "unreadable" else {"rounds": rounds, "then": then}, id),
    *(names, st.integers(0, 12), st.sampled_from(doings), st.sampled_from([None, "c"])),
)
asking = st.lists(calls, min_size=1, max_size=5)
text = st.builds(say, st.just("let me see"), st.integers(1, 4))
ends = st.sampled_from([fail("SERVER"), cut(), Finish("max_tokens")])
others = [fail("RATE_LIMIT"), fail("AUTH"), reason("hm"), Finish("stop"), Finish("max_tokens")]
answers: st.SearchStrategy[Parts] = st.builds(  # calls, mostly
    lambda kind, text, asking, end, other: [[text, *asking], [text, end], [text], [other]][kind],
    *(st.sampled_from([0, 0, 0, 0, 1, 2, 3]), text, asking, ends, st.sampled_from(others)),
)
placements: st.SearchStrategy[ev.Placement] = st.sampled_from(["next_turn", "next_turn", "next_step", "context"])
failures = [FailBefore(DOWN), FailAfter(DOWN)]
observed = st.sampled_from(
    [
        *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "assistant/chunk"),
        *("assistant/message", "tool/call", "tool/result", "step/end", "llm/retry", "turn/end", "agent/status running"),
    ]
)
points = st.tuples(answers, observed, st.integers(0, 15))


def does(**given: Any) -> Callable[[Any], Any]:
    """A rule whose method is async: run in virtual time, and then some rounds of the loop more, to go on from there."""

    def make(method: Any) -> Any:
        async def do_and_look(self: Lives, rounds: int, drawn: Any) -> None:
            await method(self, **drawn)
            for _ in range(rounds):
                await asyncio.sleep(0)
            await self.look()

        @functools.wraps(method)
        def do(self: Lives, rounds: int, **drawn: Any) -> None:
            self.loop.run_until_complete(do_and_look(self, rounds, drawn))

        return rule(rounds=st.integers(0, 25), **given)(do)

    return make


class Lives(RuleBasedStateMachine):
    """One session. `kept` is what was acknowledged as durable, in whichever life; `armed` counts who will act unasked.

    `cancelled` is the turn that was last cancelled while it was open.
    """

    world: World
    life: Life
    agent: Agent
    session: Session
    account: Account
    armed: int
    cancelled: int

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.kept: tuple[SessionEvent, ...] = ()

    @initialize(
        policy=st.sampled_from([SemanticCheckpointPolicy, EveryEventCheckpointPolicy]),
        max_parallel=st.integers(1, 3),
        window_ms=st.sampled_from([None, 200]),
    )
    def start(self, policy: Any, max_parallel: int, window_ms: int | None) -> None:
        limits = DrainLimits(write_behind_ms=window_ms)
        self.world = World(policy=policy, max_parallel_tools=max_parallel, drain_limits=limits)
        self.loop.run_until_complete(self.begin())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.life.end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        count("lives of an agent, drawn by hypothesis", runs=1)

    # ---------------------------------------------------------------------------------------- what callers do

    @does(placement=placements, planned=st.lists(answers, max_size=4))
    async def accept(self, placement: ev.Placement, planned: list[Parts]) -> None:
        self.world.answers.extend(planned)
        armed = self.armed
        id = self.agent.accept("go on", placement)
        self.see()
        assert armed or self.account.fates[id] == "pending"

    accept_more = accept_still_more = accept_a_lot = accept  # as a rule that is chosen more often than the others

    @does(place=st.integers(0, 99), other=st.booleans())
    async def accept_again(self, place: int, other: bool) -> None:
        """By a client that lost its answer, or by one that has the id wrong."""
        accepted = [event.data for event in self.session.events if event.type == "inbox/accepted"]
        if accepted:
            length, data = len(self.session), accepted[place % len(accepted)]
            id, content = data["message"]["id"], data["message"]["content"]
            if other:
                with pytest.raises(MessageConflict):
                    self.agent.accept("something else", data["placement"], id)
            else:
                assert self.agent.accept(content, data["placement"], id) == id
            assert len(self.session) == length

    @does(places=st.sets(st.integers(0, 5), min_size=1))
    async def discard(self, places: set[int]) -> None:
        self.see()
        ids = [id for place, id in enumerate(self.account.free()) if place in places]
        if ids:
            self.agent.discard(ids)
            self.see()
            assert {self.account.fates[id] for id in ids} == {"discarded"}

    @does(keep_inbox=st.booleans())
    async def cancel(self, keep_inbox: bool) -> None:
        self.see()
        kept = self.account.free() if keep_inbox else self.account.free_of("context")
        self.agent.cancel("enough", keep_inbox=keep_inbox)
        self.see()
        assert self.account.free() == kept
        if self.account.state != "IDLE":
            self.cancelled = self.account.turn

    @does(place=observed, act=st.sampled_from(["cancel", "cancel all", "send", "steer", "inject"]))
    async def act_when_observing(self, place: str, act: str) -> None:
        agent = self.agent
        acts: dict[str, Callable[[], object]] = {
            "cancel": lambda: agent.cancel("observer", keep_inbox=True),
            "cancel all": lambda: agent.cancel("observer"),
            "send": lambda: agent.send("and then"),
            "steer": lambda: agent.steer("faster"),
            "inject": lambda: agent.inject("by the way"),
        }

        def do() -> None:
            self.armed -= 1
            with suppress(AgentClosed):  # the agent may be closing
                acts[act]()

        self.armed += 1
        at(self.session, place, do)

    @does()
    async def flush(self) -> None:
        """By a caller that acknowledges what it accepted; or by one that is told that it may not."""
        length = len(self.session)
        try:
            await self.life.house.sessions.flush(self.session)
        except PersistenceUnavailable:
            pass  # the caller knows that it may not acknowledge anything
        else:
            assert self.session.durable >= length

    @does(name=st.sampled_from(["test", "other"]))
    async def configure(self, name: str) -> None:
        self.agent.config = replace(self.agent.config, name=name)

    # ---------------------------------------------------------------------------------------- what the world does

    @does()
    async def fail_listener(self) -> None:
        self.life.listener_fails = True

    @does(planned=st.lists(st.sampled_from([None, *failures]), min_size=1, max_size=4))
    async def fail_store(self, planned: list[Any]) -> None:
        self.life.disk.next("append", *planned)

    @does(ms=st.integers(1, 1000))
    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    @does(point=points, planned=st.lists(st.sampled_from(failures), max_size=2))
    async def crash(self, point: Any, planned: list[Any]) -> None:
        """In the middle of a turn, mostly; and the store may fail when it is taken up again."""
        await self.come_to(*point)
        await self.life.end()
        await self.begin(*planned)

    @does(point=points)
    async def stop(self, point: Any) -> None:
        await self.come_to(*point)
        self.life.disk.heal()
        await self.agent.close()
        self.see()
        assert (self.agent.status, self.account.state) == ("closed", "IDLE")
        assert await self.world.stored() == self.session.events
        await self.begin()
        assert self.session.closers == ()

    @does()
    async def settle(self) -> None:
        """All that was asked for is done: every message that wakes had its turn, and everybody is told the truth."""
        self.life.disk.heal()
        outcome = await self.agent.wait(self.agent.send("go on"))
        assert outcome.durable or outcome.is_discarded
        await self.agent.wait_idle()
        await self.life.house.sessions.flush(self.session)
        self.see()
        assert (self.agent.status, self.account.state, self.account.waking) == ("idle", "IDLE", [])
        assert await self.world.stored() == self.session.events
        if self.session.messages:
            check_provider_valid(self.session.messages)
        await self.check_outcomes()
        self.check_bodies()
        self.check_requests()

    # ---------------------------------------------------------------------------------------- what has to hold

    async def begin(self, *planned: Any) -> None:
        """A new process takes up what is stored, and repairs it as the pure function says."""
        self.life, self.armed, self.cancelled = Life(self.world), 0, 0
        stored = await self.world.stored()
        self.account = Account(stored)
        answers = {
            call["id"]: Completed("seen") if self.world.entered[call["id"]] else NotStarted()
            for call in self.account.calls[self.account.answered :]
            if call["name"] == "sure"
        }
        self.life.disk.next("acquire", *planned)
        agent = None
        while agent is None:
            try:
                agent = await self.life.house.agents.resume("s", force=True)
            except SessionNotFound:
                agent = await self.life.house.agents.create("s")
            except PersistenceUnavailable:  # as planned
                pass
        self.agent, self.session = agent, agent.session
        closers = () if self.account.state == "IDLE" else close_interrupted_turn(stored, answers)
        assert self.session.events == stored + closers

    async def come_to(self, answer: Parts, place: str, later: int) -> None:
        """Send a prompt; return that many rounds after something of this name was told, or when all is quiet."""
        self.world.answers.append(answer)
        reached = asyncio.Event()
        at(self.session, place, reached.set)
        self.agent.send("go on")
        with suppress(TimeoutError):
            await asyncio.wait_for(reached.wait(), 1)
        for _ in range(later):
            await asyncio.sleep(0)

    def see(self) -> None:
        for event in self.session.events_from(len(self.account.events)):
            self.account.see(event)
            if event.type in STARTED_BY_THE_LOOP and event.data["turn"] == self.cancelled:
                raise AssertionError(f"{event!r} in a turn that was cancelled before")
        assert list(self.session.state.pending) == list(self.account.pending)

    async def look(self) -> None:
        """What is acknowledged is the beginning of what is stored, and that of what is live; nothing left too early."""
        self.see()
        stored = await self.world.stored()
        assert stored == self.session.events[: len(stored)]
        assert stored[: len(self.kept)] == self.kept
        assert len(self.kept) <= self.session.durable <= len(stored)
        self.kept = self.session.events[: self.session.durable]
        assert self.world.faults == []
        assert set(self.world.entered.values()) <= {1}

    async def check_outcomes(self) -> None:
        turns = {
            event.data["message"]["id"]: event.data["turn"]
            for event in self.session.events
            if event.type == "user/message"
        }
        for id, fate in self.account.fates.items():
            if fate != "pending":
                outcome = await self.agent.wait(id)
                assert (outcome.turn, outcome.is_discarded) == (turns.get(id), fate == "discarded")
                assert outcome.durable

    def check_bodies(self) -> None:
        """Each result says of its body's beginning what is true."""
        for event in self.session.events:
            if event.type == "tool/result":
                code = event.data.get("error", {}).get("code")
                entered = self.world.entered[event.data["call_id"]]
                assert entered == 1 if code in RAN else entered == 0 or code == "TOOL_OUTCOME_UNKNOWN"

    def check_requests(self) -> None:
        """LOOP-16: each request that was made is made again from the log."""
        keys, has_header = [], False
        for event in self.session.events:
            has_header = has_header or event.type == "request/header"
            if event.type == "step/end" and has_header:
                keys.append((event.data["turn"], event.data["step"]))
        rebuilt = dict(zip(keys, rebuild_requests("s", self.session.events), strict=True))
        assert {key: rebuilt[key] for key in self.world.asked} == self.world.asked


@pytest.mark.timeout(9 * settings().max_examples)
class TestLives(Lives.TestCase):  # type: ignore[valid-type,misc]  # made by hypothesis
    settings = settings(max_examples=10 * settings().max_examples, stateful_step_count=20)
