"""The live sessions of this process: created, resumed, flushed and released. Only `flush` makes events durable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from app.session import events as ev
from app.session.batch import Batch, Header, Reason
from app.session.drain import Drain, DrainLimits
from app.session.errors import (
    LOST_ERRORS,
    FlushTimeout,
    PersistenceError,
    SessionDeleted,
    SessionExists,
    SessionHeld,
    SessionNotFound,
    SessionNotLive,
)
from app.session.forking import fork
from app.session.identifiers import check_id
from app.session.identifiers import new_id as make_id
from app.session.inspection import Inspection, inspect
from app.session.ownership import Epoch, Owner
from app.session.persistence import SessionPersistence, SessionRow
from app.session.record import SessionEvent
from app.session.refusals import explain_refusal
from app.session.resuming import Reconcile, Resuming
from app.session.session import LogLimits, Session

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    session: Session
    drain: Drain


class SessionStore:
    """Creates, resumes, gets, flushes and releases sessions over one persistence.

    `clock` gives milliseconds since the epoch, UTC. `reconcile` is asked, when a session is resumed, what became of a
    call whose result is missing; `lease_margin_s` is how much of a lease has to be left before an effect may begin.
    """

    def __init__(
        self,
        persistence: SessionPersistence,
        owner: Owner,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        extensions: Iterable[ev.ExtensionType] = (),
        log_limits: LogLimits | None = None,
        drain_limits: DrainLimits | None = None,
        lease_margin_s: float = 5.0,
        reconcile: Reconcile | None = None,
    ) -> None:
        self.persistence = persistence
        self.owner = owner
        self.drain_limits = drain_limits or DrainLimits()
        self.extensions = {extension.name: extension for extension in extensions}
        self._clock = clock
        self._log_limits = log_limits or LogLimits()
        self._lease_margin_s = lease_margin_s
        self._reconcile = reconcile
        self._live: dict[str, _Live] = {}
        self._reserved: set[str] = set()
        self._abandoned: dict[str, Epoch] = {}

    # ---------------------------------------------------------------------------------------- coming and going

    async def create(self, session_id: str | None = None, meta: Mapping[str, Any] | None = None) -> Session:
        """A new live session. Nothing is stored before its first flush.

        Raises InvalidId, SessionExists, SessionDeleted, UnstorableValue.
        """
        header = Header.make(make_id() if session_id is None else session_id, self._clock(), meta=meta)
        if header.id in self._live or header.id in self._reserved:
            raise SessionExists(header.id)
        with self._reserve(header.id):
            await self.persistence.check_free(header.id)
            session = Session(
                header, Epoch.first(self.owner), self._clock, extensions=self.extensions, limits=self._log_limits
            )
            return self._publish(session, header.digest)

    async def resume(self, session_id: str, *, force: bool = False) -> Session:
        """Take a stored session over and repair it: it is live, balanced and stored when this returns.

        `force` takes it from an owner whose lease still runs. Raises SessionNotFound, SessionDeleted, SessionHeld,
        CorruptLog, UnknownEventType, UnsupportedFormat, and what the store raises; then nothing is live.
        """
        check_id(session_id)
        if session_id in self._live or session_id in self._reserved:
            raise SessionHeld(session_id, self.owner.name, None)
        with self._reserve(session_id):
            await self._drop_abandoned(session_id)
            resuming = Resuming(self.persistence, self.owner, self.extensions, self._reconcile)
            try:
                taken = await resuming.run(session_id, force=force)
            finally:
                if resuming.abandoned is not None:
                    self._abandoned[session_id] = resuming.abandoned
            session = Session(
                taken.header,
                taken.epoch,
                self._clock,
                events=taken.events,
                fold=taken.fold,
                closers=taken.closers,
                extensions=self.extensions,
                limits=self._log_limits,
            )
            return self._publish(session, taken.head)

    def get(self, session_id: str) -> Session | None:
        """The session of this id if it is live here."""
        live = self._live.get(session_id)
        return None if live is None else live.session

    @property
    def live(self) -> tuple[Session, ...]:
        return tuple(live.session for live in self._live.values())

    async def release(self, session: Session) -> None:
        """Flush, end the lease, forget the session. If that fails it raises and the session stays live.

        A lost session is forgotten as it is.
        """
        live = self._require(session)
        if session.lost is None:
            await live.drain.flush("final")
            await live.drain.settle()
            if session.durable:
                await self._refusable(session, self.persistence.release(session.id, session.epoch))
        await live.drain.settle()
        session.is_live = False
        del self._live[session.id]

    # ---------------------------------------------------------------------------------------- durability

    async def flush(self, session: Session, reason: Reason = "caller") -> None:
        """Return once every event appended before this call is durable.

        Raises SessionNotLive, the error of a lost session, FlushTimeout (outcome unknown, the write goes on), and what
        the store raised. Whatever is raised, the events are kept, in order.
        """
        await self._require(session).drain.flush(reason)

    async def check_ownership(self, session: Session) -> None:
        """Return if the session is certainly ours for `lease_margin_s` more; renews the lease when that is not known.

        Raises the error of a lost session, SessionFenced, or what the store raised.
        """
        drain = self._require(session).drain
        session.check_usable()
        if session.durable and time.monotonic() - drain.confirmed_at > self.owner.lease_s - self._lease_margin_s:
            await self._renew(session, drain)

    @asynccontextmanager
    async def heartbeat(self, session: Session) -> AsyncIterator[None]:
        """Keep the lease while the body runs: renewed whenever nothing was written for a third of it."""
        drain = self._require(session).drain
        beating = asyncio.get_running_loop().create_task(self._beat(session, drain))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait((beating,))

    async def _beat(self, session: Session, drain: Drain) -> None:
        third = self.owner.lease_s / 3
        while session.lost is None:
            wait_s = drain.confirmed_at + third - time.monotonic()
            if wait_s > 0 or not session.durable:
                await asyncio.sleep(max(wait_s, third / 10))
                continue
            try:
                await self._renew(session, drain)
            except PersistenceError as error:
                logger.warning("the lease of session %s was not renewed: %s", session.id, error)
                await asyncio.sleep(third / 10)

    async def _renew(self, session: Session, drain: Drain) -> None:
        sent_at = time.monotonic()
        renewing = asyncio.ensure_future(self.persistence.renew(session.id, session.epoch))
        done, _ = await asyncio.wait((renewing,), timeout=self.drain_limits.flush_timeout_ms / 1000)
        if not done:
            renewing.cancel()
            raise FlushTimeout(session.id, self.drain_limits.flush_timeout_ms)
        await self._refusable(session, renewing)
        drain.confirmed_at = max(drain.confirmed_at, sent_at)

    # ---------------------------------------------------------------------------------------- other operations

    async def inspect(self, session_id: str) -> Inspection:
        """What is stored, beside a live owner too; nothing is asked and nothing written. Raises SessionNotFound."""
        return inspect(await self.persistence.read(check_id(session_id)), self.extensions)

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """Stored events from `seq` on, at most `limit`; none at or past the end. Raises ValueError, SessionNotFound."""
        if type(seq) is not int or seq < 0:
            raise ValueError(f"a seq is an integer from 0, not {seq!r}")
        return await self.persistence.read_from(check_id(session_id), seq, limit)

    async def list(self, limit: int = 50, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """Stored sessions, newest first by (created_at, id), after that position."""
        return await self.persistence.list(limit, after)

    async def fork(self, session_id: str, seq: int | None = None, new_id: str | None = None) -> str:
        """A new stored session that shares the log up to a turn's end, by default the last one. Returns its id.

        Raises SessionExists, SessionNotFound, InvalidBoundary, OpenTurn, and as `resume` for what is read.
        """
        child_id = make_id() if new_id is None else check_id(new_id)
        if child_id in self._live or child_id in self._reserved:
            raise SessionExists(child_id)
        with self._reserve(child_id):
            await self.persistence.check_free(child_id)
            stored = await self.persistence.read(check_id(session_id), before=None if seq is None else seq + 1)
            header, batch = fork(stored, seq, child_id, self._clock(), self.extensions)
            epoch = Epoch.first(self.owner)
            await self.persistence.append(header, batch, epoch)
            await self.persistence.release(child_id, epoch)
        return child_id

    async def delete(self, session_id: str) -> None:
        """Delete a session for good, whoever owns it; if it is live here, it is lost. Raises SessionNotFound."""
        await self.persistence.delete(check_id(session_id))
        if (session := self.get(session_id)) is not None:
            self._lose(session, SessionDeleted(session_id))

    # ---------------------------------------------------------------------------------------- inside

    def _publish(self, session: Session, head: bytes) -> Session:
        async def write(batch: Batch, sent_before: bool) -> None:
            appending = self.persistence.append(session.header, batch, session.epoch)
            await self._refusable(session, appending, batch if sent_before else None)

        self._live[session.id] = _Live(session, Drain(session, head, write, self.drain_limits))
        return session

    def _require(self, session: Session) -> _Live:
        live = self._live.get(session.id)
        if live is None or live.session is not session:
            raise SessionNotLive(session.id)
        return live

    async def _refusable(self, session: Session, call: Awaitable[None], repeated: Batch | None = None) -> None:
        try:
            await call
        except (*LOST_ERRORS, SessionNotFound) as refusal:
            head = self._require(session).drain.head
            error = await explain_refusal(self.persistence, session, head, refusal, repeated)
            self._lose(session, error)
            raise error from refusal

    def _lose(self, session: Session, error: PersistenceError) -> None:
        if session.lost is None:
            session.lost = error
            logger.error("%s; %d events were never stored", error, len(session) - session.durable)
            for told in tuple(session.on_lost):
                told(error)

    @contextmanager
    def _reserve(self, session_id: str) -> Iterator[None]:
        self._reserved.add(session_id)
        try:
            yield
        finally:
            self._reserved.remove(session_id)

    async def _drop_abandoned(self, session_id: str) -> None:
        epoch = self._abandoned.get(session_id)
        if epoch is not None:
            try:
                await self.persistence.release(session_id, epoch)
            except (*LOST_ERRORS, SessionNotFound):
                logger.info("the claim that a failed resume of session %s left is gone already", session_id)
            del self._abandoned[session_id]
