"""The post-step checkpoint: one flush in the order of the listeners; what stands above it is inside."""

from __future__ import annotations

from typing import Any

import pytest

from app.agent.step import Step
from app.llm.scripted import call, say
from app.middleware import Named
from app.session import events as ev
from app.tools.schema import tool
from persistence.memory import MemoryPersistence
from tests.support.checkpoints import batches, flushes_of
from tests.support.faults import FailBefore, FaultyPersistence
from tests.support.house import House, types
from tests.support.watching import at, data_of, errors, notices

ABOVE = ev.ExtensionType("test/above", ignorable=True)
BELOW = ev.ExtensionType("test/below", ignorable=True)
DISK = RuntimeError("disk unavailable")
FIRST_STEP = [
    *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*", "assistant/message"),
]


@tool
async def act() -> str:
    return "done"


class Appending:
    """A listener that appends one event of its own type."""

    def __init__(self, kind: ev.ExtensionType) -> None:
        self.appends = (kind,)

    async def __call__(self, step: Step) -> None:
        step.append(self.appends[0], {"step": step.step})


class Noting:
    """Listeners that note in one list that they were called, and may return what a listener does not."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getitem__(self, name: str) -> Named[Any]:
        return self.returning(name, None)

    def returning(self, name: str, value: object) -> Named[Any]:
        async def listen(step: Step) -> Any:
            self.called.append(name)
            return value

        return Named(name, listen)


async def test_a_step_is_flushed_once():
    """POL-19: whatever listeners there are round the checkpoint."""
    noting = Noting()
    house = House(
        [say("one")],
        listeners_above=[noting["a"], noting["b"]],
        listeners_below=[noting["c"]],
        persistence=FaultyPersistence(MemoryPersistence()),
    )
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        at(agent.session, "assistant/message", flushes.clear)
        seen: list[list[Any]] = []
        at(agent.session, "step/end", lambda: seen.append(list(flushes)))
        await agent.wait(agent.send("go"))
        assert seen == [["post-step"]]
        assert noting.called == ["a", "b", "c"]


async def test_what_listeners_append_above_is_inside_and_below_is_not():
    """POL-20: the event from above is stored when the checkpoint returns; the one from below comes with the next."""
    stored: list[list[str]] = []

    async def look(step: Step) -> None:
        stored.append([event.type for event in await store.inner.read_from("s", 0)])

    store = FaultyPersistence(MemoryPersistence())
    house = House(
        [call("act", {}, id="c1"), say("done")],
        [act],
        store,
        extensions=[ABOVE, BELOW],
        listeners_above=[Named("x", Appending(ABOVE))],
        listeners_below=[Named("look", look), Named("y", Appending(BELOW))],
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert stored[0][-3:] == ["tool/call", "tool/result", "test/above"]
        assert batches(store.written)[2:] == [
            ("post-step", ["tool/result", "test/above"]),
            ("request", ["test/below", "step/end", "step/start"]),
            ("post-step", ["chunk*", "assistant/message", "test/above"]),
            ("final", ["test/below", "step/end", "turn/end{completed}"]),
        ]


async def test_a_failed_checkpoint_ends_the_listeners_and_the_turn():
    """POL-21: what stands below is not called; the step is closed and the turn ends with the checkpoint's code."""
    noting = Noting()
    store = FaultyPersistence(MemoryPersistence())
    house = House(
        [call("act", {}, id="c1"), say("never")],
        [act],
        store,
        listeners_above=[noting["above"]],
        listeners_below=[noting["z"]],
    )
    async with house.agent() as agent:
        seen = notices(agent.session)
        at(agent.session, "tool/result", lambda: store.next("append", FailBefore(DISK)))
        outcome = await agent.wait(agent.send("go"))
        assert noting.called == ["above"]
        assert types(agent.session) == [
            *FIRST_STEP,
            *("tool/call", "tool/result", "step/end", "turn/end{error CHECKPOINT_FAILED}"),
        ]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": "disk unavailable", "step": 1}
        assert len(house.adapter.requests) == 1
        assert [(error.code, error.turn, error.step) for error in errors(seen)] == [("CHECKPOINT_FAILED", 1, 1)]
        assert outcome.durable


@pytest.mark.parametrize("value", [True, {"stop": True}, "stop"], ids=repr)
async def test_what_a_listener_returns_is_ignored(value: object):
    """POL-31: the checkpoint runs, and every listener above and below it is called."""
    noting = Noting()
    house = House(
        [say("one")],
        listeners_above=[noting.returning("a", value), noting.returning("b", value)],
        listeners_below=[noting.returning("c", value), noting.returning("d", value)],
    )
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert noting.called == ["a", "b", "c", "d"]
        assert flushes == ["request", "post-step", "final"]


async def test_a_listener_above_that_raises_leaves_no_checkpoint():
    """POL-41: nothing below it is called, the turn fails with its code, and the final flush stores the step."""
    noting = Noting()

    async def fail(step: Step) -> None:
        raise RuntimeError("no such index")

    store = FaultyPersistence(MemoryPersistence())
    house = House(
        [say("one")],
        persistence=store,
        listeners_above=[noting["first"], Named("fail", fail), noting["second"]],
        listeners_below=[noting["below"]],
    )
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert noting.called == ["first"]
        assert flushes == ["request", "final"]
        assert types(agent.session) == [*FIRST_STEP, "step/end", "turn/end{error LISTENER_FAILED}"]
        assert outcome.error is not None
        assert "no such index" in outcome.error["message"]
        assert outcome.durable
        assert batches(store.written)[-1] == (
            "final",
            ["chunk*", "assistant/message", "step/end", "turn/end{error LISTENER_FAILED}"],
        )


async def test_a_step_without_a_message_has_no_post_step_checkpoint():
    """After a failed request neither the listeners nor the checkpoint are asked."""
    noting = Noting()
    house = House([], listeners_above=[noting["above"]])  # a script without an answer left is a failed request
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("go"))).reason == "error"
        assert (noting.called, flushes) == ([], ["request", "final"])
        assert data_of(agent.session, "assistant/message") == []
