"""The guard that keeps a model from causing an effect twice which it planned once."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.llm.scripted import call, say
from app.middleware import Named
from app.session.errors import ConfigurationError
from app.session.persistence import SessionPersistence
from app.session.session import Session
from app.tools.schema import tool
from app.tools.types import Effects, Guard
from containers.application import build
from containers.settings import load_settings
from persistence.memory import MemoryPersistence
from persistence.sqlite import SqlitePersistence
from policy.guard import REPEAT_UNKNOWN, refuse_repeat_of_unknown
from tests.support.house import House
from tests.support.interrupted import Open, leave
from tests.support.watching import data_of

GUARD: Named[Guard] = Named(REPEAT_UNKNOWN, refuse_repeat_of_unknown)
PAY = '{"to": "Ada", "sum": 5}'


def house(
    store: SessionPersistence, effects: Effects, *arguments: str, guarded: bool = True
) -> tuple[House, list[str]]:
    """A house whose model plans a payment for each of these arguments; and who was paid, as it happens."""
    paid: list[str] = []

    @tool(effects=effects)
    async def pay(to: str, sum: float) -> str:
        paid.append(to)
        return "paid"

    calls = [call("pay", text, id=f"again-{number}") for number, text in enumerate(arguments)]
    return House([calls, say("done")], [pay], store, guards=[GUARD] * guarded), paid


async def prompt(made: House) -> Session:
    async with made.resumed(force=True) as agent:
        assert (await agent.wait(agent.send("pay Ada"))).reason == "completed"
        return agent.session


async def test_a_payment_of_unknown_outcome_is_not_made_again_after_a_crash(tmp_path: Path):
    """KEY-03: the same call, written in another way, in another life of the session; the model is told what to do."""
    place = tmp_path / "sessions.db"
    await leave(SqlitePersistence(place), Open("c1", "pay", "side_effect", PAY))
    made, paid = house(SqlitePersistence(place), "side_effect", '{"sum": 5.0, "to": "Ada"}', '{"to": "Bob", "sum": 5}')
    session = await prompt(made)
    assert paid == ["Bob"]
    assert [(data["call_id"], data.get("error")) for data in data_of(session, "tool/result")[1:]] == [
        (
            "again-0",
            {
                "code": "DENIED",
                "message": "an equal call, c1, was started before and may have taken effect (TOOL_OUTCOME_UNKNOWN), so "
                "this one was not run. Verify the state by other means, and ask the user what to do if the effect is "
                "missing",
            },
        ),
        ("again-1", None),
    ]


async def test_a_payment_that_never_started_may_be_made():
    store = MemoryPersistence()
    await leave(store, Open("c1", "pay", None, PAY))
    made, paid = house(store, "side_effect", PAY)
    await prompt(made)
    assert paid == ["Ada"]


@pytest.mark.parametrize("effects", ["idempotent", "read_only"])
async def test_what_may_be_repeated_is_repeated(effects: Effects):
    """By what the tool declares now, even if it was recorded as something worse."""
    store = MemoryPersistence()
    await leave(store, Open("c1", "pay", "side_effect", PAY))
    made, paid = house(store, effects, PAY)
    await prompt(made)
    assert paid == ["Ada"]


async def test_without_the_guard_the_model_may_do_as_it_likes():
    store = MemoryPersistence()
    await leave(store, Open("c1", "pay", "side_effect", PAY))
    made, paid = house(store, "side_effect", PAY, guarded=False)
    await prompt(made)
    assert paid == ["Ada"]


async def test_a_refusal_does_not_count_as_a_call_of_unknown_effect():
    """What is cited is the call that ran, however often the model plans it again."""
    store = MemoryPersistence()
    await leave(store, Open("c1", "pay", "side_effect", PAY))
    made, paid = house(store, "side_effect", PAY, PAY)
    session = await prompt(made)
    messages = [data["error"]["message"] for data in data_of(session, "tool/result")[1:]]
    assert (paid, ["c1" in message for message in messages]) == ([], [True, True])


def guards(**settings: object) -> list[Named[Guard]]:
    return list(build(load_settings("test", **settings)).tools.guards)


def test_the_setting_puts_it_into_the_list_of_guards():
    assert guards() == []
    assert guards(repeat_unknown="refuse") == [GUARD]
    mine = {"extra": {"mine": "tests.unit.containers.things:guard"}}
    assert [one.name for one in guards(repeat_unknown="refuse", guards=mine)] == [REPEAT_UNKNOWN, "mine"]
    ordered = {**mine, "order": ["mine", REPEAT_UNKNOWN]}
    assert [one.name for one in guards(repeat_unknown="refuse", guards=ordered)] == ["mine", REPEAT_UNKNOWN]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"repeat_unknown": "refuse", "guards": {"order": []}},
            "'repeat_unknown' is missing, and repeat_unknown = refuse needs it here; known names: repeat_unknown",
        ),
        (
            {"guards": {"order": ["repeat_unknown"]}},
            "no guard is named 'repeat_unknown'; known names: none",
        ),
    ],
)
def test_a_list_of_guards_that_does_not_keep_what_the_setting_says_is_refused(settings: dict[str, object], told: str):
    """ORD-01: whichever of the two is wrong."""
    with pytest.raises(ConfigurationError) as caught:
        guards(**settings)
    assert str(caught.value) == f"guards.order (argument): {told}"
