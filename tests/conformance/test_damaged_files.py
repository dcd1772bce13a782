"""A SQLite file whose bytes were changed behind the store's back: told, never loaded as something else."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.session.errors import PersistenceError
from app.session.record import SessionEvent
from persistence.sqlite import SqlitePersistence
from tests.support.house import House
from tests.support.logs import random_walk
from tests.support.recording import EXTENSIONS

FLIPS = 300


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[House]:
    house = House(persistence=SqlitePersistence(path), extensions=EXTENSIONS)
    async with house.opened():
        yield house


async def test_one_flipped_bit_is_told_or_changes_nothing(tmp_path: Path):
    """DIG-01: what loads equals what was stored, or opening or loading refuses."""
    path = tmp_path / "sessions.db"
    async with opened(path) as house:
        session = await house.sessions.create("s")
        for event in random_walk(617, 70).events:
            session.append(event)
            await house.sessions.flush(session)
        await house.sessions.release(session)
    whole, chance = path.read_bytes(), random.Random(1)
    outcomes: dict[str, int] = {}
    for n in range(FLIPS):
        position, bit = chance.randrange(len(whole)), chance.randrange(8)
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        copy = tmp_path / f"{n}" / "sessions.db"
        copy.parent.mkdir()
        copy.write_bytes(flipped)
        outcome = await load(copy, session.header.text, session.events)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(copy.parent)
    assert outcomes["equal"] > FLIPS / 10
    assert outcomes["CORRUPT_LOG"] > FLIPS / 10


async def load(path: Path, header_text: str, events: tuple[SessionEvent, ...]) -> str:
    """How it went; fails if it loaded something else."""
    try:
        async with opened(path) as house:
            session = await house.sessions.resume("s", force=True)
            assert session.header.text == header_text
            assert session.events[: len(events)] == events
            assert session.closers == session.events[len(events) :]
    except PersistenceError as refused:
        return refused.code
    return "equal"
