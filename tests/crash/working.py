"""A worker among others that want the same sessions: it takes one, works on it, and writes down what it was told."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import random
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from app.agent.agent import Agent
from app.llm.script import Parts
from app.llm.scripted import Step, call, say
from app.llm.types import LlmRequest
from app.session.batch import Batch, Header
from app.session.drain import DrainLimits
from app.session.errors import LOST_ERRORS, SessionError, SessionHeld, SessionNotFound
from app.session.ownership import Epoch, Owner, this_owner
from app.session.persistence import Repair, SessionPersistence, StoredLog
from app.tools.schema import tool
from app.tools.types import ToolExecution
from persistence import rules
from tests.crash.ledger import Ledger
from tests.support.faults import FaultyPersistence
from tests.support.house import House
from tests.support.stores import place_of

LEASE_S = 0.6


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is to do. `ignores_epochs`: its store asks no claim whether it still stands (jsonl's only)."""

    name: str
    seed: int
    place: tuple[str, str]
    sessions: tuple[str, ...]
    ignores_epochs: bool = False

    @property
    def journal(self) -> Path:
        return Path(self.place[1]) / f"journal of {self.name}"


class JournalledPersistence(FaultyPersistence):
    """The real store. Noted are `sent`, `acknowledged` and `refused` for each batch, and `claimed`; what was sent and
    has neither of the others is of unknown outcome.
    """

    def __init__(self, inner: SessionPersistence, journal: Ledger) -> None:
        super().__init__(inner)
        self._journal = journal

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        digest = batch.digest.hex()
        self._journal.note("sent", session=header.id, digest=digest)
        try:
            await super().append(header, batch, epoch)
        except LOST_ERRORS as refusal:
            self._journal.note("refused", session=header.id, digest=digest, code=refusal.code)
            raise
        self._note_stored(header.id, batch, epoch)

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        known = len(self.written)
        epoch, log = await super().acquire(session_id, owner, force=force, repair=repair)
        claim = {"epoch": epoch.number, "token": epoch.token, "seq": log.next_seq, "head": log.head.hex()}
        self._journal.note("claimed", session=session_id, **claim)
        for batch in self.written[known:]:
            self._note_stored(session_id, batch, epoch)
        return epoch, log

    def _note_stored(self, session_id: str, batch: Batch, epoch: Epoch) -> None:
        claim = {"epoch": epoch.number, "token": epoch.token, "seq": batch.first_seq, "head": batch.previous.hex()}
        digest = batch.digest.hex()
        lines = [event.line for event in batch.events]
        self._journal.note("acknowledged", session=session_id, **claim, digest=digest, lines=lines)


class Worker:
    """Lives many short lives, as a service process does that is started again and again."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lots = random.Random(f"{work.name} {work.seed}")
        self._journal = Ledger(work.journal)

    async def live(self) -> None:
        """Take a session, do a few things with it, and stop in good order; earlier when it is lost."""
        house = self._house()
        try:
            async with house.opened():
                agent = await self._take(house, self._lots.choice(self._work.sessions))
                for _ in range(self._lots.randint(1, 6)):
                    await self._do_something(house, agent)
        except SessionError:  # ends this life; what matters is what it leaves behind
            return

    async def finish(self, session_id: str) -> StoredLog | None:
        """Take a session whoever has it, and work until nothing is owed. Returns its log, None if it was never stored.

        Nothing may fail.
        """
        house = self._house()
        async with house.opened():
            try:
                agent = await house.agents.resume(session_id, force=True)
            except SessionNotFound:
                return None
            await agent.wait_idle()
            await agent.close()
            return await house.persistence.read(session_id)

    def _house(self) -> House:
        lots = self._lots
        return House(
            [Step(self._answer, repeat=True)],
            [tool(self.act), tool(self.look, effects="read_only", parallel_safe=True)],
            JournalledPersistence(place_of(*self._work.place).persistence(), self._journal),
            this_owner(self._work.name, LEASE_S),
            clock=lambda: time.time_ns() // 1_000_000,
            drain_limits=DrainLimits(
                max_batch_events=lots.choice([2, 5_000]),
                write_behind_ms=lots.choice([None, 20]),
                flush_timeout_ms=5_000,
            ),
            lease_margin_s=LEASE_S / 3,
        )

    def _answer(self, request: LlmRequest) -> Parts:
        lots = self._lots
        calls = [call(lots.choice(["act", "look"]), id=f"c{lots.getrandbits(60):x}") for _ in range(lots.randint(0, 2))]
        return say("word " * lots.randint(1, 3), chunks=2), *calls

    async def act(self, execution: ToolExecution) -> str:
        """Change the world."""
        assert execution.session is not None
        details = {"session": execution.session.id, "call_id": execution.call_id}
        self._journal.note("entered", **details)
        await asyncio.sleep(self._lots.expovariate(200))
        self._journal.note("acted", **details)
        return "done"

    async def look(self, execution: ToolExecution) -> str:
        """Look at the world."""
        return await self.act(execution)

    async def _take(self, house: House, session_id: str) -> Agent:
        for _ in range(3):
            try:
                return await house.agents.resume(session_id, force=self._lots.random() < 0.4)
            except SessionHeld as held:
                await asyncio.sleep(max(held.seconds_left or 0, 0) + 0.001)
            except SessionNotFound:
                return await house.agents.create(session_id)
        return await house.agents.resume(session_id, force=True)

    async def _do_something(self, house: House, agent: Agent) -> None:
        lots = self._lots
        match lots.choices(["send", "steer", "inject", "cancel", "think", "wait"], [5, 2, 1, 0.5, 3, 3])[0]:
            case "cancel":
                agent.cancel()
            case "think":
                await asyncio.sleep(lots.expovariate(20))
            case "wait":
                await agent.wait_idle()
            case verb:
                message_id = getattr(agent, verb)("please", id=f"m{lots.getrandbits(60):x}")
                if lots.random() < 0.7:
                    await house.sessions.flush(agent.session)
                    self._journal.note("promised", session=agent.session.id, message_id=message_id)


def main(work: Work) -> None:
    """Live one life after the other until the parent ends this process, or has ended itself."""
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)  # of what goes wrong here on purpose
    if work.ignores_epochs:
        rules.check_claim = lambda found, session_id, epoch: rules.present(found, session_id)
    parent, worker = multiprocessing.parent_process(), Worker(work)
    assert parent is not None
    try:
        while parent.is_alive():
            asyncio.run(worker.live())
    except BaseException:  # whatever it was, the journal is what the parent reads
        Ledger(work.journal).note("failed", error=traceback.format_exc())
        sys.exit(1)
