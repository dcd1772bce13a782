"""Taking a stored session over: claim, read, verify and close in one transaction, or two with `reconcile` between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.session import events as ev
from app.session.batch import Batch, Header
from app.session.grammar import advance
from app.session.lease import Lease
from app.session.log_state import LogState
from app.session.ownership import Epoch, Owner
from app.session.persistence import SessionPersistence, StoredLog
from app.session.record import SessionEvent, parse
from app.session.recovery import Reconciled, RecordedCall, as_records, closing_events
from app.session.verification import Fold, verify


class Reconcile(Protocol):
    """Who is asked, after a crash, what became of calls."""

    def offers(self, tool: str) -> bool:
        """Whether this tool can tell."""
        ...

    async def ask(self, call: RecordedCall) -> Reconciled:
        """What became of the call. Bounded in time, and never raises: what goes wrong is Unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A session taken over and closed: everything a live session is made of. `closers` are among `events`.

    `confirmed_at` is when what last renewed the lease was sent, in seconds on the event loop's clock.
    """

    header: Header
    epoch: Epoch
    events: tuple[SessionEvent, ...]
    fold: Fold
    closers: tuple[SessionEvent, ...]
    head: bytes
    confirmed_at: float


class Resuming:
    """One attempt to take a session over. `abandoned` is the claim that a failed one left in the store, or may have."""

    def __init__(
        self,
        persistence: SessionPersistence,
        owner: Owner,
        extensions: Mapping[str, ev.ExtensionType],
        reconcile: Reconcile | None,
    ) -> None:
        self.abandoned: Epoch | None = None
        self._persistence = persistence
        self._owner = owner
        self._extensions = extensions
        self._reconcile = reconcile
        self._verified: tuple[Header, Fold] | None = None
        self._closing: Batch | None = None
        self._claim: Epoch | None = None

    async def run(self, session_id: str, *, force: bool) -> Taken:
        """Take the session. Raises what the store and the verification raise; then no closer is stored."""
        sent_at = asyncio.get_running_loop().time()
        try:
            epoch, stored = await self._acquire(session_id, force)
            # fp: resume.claimed
            return await self._finish(epoch, stored, sent_at)
        except BaseException:  # also where only the answer was lost: the claim then stands all the same
            self.abandoned = self._claim
            raise

    async def _acquire(self, session_id: str, force: bool) -> tuple[Epoch, StoredLog]:
        acquiring = asyncio.ensure_future(
            self._persistence.acquire(session_id, self._owner, force=force, repair=self._repair)
        )
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            await asyncio.wait((acquiring,))  # the claim may be made all the same, and it cannot be ended before it is
            raise

    def _repair(self, stored: StoredLog, epoch: Epoch) -> Batch | None:
        self._verified = _, fold = verify(stored, self._extensions)
        asks_first = bool(self._questions(stored.session_id, fold.state, epoch))
        self._closing = None if asks_first else _closing_batch(stored, fold, {})
        self._claim = epoch
        # fp: resume.repaired
        return self._closing

    def _questions(self, session_id: str, state: LogState, epoch: Epoch) -> list[RecordedCall]:
        if self._reconcile is None:
            return []
        return [
            RecordedCall(session_id, call.id, call.name, call.arguments, epoch.number)
            for call in state.turn.open_calls
            if call.seq is not None and self._reconcile.offers(call.name)
        ]

    async def _finish(self, epoch: Epoch, stored: StoredLog, confirmed_at: float) -> Taken:
        if self._verified is None:
            raise RuntimeError(f"{self._persistence.kind} took session {stored.session_id!r} without reading it")
        header, fold = self._verified
        if self._closing is None and (questions := self._questions(header.id, fold.state, epoch)):
            answers, confirmed_at = await self._ask(epoch, questions, confirmed_at)
            self._closing = _closing_batch(stored, fold, answers)
            # fp: resume.asked
            if self._closing is not None:
                sent_at = asyncio.get_running_loop().time()
                await self._persistence.append(header, self._closing, epoch)
                # fp: resume.closed
                confirmed_at = sent_at
        closing = self._closing
        if closing is None:
            return Taken(header, epoch, stored.events, fold, (), stored.head, confirmed_at)
        for event in closing.events:
            data = parse(event.type, event.data)
            advance(fold.state, data)
            fold.add(data, event)
        return Taken(header, epoch, stored.events + closing.events, fold, closing.events, closing.digest, confirmed_at)

    async def _ask(
        self, epoch: Epoch, questions: list[RecordedCall], confirmed_at: float
    ) -> tuple[dict[str, Reconciled], float]:
        """What became of the calls, and when the lease was last renewed meanwhile."""
        session_id, lease_s = questions[0].session_id, self._owner.lease_s
        lease = Lease(
            session_id, lease_s, lambda: self._persistence.renew(session_id, epoch), confirmed_at, patience_s=lease_s
        )
        async with lease.kept():
            answers = {call.call_id: await self._reconcile.ask(call) for call in questions}  # type: ignore[union-attr]  # only it gives questions
        return answers, lease.confirmed_at


def _closing_batch(stored: StoredLog, fold: Fold, answers: Mapping[str, Reconciled]) -> Batch | None:
    closers = closing_events(fold.state, answers)
    if not closers:
        return None
    return Batch(as_records(closers, len(stored.events), stored.events[-1].time), stored.head, "recovery")
