"""Ended by the kernel in the middle of the store's own writes, at any byte: inside a page, inside a record.

A file that may grow no further is given what still fits, and then the process gets SIGXFSZ, which ends it as SIGKILL
does: without another instruction. No timing is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from app.session.errors import SessionNotFound
from tests.crash.child import LEDGER, Part
from tests.crash.killing import Process, held
from tests.crash.recovering import recover, recovering_house
from tests.support.stores import KINDS, Kind, Place

IN_FILES = [kind for kind in KINDS if kind.name in ("sqlite", "jsonl")]
FOLDS_WHEN_CLOSED = [kind for kind in KINDS if kind.name == "sqlite"]  # the write-ahead log, into the database

# Where a new store is cut, before anything is acknowledged: the schema of a database, or the first batch of a session.
MAKING = {"sqlite": range(1, 32_000, 1009), "jsonl": range(300, 690, 13)}
# From one cut to the next, in bytes. None divides a page, so that the cuts fall everywhere in one.
WRITING = {"sqlite": 2053, "jsonl": 199}
CLOSING = 499


@pytest.mark.parametrize("kind", IN_FILES, ids=lambda kind: kind.name)
async def test_a_store_whose_making_was_cut_short_can_be_made(kind: Kind, new_place: Callable[[Kind], Place]):
    """E2E-12: at any byte of a new store; nothing was acknowledged, and the next process can use the place."""
    cuts = 0
    for place in cut_short(kind, new_place, "opening", MAKING[kind.name]):
        cuts += 1
        with pytest.raises(SessionNotFound):
            await recover(place)
        house = recovering_house(place)
        async with house.agent("s") as agent:
            assert (await agent.wait(agent.send("go"))).reason == "completed"
    assert cuts > 25


@pytest.mark.parametrize("kind", IN_FILES, ids=lambda kind: kind.name)
async def test_a_write_that_was_cut_short_leaves_the_batches_before_it(kind: Kind, new_place: Callable[[Kind], Place]):
    """E2E-12: in the second of two turns, at any byte of what is written."""
    limits = count(max(sizes_at(new_place(kind), "prompt 2")) + 1, WRITING[kind.name])
    seen = [len((await recover(place)).stored) for place in cut_short(kind, new_place, "prompt 2", limits)]
    assert len(seen) > 20
    assert seen == sorted(seen), "a later cut never leaves less"
    assert len(set(seen)) > 4, "they fell into several batches"


@pytest.mark.parametrize("kind", FOLDS_WHEN_CLOSED, ids=lambda kind: kind.name)
async def test_a_session_whose_store_was_cut_short_while_closing_is_whole(
    kind: Kind, new_place: Callable[[Kind], Place]
):
    """E2E-12: both turns had ended and were flushed; there is nothing to close."""
    smallest = min(sizes_at(new_place(kind), "closing"))
    cuts = 0
    for place in cut_short(kind, new_place, "closing", count(smallest + 1, CLOSING)):
        cuts += 1
        recovered = await recover(place)
        assert recovered.closers == ()
        assert recovered.turns == [3]
    assert cuts > 10


def sizes_at(place: Place, moment: str) -> list[int]:
    """How large the files of the store are when the story has come that far."""
    with held(place, moment, "long"):
        return [path.stat().st_size for path in place.directory.rglob("*") if path.is_file() and path.name != LEDGER]


def cut_short(
    kind: Kind, new_place: Callable[[Kind], Place], moment: str, limits: Iterator[int] | range
) -> Iterator[Place]:
    """For each limit a place whose child it ended, as long as there are limits that end one."""
    for limit in limits:
        place = new_place(kind)
        with Process(Part("tell", place.words, "long", limit_from=moment, limit=limit)) as child:
            if not child.is_cut():
                return
        yield place
