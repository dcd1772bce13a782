"""What the children live through: prompts for a scripted model, and tools that act outside of the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

from app.agent.agent import Agent
from app.llm.scripted import Step, call, fail, gate, say
from app.middleware import Handler
from app.session.recovery import Completed, Reconciled, RecordedCall
from app.session.store import SessionStore
from app.tools.schema import tool
from app.tools.types import ToolExecution, ToolResult
from policy.checkpoint import (
    CheckpointPolicy,
    EveryEventCheckpointPolicy,
    SemanticCheckpointPolicy,
    TurnEndCheckpointPolicy,
)
from tests.crash.holding import Hold
from tests.crash.ledger import Ledger


class World:
    """The tools, each noting what it does in the ledger. The places: `c1 admitted` (the call is checkpointed, the body
    not entered), `c1 entered`, `c1 acted` (the effect is there), `c1 ended` (its result is on its way to the log).
    """

    def __init__(self, hold: Hold, ledger: Ledger) -> None:
        self.agent: Agent | None = None  # once there is one
        self.sessions: SessionStore | None = None
        self.acknowledged = asyncio.Event()  # set when a prompt was
        self._hold = hold
        self._ledger = ledger
        self._one_ended = asyncio.Event()

    @property
    def tools(self) -> list[Any]:
        return [
            tool(self.act),
            tool(self.look, effects="read_only", parallel_safe=True),
            tool(self.act_last, parallel_safe=True),
            tool(self.act_within),
            tool(self.act_and_steer),
            tool(self.act_and_inject),
            tool(self.act_and_stop),
            tool(self.act_and_remember, reconcile=self.remember),
        ]

    # ---------------------------------------------------------------------------------------- the bodies

    def act(self, execution: ToolExecution) -> str:
        """Change the world."""
        return self._act(execution)

    def look(self, execution: ToolExecution) -> str:
        """Look at the world."""
        return self._act(execution)

    async def act_last(self, execution: ToolExecution) -> str:
        """Change the world after another call that runs beside this one has ended."""
        await self._one_ended.wait()
        return self._act(execution)

    async def act_within(self, execution: ToolExecution) -> str:
        """Have another tool act, then act."""
        await execution.execute_nested("act", {})
        return self._act(execution)

    async def act_and_steer(self, execution: ToolExecution) -> str:
        """Ask for something more, which is acknowledged."""
        execution.steer("and more")
        assert self.sessions is not None
        assert execution.session is not None
        await self.sessions.flush(execution.session)
        return self._act(execution)

    async def act_and_inject(self, execution: ToolExecution) -> str:
        """Tell the model something besides."""
        execution.inject("by the way")
        return self._act(execution)

    async def act_and_stop(self, execution: ToolExecution) -> str:
        """Have the turn cancelled from inside."""
        self.cancel()
        return self._act(execution)

    def act_and_remember(self, execution: ToolExecution) -> str:
        """Change the world, and be able to tell afterwards."""
        return self._act(execution)

    async def remember(self, recorded: RecordedCall) -> Reconciled:
        self._ledger.note("asked", call_id=recorded.call_id, epoch=recorded.epoch)
        self._hold(f"{recorded.call_id} asked")
        return Completed(f"{recorded.call_id} is remembered")

    def _act(self, execution: ToolExecution) -> str:
        self._ledger.note("entered", call_id=execution.call_id)
        self._hold(f"{execution.call_id} entered")
        self._ledger.note("acted", call_id=execution.call_id)
        self._hold(f"{execution.call_id} acted")
        return f"{execution.call_id} is done"

    # ---------------------------------------------------------------------------------------- around the bodies

    async def below_checkpoint(
        self, execution: ToolExecution, call_next: Handler[ToolExecution, ToolResult]
    ) -> ToolResult:
        """Tool middleware."""
        self._hold(f"{execution.call_id} admitted")
        result = await call_next(execution)
        self._one_ended.set()
        self._hold(f"{execution.call_id} ended")
        return result

    async def pause(self) -> None:
        """In a script: the place `mid-stream`."""
        self._hold("mid-stream")

    async def stop(self) -> NoReturn:
        """In a script: the turn is cancelled, and the stream gives nothing more."""
        self.cancel()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")

    def cancel(self) -> None:
        assert self.agent is not None
        self.agent.cancel()


@dataclass(frozen=True, slots=True)
class Story:
    """`answers` are the script of the model. With `acknowledges` each prompt is flushed, as a caller would flush it."""

    answers: Callable[[World], Sequence[Any]]
    prompts: tuple[str, ...] = ("go",)
    policy: Callable[[SessionStore], CheckpointPolicy] = SemanticCheckpointPolicy
    acknowledges: bool = False
    write_behind_ms: int | None = None


def turn_end(sessions: SessionStore) -> CheckpointPolicy:
    """No checkpoint inside a turn."""
    return TurnEndCheckpointPolicy()


def _text(world: World) -> Sequence[Any]:
    return [[say("Hello"), gate(world.pause), say("there")]]


def _half_a_text(world: World) -> Sequence[Any]:
    return [[say("Hello"), gate(asyncio.Event())]]


def _text_once_acknowledged(world: World) -> Sequence[Any]:
    return [[gate(world.acknowledged), gate(world.pause), say("Hello")]]


def _stopped(world: World) -> Sequence[Any]:
    return [[say("Hello"), gate(world.stop)]]


def _retried(world: World) -> Sequence[Any]:
    return [fail("RATE_LIMIT"), say("Hello")]


def _calls(*calls: str) -> Callable[[World], Sequence[Any]]:
    """One answer that asks for these, written `tool id`, and one that ends the turn."""
    asked = [call(name, {}, id=call_id) for name, call_id in (words.split() for words in calls)]
    return lambda world: [asked, say("Done")]


def _long(world: World) -> Sequence[Any]:
    return [
        [say("Two at once, one alone."), call("look", id="c1"), call("look", id="c2"), call("act_within", id="c3")],
        [say("One", chunks=3)],
        [call("act_and_steer", id="c4")],
        [say("Two")],
    ]


STORIES = {
    "text": Story(_text),
    "one call": Story(_calls("act c1")),
    "three calls": Story(_calls("act c1", "act c2", "act c3")),
    "side by side": Story(_calls("act_last c1", "look c2")),
    "nested": Story(_calls("act_within c1"), policy=EveryEventCheckpointPolicy),
    "steered": Story(_calls("act_and_steer c1")),
    "injected": Story(_calls("act_and_inject c1")),
    "remembered": Story(_calls("act c1", "act_and_remember c2", "act c3")),
    "two turns": Story(lambda world: [say("One"), say("Two")], prompts=("one", "two")),
    "acknowledged": Story(_text, acknowledges=True),
    "turn end": Story(_text_once_acknowledged, policy=turn_end, acknowledges=True),
    "half a text, written behind": Story(_half_a_text, write_behind_ms=1),
    "text, each event": Story(_text, policy=EveryEventCheckpointPolicy),
    "stopped, each event": Story(_stopped, policy=EveryEventCheckpointPolicy),
    "retried, each event": Story(_retried, policy=EveryEventCheckpointPolicy),
    "three calls, each event": Story(_calls("act c1", "act c2", "act c3"), policy=EveryEventCheckpointPolicy),
    "injected, each event": Story(_calls("act_and_inject c1"), policy=EveryEventCheckpointPolicy),
    "stopped in c1, each event": Story(
        _calls("act_and_stop c1", "act c2", "act c3"), policy=EveryEventCheckpointPolicy
    ),
    "long": Story(_long, prompts=("one", "two"), acknowledges=True),
}


def story_of(name: str) -> Story:
    """The story of that name; `drawn 7` is one that the seed 7 draws."""
    return STORIES[name] if name in STORIES else _drawn(int(name.removeprefix("drawn ")))


def _drawn(seed: int) -> Story:
    lots = random.Random(seed)
    ids = (f"c{number}" for number in count(1))
    tools = ("act", "look", "look", "act_within", "act_and_steer", "act_and_inject", "act_and_remember")
    answers: list[Any] = []
    for _ in range(lots.randint(2, 5)):
        match lots.choice(("calls", "calls", "calls", "text", "failure")):
            case "calls":
                answers.append([call(lots.choice(tools), {}, id=next(ids)) for _ in range(lots.randint(1, 3))])
            case "text":
                answers.append(say("One, two", chunks=2))
            case _:
                answers.append(fail("RATE_LIMIT"))
    answers.append(Step(say("Done"), repeat=True))
    policies = (SemanticCheckpointPolicy, SemanticCheckpointPolicy, EveryEventCheckpointPolicy)
    prompts = ("one", "two", "three")[: lots.randint(1, 3)]
    return Story(lambda world: answers, prompts, lots.choice(policies), acknowledges=lots.random() < 0.5)
