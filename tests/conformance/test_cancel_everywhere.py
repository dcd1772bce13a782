"""One cancel at each place of a turn: it ends `aborted`, starts nothing more, and the next prompt is as ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.agent.retry import Fail, Retry
from app.agent.step import Step
from app.cancel import CancelSignal
from app.llm.scripted import call, fail, gate, say
from app.llm.types import LlmRequest
from app.messages import ModelRef, TextBlock, UserMessage
from app.middleware import Named
from app.session.errors import AbortedBeforeDispatch
from app.tools.schema import tool
from app.tools.types import Allow, ToolExecution
from persistence.memory import MemoryPersistence
from policy.retry import BackoffRetryPolicy
from tests.support.asked import Asked
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.virtual_time import all_quiet, virtual_time
from tests.support.watching import at, data_of, is_balanced, results

OPEN = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]
ANSWERED = [*OPEN, "chunk*", "assistant/message"]
CALLED = [*ANSWERED, "tool/call", "tool/result"]
ABORTED = ["step/end", "turn/end{aborted}"]
NEXT = ["inbox/accepted", "turn/start", "user/message", "step/start", "chunk*", "assistant/message", "step/end"]
ABD = "ABORTED_BEFORE_DISPATCH"


@dataclass
class Stops:
    """A turn with one call that can be held up at each place; every gate is open but that of `place`."""

    place: str
    fails_after: str = ""
    gates: dict[str, Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("stream", "policy", "body", "post-step", "retry policy"):
            self.gates[name] = Gate()
            if name != self.place:
                self.gates[name].open()
        self.store = FaultyPersistence(MemoryPersistence())

        @tool
        async def act() -> str:
            await self.gates["body"]()
            return "done"

        self.house = House(
            [self._answer(), say("next")],
            [act],
            self.store,
            policies=[Named("think", self._think)],
            listeners_above=[Named("listen", self._listen)],
            retry=self._retry,
        )

    def _answer(self) -> list[Any]:
        if self.place == "retry policy":
            return [fail("SERVER")]
        return [say("let me see"), gate(self.gates["stream"]), call("act", {}, id="c1")]

    async def _think(self, execution: ToolExecution) -> Allow:
        await self.gates["policy"]()
        return Allow()

    async def _listen(self, step: Step) -> None:
        await self.gates["post-step"]()
        if self.fails_after == "listener" and step.turn == 1:
            raise RuntimeError("a bad listener")

    async def _retry(self, failure, earlier, turn, step, signal) -> Retry | Fail:
        await self.gates["retry policy"]()
        return Retry(0)

    async def cancel(self, agent) -> None:
        """Cancel when the turn stands at the place, and let it go on after that."""
        if self.place in ("C1", "C2"):
            self.store.next("append", *[None] * (self.place == "C2"))
            held = self.store.hold("append")
            await held.reached()
            agent.cancel("enough")
            held.open()
            return
        if self.fails_after == "C3":
            self.store.next("append", None, None, FailBefore(DOWN))
        await self.gates[self.place].reached.wait()
        agent.cancel("enough")
        self.gates[self.place].open()


@pytest.mark.parametrize(
    ("place", "fails_after", "expected", "result", "writes"),
    [
        ("C1", "", OPEN, [], []),
        ("stream", "", ANSWERED, [], []),
        ("policy", "", CALLED, [("c1", ABD)], ["post-step"]),
        ("C2", "", CALLED, [("c1", ABD)], ["tool", "post-step"]),
        ("body", "", CALLED, [("c1", "ABORTED")], ["tool", "post-step"]),
        ("post-step", "", CALLED, [("c1", "done")], ["tool", "post-step"]),
        ("post-step", "listener", CALLED, [("c1", "done")], ["tool"]),
        ("post-step", "C3", CALLED, [("c1", "done")], ["tool", "post-step"]),  # written later, by the final flush
        ("retry policy", "", OPEN, [], []),
    ],
)
async def test_a_cancel_while_something_is_awaited(place, fails_after, expected, result, writes):
    """CAN-06: at C1, in the stream, a policy, C2, a body, after the step (also if that fails), in the retry policy."""
    stops = Stops(place, fails_after)
    async with stops.house.agent() as agent:
        cancelling = asyncio.create_task(stops.cancel(agent))
        outcome = await agent.wait(agent.send("go"))
        await cancelling
        assert (outcome.reason, outcome.cause, outcome.error) == ("aborted", "enough", None)
        assert types(agent.session) == [*expected, *ABORTED]
        assert results(agent.session) == result
        assert is_balanced(agent.session)
        assert len(stops.house.adapter.requests) == (0 if place == "C1" else 1)
        assert ("append failed" in stops.store.log) is (fails_after == "C3")
        assert stops.store.reasons == ["request", *writes, "final"]
        stops.house.adapter.unused = stops.house.adapter.unused[-1:]  # where nothing was asked, the first is left too
        assert (await agent.wait(agent.send("again"))).reason == "completed"
        assert types(agent.session) == [*expected, *ABORTED, *NEXT, "turn/end{completed}"]


@pytest.mark.parametrize(
    ("place", "nth", "expected"),
    [("step/start", 1, OPEN[:-1]), ("request/header", 1, OPEN), ("user/message", 2, [*CALLED, "user/message"])],
    ids=["step/start", "header", "intake"],
)
async def test_a_cancel_by_an_observer(place, nth, expected):
    """CAN-06: as the step starts, at its header, and at the intake at its end."""

    @tool
    async def act(execution: ToolExecution) -> str:
        execution.inject("by the way")
        return "done"

    house = House([call("act", {}, id="c1"), say("next")], [act])
    async with house.agent() as agent:
        at(agent.session, place, lambda: agent.cancel("enough"), nth=nth)
        outcome = await agent.wait(agent.send("go"))
        assert (outcome.reason, outcome.cause) == ("aborted", "enough")
        names = [name for name in types(agent.session)[1:] if name != "inbox/accepted"]
        assert names == [*expected[1:], *ABORTED]
        assert is_balanced(agent.session)
        house.adapter.unused = house.adapter.unused[-1:]
        assert (await agent.wait(agent.send("again"))).reason == "completed"


@virtual_time
async def test_a_cancel_ends_the_wait_for_a_retry():
    """CAN-06: in the backoff; there is no further step, and nobody waits for the rest of it."""
    house = House([fail("SERVER"), say("next")], retry=BackoffRetryPolicy(base_ms=5_000))
    async with house.agent() as agent:
        prompt = agent.send("go")
        await all_quiet()
        assert types(agent.session) == [*OPEN, "step/end", "llm/retry"]
        agent.cancel("enough")
        outcome = await agent.wait(prompt)
        assert (outcome.reason, outcome.cause) == ("aborted", "enough")
        assert types(agent.session) == [*OPEN, "step/end", "llm/retry", "turn/end{aborted}"]
        assert asyncio.get_running_loop().time() < 1
        assert (await agent.wait(agent.send("again"))).reason == "completed"


async def test_a_cancel_during_the_request_checkpoint_asks_neither_adapter_nor_retry_policy():
    """CAN-32: the flush is awaited, and then the turn is closed."""
    store, retry = FaultyPersistence(MemoryPersistence()), Asked(retries=9)
    house = House([say("one")], persistence=store, retry=retry)
    async with house.agent() as agent:
        held = store.hold("append")
        prompt = agent.send("go")
        await held.reached()
        agent.cancel()
        held.open()
        assert (await agent.wait(prompt)).reason == "aborted"
        assert types(agent.session) == [*OPEN, *ABORTED]
        assert store.reasons == ["request", "final"]
        assert (house.adapter.requests, retry.asked) == ([], [])


async def test_a_side_request_cancelled_during_its_checkpoint_says_so():
    """CAN-32: whoever made it gets AbortedBeforeDispatch, and the adapter is not opened."""
    store, signal = FaultyPersistence(MemoryPersistence()), CancelSignal()
    house = House([say("one")], persistence=store)
    async with house.agent() as agent:
        agent.inject("something to write")
        held = store.hold("append")
        side = LlmRequest(
            ModelRef("script", "test"), (UserMessage((TextBlock("sum up"),)),), session_id="s", signal=signal
        )

        async def ask() -> None:
            async with house.llm.stream(side):
                raise AssertionError("it was opened")

        asking = asyncio.create_task(ask())
        await held.reached()
        signal.cancel()
        held.open()
        with pytest.raises(AbortedBeforeDispatch):
            await asking
        assert store.reasons == ["request"]
        assert house.adapter.requests == []
        assert data_of(agent.session, "turn/start") == []
