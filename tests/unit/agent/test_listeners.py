"""The two shipped listeners: what a session has used so far, and what it is called."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.listeners import LONGEST_TITLE, SESSION_TITLE, USAGE_TOTAL, SessionTitle, TokenUsage, make_title
from app.agent.step import Step
from app.cancel import CancelSignal
from app.llm.scripted import call, cut, say
from app.messages import Usage
from app.middleware import Named
from app.session.errors import IllegalEvent
from app.session.session import Session
from persistence.memory import MemoryPersistence
from tests.support.house import House, types
from tests.support.watching import data_of


def house(persistence: MemoryPersistence, *steps: Any) -> House:
    """Both listeners, `usage` above the checkpoint and `title` below."""

    def look() -> str:
        return "seen"

    return House(
        steps,
        [look],
        persistence,
        listeners_above=[Named("usage", TokenUsage())],
        listeners_below=[Named("title", SessionTitle())],
        extensions=[USAGE_TOTAL, SESSION_TITLE],
    )


async def prompt(house: House, *prompts: Any, resume: bool = False) -> Session:
    """The session after a turn for each prompt."""
    async with house.resumed() if resume else house.agent() as agent:
        for content in prompts:
            agent.send(content)
            await agent.wait_idle()
        return agent.session


def answered(used: dict[str, Any], text: str = "yes") -> list[Any]:
    return [say(text), Usage(used)]


def totals(session: Session) -> list[dict[str, Any]]:
    return data_of(session, "usage/total")


def titles(session: Session) -> list[str]:
    return [data["title"] for data in data_of(session, "session/title")]


# ------------------------------------------------------------------------------------------------ usage


async def test_after_each_step_the_sums_so_far_are_recorded_by_the_names_of_the_vendor() -> None:
    steps = [
        [call("look", id="c1"), Usage({"input_tokens": 10, "output_tokens": 1, "details": {"cached": 9}, "cost": 0.5})],
        answered({"input_tokens": 20, "output_tokens": 2, "reasoning_tokens": 3, "is_cached": True}),
    ]
    session = await prompt(house(MemoryPersistence(), *steps), "go")
    assert totals(session) == [
        {"input_tokens": 10, "output_tokens": 1},
        {"input_tokens": 30, "output_tokens": 3, "reasoning_tokens": 3},
    ]
    assert types(session)[5:] == [
        *["chunk*", "assistant/message", "tool/call", "tool/result", "usage/total", "session/title", "step/end"],
        *["step/start", "chunk*", "assistant/message", "usage/total", "step/end", "turn/end{completed}"],
    ]
    assert [event.ignorable for event in session.events if event.type in ("usage/total", "session/title")] == [True] * 3


async def test_a_step_that_brought_no_counts_records_no_sum() -> None:
    steps = [answered({"input_tokens": 1}), say("without"), answered({"input_tokens": 2})]
    session = await prompt(house(MemoryPersistence(), *steps), "one", "two", "three")
    assert totals(session) == [{"input_tokens": 1}, {"input_tokens": 3}]


async def test_the_sums_go_on_where_they_stood_when_a_session_is_resumed() -> None:
    persistence = MemoryPersistence()
    await prompt(house(persistence, answered({"in": 1}), answered({"in": 2})), "one", "two")
    session = await prompt(house(persistence, answered({"in": 3}), answered({"in": 4})), "three", "four", resume=True)
    assert totals(session) == [{"in": 1}, {"in": 3}, {"in": 6}, {"in": 10}]


async def test_a_message_whose_sum_was_never_recorded_is_counted_by_the_next_one() -> None:
    persistence = MemoryPersistence()
    await prompt(House([answered({"in": 1})], persistence=persistence), "without listeners")
    session = await prompt(house(persistence, answered({"in": 2})), "with them", resume=True)
    assert totals(session) == [{"in": 3}]


async def test_what_a_failed_request_reported_is_not_counted() -> None:
    steps = [[say("ye"), Usage({"in": 100}), cut()], answered({"in": 1})]
    session = await prompt(house(MemoryPersistence(), *steps), "go")
    assert (types(session).count("llm/retry"), totals(session)) == (1, [{"in": 1}])


async def test_two_sessions_of_one_listener_have_their_own_sums() -> None:
    shared = house(MemoryPersistence(), *(answered({"in": number}) for number in (1, 10, 2, 20)))
    async with shared.opened():
        agents = [await shared.agents.create(name) for name in ("a", "b")]
        for _ in range(2):
            for agent in agents:
                agent.send("go")
                await agent.wait_idle()
        assert [totals(agent.session) for agent in agents] == [[{"in": 1}, {"in": 3}], [{"in": 10}, {"in": 30}]]


async def test_a_sum_that_could_not_be_recorded_is_not_counted_twice_later() -> None:
    usage = TokenUsage()
    plain = House([answered({"in": 1}), answered({"in": 2})], extensions=[USAGE_TOTAL])
    async with plain.agent() as agent:
        step = Step(agent.session, 1, 1, CancelSignal(), agent.accept, usage.appends)
        for prompt, may_append in (("one", [True]), ("two", [False, True])):
            agent.send(prompt)
            await agent.wait_idle()
            for may in may_append:
                with nullcontext() if may else pytest.raises(IllegalEvent):
                    await usage(step if may else replace(step, appends=()))
        assert totals(agent.session) == [{"in": 1}, {"in": 3}]


async def test_a_step_looks_only_at_the_events_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat in the length of the log: what is looked at is counted, not timed."""
    looked_at: list[int] = []
    events_from = Session.events_from

    def counted(session: Session, seq: int, before: int | None = None) -> Any:
        found = events_from(session, seq, before)
        looked_at.append(len(found))
        return found

    turns = 20
    several = house(MemoryPersistence(), *(answered({"in": 1}) for _ in range(turns)))
    per_turn = []
    async with several.agent() as agent:
        for _ in range(turns):
            with monkeypatch.context() as patched:
                patched.setattr(Session, "events_from", counted)
                agent.send("go")
                await agent.wait_idle()
            per_turn.append(sum(looked_at))
            looked_at.clear()
    assert len(set(per_turn[2:])) == 1


