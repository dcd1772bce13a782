"""What becomes of every message in random runs: sent, steered, injected, dropped and cancelled at random places."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from app.agent.agent import Agent
from app.llm.scripted import Step as Answer
from app.llm.scripted import call, fail, say
from app.llm.types import LlmRequest
from app.messages import Finish
from app.session.session import Session
from app.tools.schema import tool
from tests.support.asked import Asked
from tests.support.house import House
from tests.support.virtual_time import virtual_time
from tests.support.watching import is_balanced

ACTS = 25


@tool(parallel_safe=True)
async def act() -> str:
    return "done"


def fates(session: Session) -> dict[str, str]:
    """Every accepted message: pending, taken or discarded. Fails where one changes its fate a second time."""
    found: dict[str, str] = {}
    for event in session.events:
        data = event.data
        match event.type:
            case "inbox/accepted":
                assert data["message"]["id"] not in found
                found[data["message"]["id"]] = "pending"
            case "user/message":
                assert found[data["message"]["id"]] == "pending"
                found[data["message"]["id"]] = "taken"
            case "inbox/discarded":
                assert {found[message_id] for message_id in data["ids"]} == {"pending"}
                found |= dict.fromkeys(data["ids"], "discarded")
    return found


class Restless:
    """An observer that at random events does something with the inbox, a limited number of times."""

    def __init__(self, agent: Agent, random: Random) -> None:
        self._agent = agent
        self._random = random
        self._left = ACTS
        agent.session.observe(lambda told: self._act())

    def _act(self) -> None:
        if self._left == 0 or self._random.random() < 0.6:
            return
        self._left -= 1
        agent, pending = self._agent, sorted(self._agent.session.state.pending)
        match self._random.randrange(8):
            case 0 | 1:
                agent.send("a prompt", id=f"m{self._left}")
            case 2 | 3:
                agent.steer("steering", id=f"m{self._left}")
            case 4 | 5:
                agent.inject("context", id=f"m{self._left}")
            case 6:
                agent.cancel(keep_inbox=self._random.random() < 0.5)
            case _ if pending:
                agent.discard(self._random.sample(pending, self._random.randint(1, len(pending))))


@pytest.mark.parametrize("seed", range(40))
@virtual_time
async def test_every_message_is_pending_or_taken_once_or_discarded_once(seed: int):
    """INB-15: never two of these, whatever the run; and the live inbox is what the fold says is pending."""
    random = Random(seed)

    def answer(request: LlmRequest) -> list[Any]:
        answers = [say("well", chunks=3)], [call("act", {}), call("act", {})], [fail("SERVER")], [Finish("max_tokens")]
        return list(random.choice(answers))

    house = House([Answer(answer, repeat=True)], [act], retry=Asked(retries=1))
    async with house.agent() as agent:
        Restless(agent, random)
        for number in range(6):
            agent.send("go", id=f"p{number}")
            await agent.wait_idle()
        found = fates(agent.session)
        assert {name for name, fate in found.items() if fate == "pending"} == set(agent.session.state.pending)
        assert all(entry.placement == "context" for entry in agent.session.state.pending.values())
        assert set(found) >= {f"p{number}" for number in range(6)}
        assert is_balanced(agent.session)
