"""Killed at every point of every write, from the making of the store to the release of the session."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from app.session.errors import SessionNotFound
from tests.crash import ledger
from tests.crash.child import LEDGER, Part
from tests.crash.killing import Process
from tests.crash.recovering import Recovered, check_nothing_happened, recover
from tests.support import counting
from tests.support.stores import Kind, Place

SHARES = 4
# At least: a batch is many statements, or one write and one sync, or one message.
POINTS = {"sqlite": 100, "jsonl": 60, "postgres": 90}


@pytest.mark.parametrize("share", range(SHARES))
async def test_whatever_was_acknowledged_survives_a_kill_at_any_write_point(
    durable_place: Place, new_place: Callable[[Kind], Place], share: int
):
    """E2E-12: a point is the start and the end of each call to the store, and each step of what it does inside.

    `recover` compares what is left with what the child had been told is stored, with what its live log had been, with
    what its bodies did, and with what its adapter was given.
    """
    seen: list[int] = []
    acknowledged = 0
    for point in count(1 + share, SHARES):
        place = new_place(durable_place.kind)
        with Process(Part("tell", place.words, "long", f"point {point}")) as child:
            if not child.is_held():
                break
            child.kill()
        acknowledged += ledger.acknowledged(ledger.read(place.directory / LEDGER))
        try:
            recovered = await recover(place)
        except SessionNotFound:
            await check_nothing_happened(place)
            seen.append(0)
        else:
            check_steps(recovered)
            seen.append(len(recovered.stored))
    name = f"killed at each write, {durable_place.kind.name}"
    counting.count(name, runs=len(seen), acknowledged=acknowledged)
    assert len(seen) >= POINTS[durable_place.kind.name] / SHARES
    assert seen == sorted(seen), "a later point never finds less"
    assert seen[0] == 0
    assert seen[-1] > 40, "the last ones find both turns"


def check_steps(recovered: Recovered) -> None:
    """No step has ended without a result for each of its calls."""
    called: list[str] = []
    for event in recovered.stored:
        if event.type == "assistant/message":
            called = [block["id"] for block in event.data["content"] if block["type"] == "tool_call"]
        elif event.type == "tool/result":
            called.remove(event.data["call_id"])
        elif event.type == "step/end":
            assert called == []
