"""Requests made again from the log, where something comes between the parts that they are made of."""

from dataclasses import replace

import pytest

from app.agent.requests import rebuild_requests
from app.llm.scripted import say
from app.llm.types import LlmRequest
from tests.support.house import House
from tests.support.watching import at


def bare(request: LlmRequest) -> LlmRequest:
    """Without what belongs to the process that made it."""
    return replace(request, session=None, signal=None)


@pytest.mark.parametrize("place", ["step/start", "request/header", "assistant/chunk", "step/end"])
async def test_what_is_accepted_inside_a_step_changes_nothing_about_its_request(place: str):
    """LOOP-16: also between `step/start` and a header that says something new; it joins a later request."""
    house = House([say("one"), say("two"), say("three")])
    async with house.agent() as agent:
        await agent.wait(agent.send("first"))
        agent.config = replace(agent.config, name="other")
        at(agent.session, place, lambda: agent.inject("by the way"))
        await agent.wait(agent.send("second"))
        await agent.wait(agent.send("third"))
        assert [bare(request) for request in house.adapter.requests] == [
            *rebuild_requests("s", agent.session.events),
        ]
