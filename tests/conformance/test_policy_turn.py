"""Whole turns under each checkpoint policy: how often they flush, and what each flush writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.llm.scripted import call, fail, reason, say
from app.session.ownership import this_owner
from app.session.store import SessionStore
from app.tools.schema import tool
from persistence.memory import MemoryPersistence
from policy.checkpoint import EveryEventCheckpointPolicy, SemanticCheckpointPolicy, TurnEndCheckpointPolicy
from tests.support.asked import Asked
from tests.support.bodies import Bodies, calls
from tests.support.checkpoints import batches, flushes_of
from tests.support.child import Child, for_ever, mark
from tests.support.faults import FailBefore, FaultyPersistence
from tests.support.house import House, types
from tests.support.stores import Place, place_of
from tests.support.watching import at, data_of, results

DISK = RuntimeError("disk unavailable")
PLAIN = [
    *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
    *("chunk*", "assistant/message", "step/end", "turn/end{completed}"),
]


def turn_end(sessions: SessionStore) -> TurnEndCheckpointPolicy:
    return TurnEndCheckpointPolicy()


@tool
async def act() -> str:
    return "done"


def faulty() -> FaultyPersistence:
    return FaultyPersistence(MemoryPersistence())


async def test_parallel_calls_share_writes():
    """POL-24: three checkpoints, at most three writes; no seq twice and none missing; each body after its own call."""
    bodies, store = Bodies(), faulty()
    house = House([calls("safe c1", "safe c2", "safe c3"), say("done")], [bodies.safe], store)
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert flushes.count("tool") == 3
        assert 1 <= store.reasons.count("tool") <= 3
        assert [event.seq for batch in store.written for event in batch.events] == list(range(len(agent.session)))
        assert (await store.inner.read("s")).events == agent.session.events
        assert results(agent.session) == [("c1", "c1"), ("c2", "c2"), ("c3", "c3")]


async def test_the_policy_of_the_turns_end_has_no_checkpoint_inside():
    """POL-28: one flush, and then everything is durable."""
    store = faulty()
    house = House([call("act", {}, id="c1"), say("done")], [act], store, policy=turn_end)
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        outcome = await agent.wait(agent.send("go"))
        assert flushes == ["final"]
        assert (store.reasons, outcome.durable) == (["final"], True)
        assert (await store.inner.read("s")).events == agent.session.events


async def test_a_plain_answer_takes_three_flushes():
    """POL-29: before the request, after the step, and the final one."""
    store = faulty()
    house = House([say("Hello", chunks=3)], persistence=store)
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert flushes == ["request", "post-step", "final"]
        assert batches(store.written) == [
            ("request", ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]),
            ("post-step", ["chunk*", "assistant/message"]),
            ("final", ["step/end", "turn/end{completed}"]),
        ]


async def test_a_round_of_tools_takes_six_flushes():
    """POL-30, RUL-03: each with its own batch, whose end and reason can be looked at afterwards."""
    store = faulty()
    house = House([call("act", {}, id="c1"), say("done")], [act], store)
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        reasons = ["request", "tool", "post-step", "request", "post-step", "final"]
        assert flushes == reasons
        assert batches(store.written) == [
            ("request", ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header"]),
            ("tool", ["chunk*", "assistant/message", "tool/call"]),
            ("post-step", ["tool/result"]),
            ("request", ["step/end", "step/start"]),
            ("post-step", ["chunk*", "assistant/message"]),
            ("final", ["step/end", "turn/end{completed}"]),
        ]
        ends = (await house.sessions.inspect("s")).ends
        assert [(end.reason, end.seq) for end in ends] == [
            (batch.reason, batch.next_seq - 1) for batch in store.written
        ]


async def test_a_retried_request_has_a_checkpoint_of_its_own():
    """POL-34: it writes what is left of the failed attempt before the adapter is asked again."""
    store = faulty()
    house = House([[say("half"), fail("SERVER")], say("whole")], persistence=store, retry=Asked(retries=1))
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert batches(store.written)[1] == ("request", ["chunk*", "step/end", "llm/retry", "step/start"])
        assert len(house.adapter.requests) == 2


async def test_a_long_stream_takes_no_more_flushes_than_a_short_one():
    """POL-44: a thousand chunks, the finish among them, and three flushes."""
    store = faulty()
    house = House([say("x" * 999, chunks=999)], persistence=store)
    flushes = flushes_of(house.sessions)
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert [event.type for event in agent.session.events].count("assistant/chunk") == 1000
        assert flushes == ["request", "post-step", "final"]
        assert store.reasons == flushes


async def test_the_policy_changes_nothing_that_the_model_sees():
    """POL-45: under each policy the same script gives the same requests, to the byte, and the same event types."""
    asked, logs = [], []
    for policy in (SemanticCheckpointPolicy, turn_end, EveryEventCheckpointPolicy):
        house = House(
            [[reason("hmm"), call("act", {}, id="c1")], [fail("SERVER")], say("done", chunks=2), say("more")],
            [act],
            policy=policy,
        )
        async with house.agent() as agent:
            for content in ("one", "two"):
                await agent.wait(agent.send(content, id=content))
            asked.append([repr(replace(request, signal=None)) for request in house.adapter.requests])
            logs.append([(event.type, event.text) for event in agent.session.events])
    assert len(asked[0]) == 4
    assert asked[0] == asked[1] == asked[2]
    assert logs[0] == logs[1] == logs[2]


async def test_every_event_is_stored_before_the_loop_goes_on():
    """POL-42: each group that the loop appends is a batch of its own, the chunks too."""
    store = faulty()
    house = House(
        [[say("so", chunks=2), call("act", {}, id="c1")], say("done")], [act], store, policy=EveryEventCheckpointPolicy
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go"))
        steps = [["assistant/chunk"]] * 4 + [["assistant/message"], ["tool/call"], ["tool/result"], ["step/end"]]
        assert [[event.type for event in batch.events] for batch in store.written] == [
            ["inbox/accepted", "turn/start", "user/message"],
            *(["step/start"], ["request/header"], *steps),
            *(["step/start"], *[["assistant/chunk"]] * 2, ["assistant/message"], ["step/end"]),
            ["turn/end"],
        ]


async def test_a_call_that_cannot_be_stored_is_not_run():
    """POL-43: under `every_event` the flush right after `tool/call` fails: that is the result, no body is entered."""
    bodies, store = Bodies(), faulty()
    house = House([calls("alone c1"), say("I see")], [bodies.alone], store, policy=EveryEventCheckpointPolicy)
    async with house.agent() as agent:
        at(agent.session, "tool/call", lambda: store.next("append", FailBefore(DISK)))
        assert (await agent.wait(agent.send("go"))).reason == "completed"
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [
            {"code": "CHECKPOINT_FAILED", "message": "disk unavailable"}
        ]
        assert bodies.order == []


async def test_a_result_that_cannot_be_stored_keeps_later_bodies_out():
    """RUL-10: the other calls end as checkpoints that failed, and the turn as with a failed C3."""
    bodies, store = Bodies(), faulty()
    house = House(
        [calls("alone c1", "alone c2", "alone c3"), say("never")],
        [bodies.alone],
        store,
        policy=EveryEventCheckpointPolicy,
    )
    async with house.agent() as agent:
        at(agent.session, "tool/result", lambda: store.next("append", FailBefore(DISK)))
        outcome = await agent.wait(agent.send("go"))
        assert results(agent.session) == [("c1", "c1"), ("c2", "CHECKPOINT_FAILED"), ("c3", "CHECKPOINT_FAILED")]
        assert bodies.order == ["c1 starts", "c1 ends"]
        assert types(agent.session)[-2:] == ["step/end", "turn/end{error CHECKPOINT_FAILED}"]
        assert outcome.error == {"code": "CHECKPOINT_FAILED", "message": "disk unavailable", "step": 1}
        assert len(house.adapter.requests) == 1
        assert outcome.durable


UNTIL = {
    "turn/start": [*PLAIN[:3]],
    "step/start": [*PLAIN[:4], "step/end"],
    "request/header": [*PLAIN[:5], "step/end"],
    "assistant/chunk": [*PLAIN[:6], "step/end"],
    "assistant/message": [*PLAIN[:7], "step/end"],
}


@pytest.mark.parametrize("place", UNTIL)
async def test_a_turn_ends_where_an_event_cannot_be_stored(place: str):
    """POL-42: a flush that fails ends the turn: before the message as a failed C1 does, after it as a failed C3."""
    store = faulty()
    house = House([say("half")], persistence=store, policy=EveryEventCheckpointPolicy)
    async with house.agent() as agent:
        at(agent.session, place, lambda: store.next("append", FailBefore(DISK)))
        outcome = await agent.wait(agent.send("go"))
        assert types(agent.session) == [*UNTIL[place], "turn/end{error CHECKPOINT_FAILED}"]
        assert outcome.error is not None
        assert outcome.error["message"] == "disk unavailable"
        assert len(house.adapter.requests) == int(place.startswith("assistant/"))
        assert (await store.inner.read("s")).events == agent.session.events


# --------------------------------------------------------------------------------- killed between two calls


async def run_and_hang(kind: str, directory: str) -> None:
    """Run by a child: the second of two exclusive calls never ends."""

    @tool
    async def hang() -> None:
        mark("in the second body")
        await for_ever()

    house = House(
        [[call("act", {}, id="c1"), call("hang", {}, id="c2"), call("hang", {}, id="c3")]],
        [act, hang],
        place_of(kind, directory).persistence(),
        this_owner(),
    )
    async with house.agent() as agent:
        agent.send("go")
        await for_ever()


async def test_what_was_answered_before_a_kill_stays(durable_place: Place):
    """POL-35: killed in the body of c2: the result of c1 is kept, and only c2 and c3 are closed by recovery."""
    with Child(f"{__name__}:run_and_hang", *durable_place.words) as child:
        child.wait_for("in the second body")
        child.kill()
    house = House(persistence=durable_place.persistence(), owner=this_owner())
    async with house.opened():
        session = await house.sessions.resume("s", force=durable_place.force)
        assert results(session) == [("c1", "done"), ("c2", "TOOL_OUTCOME_UNKNOWN"), ("c3", "TOOL_NOT_STARTED")]
        assert [(event.type, event.data.get("call_id")) for event in session.closers] == [
            ("tool/result", "c2"),
            ("tool/result", "c3"),
            ("step/end", None),
            ("turn/end", None),
        ]
        await house.sessions.release(session)