# ------------------------------------------------------------------------------------------------ title


async def test_a_session_is_called_by_its_first_message_once() -> None:
    session = await prompt(house(MemoryPersistence(), say("1"), say("2")), "First prompt\nwith more", "Second prompt")
    assert titles(session) == ["First prompt"]


async def test_a_session_that_is_resumed_is_not_called_anything_else() -> None:
    persistence = MemoryPersistence()
    await prompt(house(persistence, say("1")), "First")
    assert titles(await prompt(house(persistence, say("2")), "Second", resume=True)) == ["First"]


async def test_a_session_whose_first_turn_failed_gets_its_title_from_that_turn_later() -> None:
    persistence = MemoryPersistence()
    first = await prompt(house(persistence), "First")  # the script has no answer
    assert (titles(first), types(first)[-1]) == ([], "turn/end{error UNKNOWN}")
    assert titles(await prompt(house(persistence, say("2")), "Second", resume=True)) == ["First"]


async def test_the_texts_of_all_blocks_are_looked_at_and_other_blocks_are_not() -> None:
    content = [{"type": "image", "data": "First"}, {"type": "text", "text": " \n"}, {"type": "text", "text": "Look"}]
    assert titles(await prompt(house(MemoryPersistence(), say("1")), content)) == ["Look"]


async def test_a_first_message_without_text_leaves_the_session_without_a_title() -> None:
    session = await prompt(house(MemoryPersistence(), say("1"), say("2")), [{"type": "image", "data": "x"}], "Second")
    assert titles(session) == []


async def test_once_a_session_has_its_title_its_log_is_not_looked_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    title = SessionTitle()
    async with House([say("1")], listeners_above=[Named("title", title)], extensions=[SESSION_TITLE]).agent() as agent:
        agent.send("First")
        await agent.wait_idle()
        monkeypatch.setattr(Session, "events", property(lambda _: pytest.fail("looked through")))
        await title(Step(agent.session, 1, 1, CancelSignal(), agent.accept, title.appends))
        monkeypatch.undo()
        assert titles(agent.session) == ["First"]


LONG = "word " * 11 + "and words"  # 64 characters


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", ""),
        (" \n\t\n", ""),
        ("\n  Hello   there \r\nmore", "Hello there"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        (LONG, "word " * 11 + "and…"),
        ("word " * 11 + "words more", "word " * 10 + "word…"),
        ("word " * 11 + "four more", "word " * 11 + "four…"),
    ],
)
def test_a_title_is_one_line_cut_after_a_word(text: str, title: str) -> None:
    assert make_title(text) == title


@given(st.text(max_size=200))
def test_every_text_makes_a_title_of_one_short_line(text: str) -> None:
    title = make_title(text)
    assert len(title) <= LONGEST_TITLE
    assert title.splitlines() == ([title] if title else [])
    assert title.removesuffix("…") in " ".join(text.split())
