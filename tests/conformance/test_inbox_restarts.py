"""What becomes of messages when the process ends, by a stop or by a kill: nothing accepted and stored is lost."""

from __future__ import annotations

import pytest

from app.agent.turn import Turn
from app.llm.scripted import Step as Answer
from app.llm.scripted import gate, say
from app.messages import TextBlock, UserMessage
from app.session.errors import MessageConflict
from app.session.ownership import this_owner
from tests.support.child import Child, for_ever, mark
from tests.support.gates import Gate
from tests.support.house import House, types
from tests.support.stores import Place, place_of
from tests.support.watching import data_of, taken


def user(text: str) -> UserMessage:
    return UserMessage((TextBlock(text),))


async def test_pending_prompts_survive_the_closing_of_their_agent(place: Place):
    """INB-16: nothing is discarded, and they run when the session is resumed."""
    held = Gate()
    async with House([gate(held)], persistence=place.persistence()).agent() as agent:
        agent.send("one")
        await held.reached.wait()
        second = agent.send("two")
        context = agent.inject("by the way")
        await agent.close()
        assert data_of(agent.session, "inbox/discarded") == []
        assert list(agent.session.state.pending) == [second, context]
    async with House([say("two")], persistence=place.persistence()).resumed() as agent:
        assert (await agent.wait(second)).reason == "completed"
        assert data_of(agent.session, "turn/start")[1]["input"] == [context, second]


async def test_a_message_sent_twice_is_one_message(place: Place):
    """INB-26: the same id and content give the same id and one event, also across a restart."""
    async with House([say("one")], persistence=place.persistence()).agent() as agent:
        assert agent.send("go", id="m1", meta={"n": 1}) == "m1"
        assert agent.send("go", id="m1", meta={"n": 1}) == "m1"
        await agent.wait("m1")
        assert agent.send("go", id="m1", meta={"n": 1}) == "m1"
        await agent.wait_idle()
        accepted = data_of(agent.session, "inbox/accepted")
        assert [data["message"]["id"] for data in accepted] == ["m1"]
    async with House(persistence=place.persistence()).resumed() as agent:
        assert agent.send("go", id="m1", meta={"n": 1}) == "m1"
        await agent.wait_idle()
        assert data_of(agent.session, "inbox/accepted") == accepted
        assert len(data_of(agent.session, "turn/start")) == 1


async def test_an_id_given_again_for_something_else_is_a_conflict(place: Place):
    """INB-27: other content or another placement; the log is unchanged, before and after a restart."""
    async with House([say("one")], persistence=place.persistence()).agent() as agent:
        await agent.wait(agent.send("go", id="m1"))
        log = agent.session.events
        for verb, content, meta in ((agent.send, "stop", None), (agent.steer, "go", None), (agent.send, "go", {})):
            with pytest.raises(MessageConflict):
                verb(content, id="m1", meta=meta)
        assert agent.session.events == log
    async with House(persistence=place.persistence()).resumed() as agent:
        with pytest.raises(MessageConflict):
            agent.inject("go", id="m1")
        assert agent.session.events == log


async def inject_and_wait(kind: str, directory: str) -> None:
    """Run by a child: a context is acknowledged in an idle session."""
    house = House(persistence=place_of(kind, directory).persistence(), owner=this_owner())
    async with house.agent() as agent:
        agent.inject("by the way", id="c1")
        await house.sessions.flush(agent.session)
        mark("acknowledged")
        await for_ever()


async def test_context_survives_a_kill(durable_place: Place):
    """INB-04: injected when idle and flushed, it is in the input of the next turn before the prompt."""
    with Child(f"{__name__}:inject_and_wait", *durable_place.words) as child:
        child.wait_for("acknowledged")
        child.kill()
    house = House([say("one")], persistence=durable_place.persistence())
    async with house.resumed(force=durable_place.force) as agent:
        await agent.wait(agent.send("go", id="m1"))
        assert data_of(agent.session, "turn/start") == [{"turn": 1, "input": ["c1", "m1"]}]
        assert house.adapter.requests[0].messages == (user("by the way"), user("go"))


async def send_and_wait(kind: str, directory: str) -> None:
    """Run by a child: a prompt is acknowledged, and its turn never starts."""
    house = House(persistence=place_of(kind, directory).persistence(), owner=this_owner())

    async def run_turn(turn: Turn) -> None:
        await for_ever()

    house.loop.run_turn = run_turn  # type: ignore[method-assign]
    async with house.agent() as agent:
        agent.send("go", id="m1")
        await house.sessions.flush(agent.session)
        mark("acknowledged")
        await for_ever()


async def test_an_acknowledged_prompt_survives_a_kill_and_runs_once(durable_place: Place):
    """INB-25: killed before its turn starts, it is pending; resumed, it runs; there is one turn in all."""
    with Child(f"{__name__}:send_and_wait", *durable_place.words) as child:
        child.wait_for("acknowledged")
        child.kill()
    house = House([say("one")], persistence=durable_place.persistence())
    async with house.resumed(force=durable_place.force) as agent:
        assert agent.session.closers == ()
        assert list(agent.session.state.pending) == ["m1"]
        assert (await agent.wait("m1")).reason == "completed"
        await agent.wait_idle()
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
            *("chunk*", "assistant/message", "step/end", "turn/end{completed}"),
        ]


async def ask_and_wait(kind: str, directory: str) -> None:
    """Run by a child: the adapter is opened, and never answers."""

    async def opening() -> None:
        mark("asked")
        await for_ever()

    house = House(
        [Answer(say("one"), opening=opening)],
        persistence=place_of(kind, directory).persistence(),
        owner=this_owner(),
    )
    async with house.agent() as agent:
        await agent.wait(agent.send("go", id="m1"))


async def test_a_prompt_whose_turn_was_killed_is_history_and_does_not_run_again(durable_place: Place):
    """INB-31: killed after C1, its turn is `interrupted`; the next turn shows it to the model."""
    with Child(f"{__name__}:ask_and_wait", *durable_place.words) as child:
        child.wait_for("asked")
        child.kill()
    house = House([say("two")], persistence=durable_place.persistence())
    async with house.resumed(force=durable_place.force) as agent:
        assert types(agent.session) == [
            *("inbox/accepted", "turn/start", "user/message", "step/start", "request/header"),
            *("step/end", "turn/end{interrupted}"),
        ]
        assert (await agent.wait("m1")).reason == "interrupted"
        await agent.wait_idle()
        assert house.adapter.requests == []
        await agent.wait(agent.send("again"))
        assert house.adapter.requests[0].messages == (user("go"), user("again"))
        assert taken(agent.session) == [(1, "go", "next_turn"), (2, "again", "next_turn")]
