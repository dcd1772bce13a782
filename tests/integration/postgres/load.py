"""Sessions that write while a server suffers, each asking until it is answered, and what their logs must hold then."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Self

from app.session import events as ev
from app.session.batch import Batch
from app.session.drain import DrainLimits
from app.session.errors import FlushTimeout, PersistenceError, PersistenceUnavailable, SessionFenced
from app.session.identifiers import new_id
from app.session.ownership import Owner
from app.session.session import Session
from app.session.store import SessionStore
from app.session.verification import verify
from persistence.contract.samples import message
from persistence.postgres import PostgresPersistence
from tests.support.counting import SEED, count

ANSWERED, REFUSED = "answered", "refused"
SESSIONS = 20


class Load:
    """Inside, sessions write through the store, and who owned them before goes on as if it had not been told.

    That one's batches fit, so its epoch alone keeps them out. Entered again it is over new sessions, since each append
    takes longer as a log grows. `chance` draws by SEED. `told` counts what came back: flushes ANSWERED, batches
    REFUSED, and the reasons for which an outcome is unknown. `wrong` says what may not happen.
    """

    def __init__(self, store: PostgresPersistence) -> None:
        self.chance = random.Random(SEED)
        self.told = Counter[str]()
        self.wrong: list[str] = []
        self.acknowledged = 0
        self._store = store
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._over = False
        limits = DrainLimits(write_behind_ms=None)
        before, self._sessions = (SessionStore(self._store, Owner(by), drain_limits=limits) for by in ("anna", "berta"))
        old = [await before.create() for _ in range(SESSIONS)]
        for session in old:
            self._append(session)
            await before.flush(session)
        self._live = [await self._sessions.resume(session.id, force=True) for session in old]
        works = [self._write(session) for session in self._live] + [self._intrude(old)]
        self._working = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, failure: object, *_: object) -> None:
        self._over = True
        for task in self._working:
            if failure is not None:  # then the server may be gone, and an answer would be waited for in vain
                task.cancel()
        await asyncio.gather(*self._working, return_exceptions=failure is not None)

    async def until(self, more: int, what: str = ANSWERED) -> None:
        """Return when that was told so many times more, or when something went wrong."""
        goal = self.told[what] + more
        async with self._changed:
            await self._changed.wait_for(lambda: self.wrong or self.told[what] >= goal)

    async def check(self, dsn: str) -> None:
        """Compare what the server there holds with what was written by those who were inside last."""
        store = PostgresPersistence(dsn)
        await store.open()
        for session in self._live:
            self.acknowledged += session.durable
            try:
                stored = await store.read(session.id)
                verify(stored, self._sessions.extensions)
            except PersistenceError as error:
                self.wrong.append(str(error))
                continue
            if [event.line for event in stored.events] != [event.line for event in session.events]:
                self.wrong.append(f"{session!r} has another log than its {stored.next_seq} stored events")
        await store.close()

    def conclude(self, layer: str, runs: int) -> None:
        """Add a line to the figures. Fails if anything was wrong, or nothing much happened."""
        count(layer, runs=runs, acknowledged=self.acknowledged, violations=len(self.wrong), seeds=str(SEED))
        assert not self.wrong, "\n".join(self.wrong)
        assert min(self.told[ANSWERED], self.told[REFUSED]) > 0

    # ---------------------------------------------------------------------------------------- inside

    def _append(self, session: Session) -> None:
        for _ in range(self.chance.randint(1, 3)):
            text = self.chance.randbytes(self.chance.choice((5, 5, 5, 50, 2500))).hex()
            session.append(ev.InboxAccepted({"id": new_id(), "content": text}, "context"))

    async def _write(self, session: Session) -> None:
        while not self._over or session.durable < len(session):
            if session.durable == len(session):
                self._append(session)
            try:
                await self._sessions.flush(session)
            except PersistenceUnavailable as error:
                await self._tell(error.reason)
            except FlushTimeout:
                await self._tell("no answer")
            except PersistenceError as error:  # nobody else may write to it, so no refusal is right
                self.wrong.append(str(error))
                await self._tell(error.code)
                break
            else:
                await self._tell(ANSWERED)

    async def _intrude(self, old: list[Session]) -> None:
        while not self._over:
            session = self.chance.choice(old)
            try:
                log = await self._store.read(session.id)
                batch = Batch((message(log.next_seq, REFUSED),), log.head, "caller")
                await self._store.append(session.header, batch, session.epoch)
            except SessionFenced:
                await self._tell(REFUSED)
            except PersistenceUnavailable:
                pass  # it does not ask again: whatever became of it, it is in no log
            else:
                self.wrong.append(f"{session!r} was written to with an epoch of the past")
                return

    async def _tell(self, what: str) -> None:
        self.told[what] += 1
        async with self._changed:
            self._changed.notify_all()
