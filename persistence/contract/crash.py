"""Crash: a process that writes is killed again and again, and each time another goes on from what it left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, ClassVar

from app.session.errors import SessionNotFound
from app.session.persistence import SessionPersistence, StoredLog
from persistence.contract.base import Stores
from persistence.contract.processes import AmongProcesses, Line, OtherProcess
from persistence.contract.samples import Writer, owner
from persistence.contract.telling import Known, draw, send, take

SESSIONS = ("s1", "s2", "s3")


async def write_until_killed(store: SessionPersistence, line: Line, seed: str) -> None:
    """Take three sessions and write them side by side."""

    async def write(session_id: str) -> None:
        lots = random.Random(f"{seed} {session_id}")  # noqa: S311  # a schedule, no secret
        writer = await take(store, line, session_id)
        while True:
            await send(writer, line, draw(writer, lots))
            if lots.random() < 0.1:
                await store.renew(session_id, writer.epoch)
            await asyncio.sleep(0)

    await asyncio.gather(*map(write, SESSIONS))


class CrashContract(AmongProcesses):
    """What was acknowledged outlives its process, to the last bit; what was not is there whole or not at all.

    `kills` is how often, at the same place; `seed` draws when and what.
    """

    kills: ClassVar[int] = 15

    async def test_whoever_is_killed_while_it_writes_leaves_whole_batches_and_all_that_was_acknowledged(
        self, stores: Stores, elsewhere: Callable[..., OtherProcess]
    ) -> None:
        """ST-01 for what a kill leaves: no gaps, and each session can be taken and written to by the next."""
        lots = random.Random(f"crash {self.seed}")  # noqa: S311  # a schedule, no secret
        known = {session_id: Known(session_id) for session_id in SESSIONS}
        wrong: list[str] = []
        kills = 0
        while kills < self.kills and not wrong:
            async with elsewhere(write_until_killed, f"{self.seed} {kills}") as process:
                heard = await hear_stored(process, lots.randint(1, 30))
                await asyncio.sleep(lots.expovariate(1000))  # into the middle of whatever comes then
                process.kill()
                heard += await process.hear_rest()
            kills += 1
            for words in heard:
                wrong += known[words[1]].hear(words)
            store = await stores.open()
            for session_id in SESSIONS:
                wrong += known[session_id].compare(await read(store, session_id))
            await stores.close()
        acknowledged = sum(one.acknowledged for one in known.values())
        self.tally("killed", runs=kills, acknowledged=acknowledged, violations=len(wrong))
        assert wrong == [], "\n".join(wrong)

        store = await stores.open()
        for one in known.values():
            epoch, log = await store.acquire(one.session_id, owner(), force=True)
            assert one.claimed(epoch.number) == []
            last = Writer(store, one.header, epoch, log.head, list(log.events))
            one.stored(await last.write(3))
            assert one.compare(await read(store, one.session_id)) == []


async def hear_stored(process: OtherProcess, count: int) -> list[tuple[Any, ...]]:
    """What a process tells until that many batches were acknowledged to it, or it has ended."""
    heard: list[tuple[Any, ...]] = []
    while count and (words := await process.hear()) is not None:
        heard.append(words)
        count -= words[0] == "stored"
    return heard


async def read(store: SessionPersistence, session_id: str) -> StoredLog | None:
    """The log; None if there is none."""
    try:
        return await store.read(session_id)
    except SessionNotFound:
        return None
