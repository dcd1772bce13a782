"""What became of a call whose result is missing: asked of its tool, if that can tell, and else told as unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.llm.scripted import call, say
from app.session.errors import SessionHeld
from app.session.ownership import Owner, this_owner
from app.session.recovery import Completed, NotStarted, RecordedCall, Unknown
from app.tools.schema import tool
from app.tools.tool_set import ToolSet
from tests.support.child import Child, for_ever, mark
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.house import House
from tests.support.interrupted import Open, leave
from tests.support.stores import Place, place_of
from tests.support.timed import TimedPersistence, until_ms
from tests.support.virtual_time import virtual_time
from tests.support.watching import data_of, results

STARTED = "tool call was started, but its result was not recorded"
MAY_BE_CALLED_AGAIN = {"code": "TOOL_OUTCOME_UNKNOWN", "message": f"{STARTED}; it may simply be called again"}
VERIFY_OR_ASK = {
    "code": "TOOL_OUTCOME_UNKNOWN",
    "message": (
        f"{STARTED}: it may or may not have taken effect. Verify the state, or ask the user, before calling it again"
    ),
}
NOT_STARTED = {
    "code": "TOOL_NOT_STARTED",
    "message": "tool call was never started; call the tool again if it is still needed",
}


class Asking:
    """A tool whose `reconcile` notes which calls it is asked about, and answers as told."""

    def __init__(self, answer: Any, *, name: str = "act") -> None:
        self.asked: list[str] = []
        self._answer = answer

        async def body() -> dict[str, int]:
            raise AssertionError("recovery runs no tool")

        self.tool = tool(body, name=name, reconcile=self._reconcile)

    async def _reconcile(self, recorded: RecordedCall) -> Any:
        self.asked.append(recorded.call_id)
        if callable(self._answer):
            return await self._answer(recorded)
        return self._answer


async def test_a_call_that_completed_has_its_value(place: Place):
    """RCN-01: the result is that value, marked as reconciled, and the model sees it."""
    await leave(place.persistence(), Open("c1"))
    asking = Asking(Completed({"seats": 2}))
    house = House([say("I see")], [asking.tool], place.persistence())
    async with house.resumed(force=True) as agent:
        assert data_of(agent.session, "tool/result") == [
            {
                "turn": 1,
                "step": 1,
                "call_id": "c1",
                "call_seq": 6,
                "is_error": False,
                "value": {"seats": 2},
                "reconciled": True,
            }
        ]
        await agent.wait(agent.send("and?"))
        told = house.adapter.requests[0].messages[2]
        assert (told.call_id, told.is_error, told.text) == ("c1", False, '{"seats":2}')  # type: ignore[union-attr]


async def test_a_call_that_did_not_start_is_told_as_that(place: Place):
    """RCN-02: with the seq of its recorded start."""
    await leave(place.persistence(), Open("c1"))
    house = House(tools=[Asking(NotStarted()).tool], persistence=place.persistence())
    async with house.resumed(force=True) as agent:
        assert data_of(agent.session, "tool/result") == [
            {"turn": 1, "step": 1, "call_id": "c1", "call_seq": 6, "is_error": True, "error": NOT_STARTED}
        ]


async def raising(recorded: RecordedCall) -> None:
    raise RuntimeError("no route")


async def dawdling(recorded: RecordedCall) -> None:
    await for_ever()


@pytest.mark.parametrize(
    "answer",
    [Unknown(), raising, dawdling, Completed("no dict"), Completed({"seats": float("nan")}), "yes"],
    ids=["unknown", "raises", "too slow", "against the return type", "not storable", "no answer at all"],
)
async def test_a_call_of_which_nothing_is_learnt_stays_unknown(place: Place, answer: Any):
    """RCN-03: whatever the reason; resuming works all the same."""
    await leave(place.persistence(), Open("c1"))
    asking = Asking(answer)
    house = House(persistence=place.persistence())
    house.sessions._reconcile = ToolSet([asking.tool], reconcile_timeout_s=0.01)
    async with house.resumed(force=True) as agent:
        assert asking.asked == ["c1"]
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [VERIFY_OR_ASK]


async def test_a_call_of_a_tool_that_is_gone_stays_unknown(place: Place):
    """RCN-03: there is nobody to ask."""
    await leave(place.persistence(), Open("c1"))
    asking = Asking(Completed({}), name="another")
    house = House(tools=[asking.tool], persistence=place.persistence())
    async with house.resumed(force=True) as agent:
        assert asking.asked == []
        assert results(agent.session) == [("c1", "TOOL_OUTCOME_UNKNOWN")]


async def test_only_recorded_calls_of_tools_that_can_tell_are_asked_about(place: Place):
    """RCN-04: of three open calls the first; the results stand in the order of the message."""
    await leave(place.persistence(), Open("c1"), Open("c2", "plain"), Open("c3", effects=None))

    async def plain() -> str:
        raise AssertionError("recovery runs no tool")

    asking = Asking(Completed({"seats": 2}))
    house = House(tools=[asking.tool, plain], persistence=place.persistence())
    async with house.resumed(force=True) as agent:
        assert asking.asked == ["c1"]
        assert results(agent.session) == [
            *(("c1", {"seats": 2}), ("c2", "TOOL_OUTCOME_UNKNOWN"), ("c3", "TOOL_NOT_STARTED")),
        ]
        assert [event.type for event in agent.session.closers] == [*["tool/result"] * 3, "step/end", "turn/end"]


async def ask_and_hang(kind: str, directory: str, where: str) -> None:
    """Run by a child: it is killed while the tool is asked, or before the answer is stored."""

    async def answer(recorded: RecordedCall) -> Completed:
        if where == "asking":
            mark("asking")
            await for_ever()
        return Completed({"seats": 1})

    store = FaultyPersistence(place_of(kind, directory).persistence())
    house = House(tools=[Asking(answer).tool], persistence=store, owner=this_owner())
    async with house.opened():
        gate = store.hold("append")
        resuming = asyncio.create_task(house.sessions.resume("s", force=True))
        await gate.reached()
        mark("storing")
        await resuming


@pytest.mark.parametrize("where", ["asking", "storing"])
async def test_a_resume_killed_on_its_way_is_done_again(durable_place: Place, where: str):
    """RCN-05: the tool is asked again, and the closers are what they would have been."""
    log = await leave(durable_place.persistence(), Open("c1"))
    with Child(f"{__name__}:ask_and_hang", *durable_place.words, where) as child:
        child.wait_for(where)
        child.kill()
    asking = Asking(Completed({"seats": 2}))
    house = House(tools=[asking.tool], persistence=durable_place.persistence())
    async with house.resumed(force=durable_place.force) as agent:
        assert asking.asked == ["c1"]
        assert agent.session.epoch.number == 3
        assert agent.session.events[: len(log)] == log
        assert results(agent.session) == [("c1", {"seats": 2})]
        assert [event.type for event in agent.session.events[len(log) :]] == ["tool/result", "step/end", "turn/end"]


@virtual_time
async def test_the_lease_is_kept_while_a_tool_is_asked():
    """A renewal that fails is tried again, a second resumer is refused, and resuming works in the end."""
    store = TimedPersistence()
    await leave(store, Open("c1"))

    async def slowly(recorded: RecordedCall) -> Completed:
        await asyncio.sleep(95)
        return Completed({"seats": 2})

    asking = Asking(slowly)
    house = House(persistence=store)
    house.sessions._reconcile = ToolSet([asking.tool], reconcile_timeout_s=100)
    store.next("renew", FailBefore(DOWN), FailBefore(OSError("reset")))
    async with house.opened():
        resuming = asyncio.create_task(house.sessions.resume("s", force=True))
        for second in range(1, 95):
            await until_ms(second * 1000)
            with pytest.raises(SessionHeld):
                await store.inner.acquire("s", Owner("other"))
        session = await resuming
        assert results(session) == [("c1", {"seats": 2})]
        # The lease counts from the batch that closed the turn, sent just now.
        store.log.clear()
        await until_ms(119_000)
        await house.sessions.check_ownership(session)
        assert store.log == []
        await house.sessions.release(session)


@virtual_time
async def test_a_resume_cancelled_while_a_tool_is_asked_leaves_nothing_behind():
    """RCN-05: nothing is live, nobody is asked any more, and resuming again works at once."""
    store = TimedPersistence()
    await leave(store, Open("c1"))
    asking = Asking(dawdling)
    house = House(persistence=store)
    house.sessions._reconcile = ToolSet([asking.tool], reconcile_timeout_s=100)
    async with house.opened():
        resuming = asyncio.create_task(house.sessions.resume("s", force=True))
        await until_ms(50_000)
        resuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resuming
        assert house.sessions.live == ()
        store.log.clear()
        await until_ms(51_000)
        assert store.log == []
        again = await House(persistence=store).sessions.resume(
            "s", force=True
        )  # stored as it was: only the claim is new
        assert again.epoch.number == 3
        await store.release("s", again.epoch)
        house.sessions._reconcile = None
        session = await house.sessions.resume("s")
        assert session.events == again.events
        await house.sessions.release(session)


async def test_looking_asks_nobody(place: Place):
    """RCN-07: `inspect` shows the call as unknown in its balanced view, and writes nothing."""
    log = await leave(place.persistence(), Open("c1"))
    asking = Asking(Completed({}))
    house = House(tools=[asking.tool], persistence=place.persistence())
    async with house.opened():
        before = await house.persistence.read("s")
        seen = await house.sessions.inspect("s")
        assert asking.asked == []
        assert seen.events == log
        assert [event.type for event in seen.closers] == ["tool/result", "step/end", "turn/end"]
        assert seen.closers[0].data["error"] == VERIFY_OR_ASK
        after = await house.persistence.read("s")
        assert (after.events, after.ends, after.holder.epoch) == (before.events, before.ends, before.holder.epoch)


async def test_what_the_model_is_told_depends_on_the_recorded_effects(place: Place):
    """EFF-01: one of each: may be called again, the same, verify or ask, as that; and never started."""
    await leave(
        place.persistence(),
        Open("c1", "look", "read_only"),
        Open("c2", "put", "idempotent"),
        Open("c3", "pay", "side_effect"),
        Open("c4", "no such tool", "side_effect"),
        Open("c5", "look", None),
    )
    async with House(persistence=place.persistence()).resumed(force=True) as agent:
        assert [
            (data["call_id"], data["call_seq"], data["error"]) for data in data_of(agent.session, "tool/result")
        ] == [
            ("c1", 6, MAY_BE_CALLED_AGAIN),
            ("c2", 7, MAY_BE_CALLED_AGAIN),
            ("c3", 8, VERIFY_OR_ASK),
            ("c4", 9, VERIFY_OR_ASK),
            ("c5", None, NOT_STARTED),
        ]


async def test_an_unknown_tool_is_recorded_as_one_with_side_effects(place: Place):
    """EFF-01: when its call is recorded, there is nothing else to go by."""
    async with House([call("nothing", {}, id="c1"), say("oh")], persistence=place.persistence()).agent() as agent:
        await agent.wait(agent.send("go"))
        assert [data["effects"] for data in data_of(agent.session, "tool/call")] == ["side_effect"]


async def test_effects_that_have_changed_since_do_not_count(place: Place):
    """EFF-02: recorded as having side effects, the tool says that it only reads now; and the other way round."""
    await leave(place.persistence(), Open("c1", "act", "side_effect"), Open("c2", "look", "read_only"))

    async def act() -> str:
        raise AssertionError("recovery runs no tool")

    tools = [tool(act, effects="read_only"), tool(act, name="look", effects="side_effect")]
    async with House(tools=tools, persistence=place.persistence()).resumed(force=True) as agent:
        assert [data["error"] for data in data_of(agent.session, "tool/result")] == [VERIFY_OR_ASK, MAY_BE_CALLED_AGAIN]
