"""The live sessions of this process: created, resumed, flushed and released. Only `flush` makes events durable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from app.session import events as ev
from app.session.batch import Batch, Header, Reason
from app.session.drain import Drain, DrainLimits
from app.session.errors import (
    LOST_ERRORS,
    PersistenceError,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionHeld,
    SessionNotFound,
    SessionNotLive,
    Stored,
)
from app.session.forking import fork
from app.session.identifiers import check_id
from app.session.identifiers import new_id as make_id
from app.session.inspection import Inspection, inspect
from app.session.lease import Lease
from app.session.ownership import Epoch, Owner
from app.session.persistence import SessionPersistence, SessionRow
from app.session.record import SessionEvent
from app.session.refusals import explain_refusal
from app.session.resuming import Reconcile, Resuming
from app.session.session import LogLimits, Session
from app.session.transfer import export_lines, import_lines
from app.session.vocabulary import vocabulary

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Live:
    session: Session
    drain: Drain
    lease: Lease


class SessionStore:
    """Creates, resumes, gets, flushes and releases sessions over one persistence.

    `clock` gives milliseconds since the epoch, UTC. `reconcile` is asked, when a session is resumed, what became of a
    call whose result is missing; `lease_margin_s` is how much of a lease has to be left before an effect may begin.
    Raises ConfigurationError for `extensions` that cannot be declared.
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
        self.extensions = vocabulary(extensions)
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
        with self._reserve_new(header.id):
            await self.persistence.check_free(header.id)
            session = Session(
                header, Epoch.first(self.owner), self._clock, extensions=self.extensions, limits=self._log_limits
            )
            return self._publish(session, header.digest, asyncio.get_running_loop().time())

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
            return self._publish(session, taken.head, taken.confirmed_at)

    def get(self, session_id: str) -> Session | None:
        """The session of this id if it is live here."""
        live = self._live.get(session_id)
        return None if live is None else live.session

    @property
    def live(self) -> tuple[Session, ...]:
        return tuple(live.session for live in self._live.values())

    async def release(self, session: Session) -> None:
        """Flush, end the lease, forget the session. If that fails it raises and the session stays live.

        A lost session is forgotten as it is, also one that is found to be lost by this; that is raised.
        """
        live = self._require(session)
        try:
            if not session.is_lost:
                while session.durable < len(session):  # also what came in during the flush
                    await live.drain.flush("final")
                # fp: release.flushed
                session.is_live = False  # or what came in from here on would be forgotten
                await self._end_lease(live)
                # fp: release.ended
        except BaseException:  # also when cancelled: it stays live, unless it is lost
            session.is_live = self._live.get(session.id) is live
            if session.is_lost:
                await self._forget(live)
            raise
        await self._forget(live)

    async def _end_lease(self, live: _Live) -> None:
        session = live.session
        ours = Stored(session.epoch.number, session.durable, live.drain.head)

        async def end() -> None:
            try:
                await self.persistence.release(session.id, session.epoch)
            except SessionFenced as refusal:
                if refusal.stored != ours:
                    raise
                # nobody took it since: an earlier try has ended it, and its answer was lost

        if session.durable:
            await self._refusable(live, end())

    async def _forget(self, live: _Live) -> None:
        session = live.session
        await live.drain.settle()
        session.is_live = False
        if self._live.get(session.id) is live:
            del self._live[session.id]
        if session.is_lost and (missing := len(session) - session.durable):
            logger.error("session %s is lost here with %d events that were never stored", session.id, missing)

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
        lease = self._require(session).lease
        session.check_usable()
        if session.durable:
            await lease.ensure(self._lease_margin_s)

    def heartbeat(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Keep the lease while the body runs: renewed whenever nothing was written for a third of it."""
        return self._require(session).lease.kept()

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
        check_id(session_id)
        child_id = make_id() if new_id is None else check_id(new_id)
        with self._reserve_new(child_id):
            await self.persistence.check_free(child_id)
            stored = await self.persistence.read(session_id, before=None if seq is None else seq + 1)
            # fp: fork.read
            await self._store_whole(*fork(stored, seq, child_id, self._clock(), self.extensions))
        return child_id

    async def export(self, session_id: str) -> AsyncIterator[str]:
        """A stored session as lines of JSON, without line ends: its header, its events, and how many there are.

        Read as it is asked for, page by page: what is appended meanwhile is left out.
        """
        stored = await self.persistence.read(check_id(session_id), before=0)
        return export_lines(stored, self.persistence.read_from)

    async def import_(self, lines: Iterable[str]) -> str:
        """Store an exported session under its own id, which is returned; an open turn stays open until it is resumed.

        Raises SessionExists, SessionDeleted, CorruptLog naming the line, UnknownEventType, UnsupportedFormat; then
        nothing is stored.
        """
        header, batch = import_lines(lines, self.extensions)
        check_id(header.id)
        with self._reserve_new(header.id):
            await self.persistence.check_free(header.id)
            await self._store_whole(header, batch)
        return header.id

    async def delete(self, session_id: str) -> None:
        """Delete a session for good, whoever owns it; if it is live here, it is lost. Raises SessionNotFound."""
        await self.persistence.delete(check_id(session_id))
        # fp: delete.done
        if (session := self.get(session_id)) is not None:
            self._lose(session, SessionDeleted(session_id))

    # ---------------------------------------------------------------------------------------- inside

    def _publish(self, session: Session, head: bytes, confirmed_at: float) -> Session:
        async def write(batch: Batch, sent_before: bool) -> None:
            sent_at = asyncio.get_running_loop().time()
            appending = self.persistence.append(session.header, batch, session.epoch)
            await self._refusable(live, appending, batch if sent_before else None)
            live.lease.confirm(sent_at)

        async def renew() -> None:
            session.check_usable()
            if session.durable:  # before the first write there is no lease
                await self._refusable(live, self.persistence.renew(session.id, session.epoch))

        patience_s = min(self.drain_limits.flush_timeout_ms / 1000, self.owner.lease_s - self._lease_margin_s)
        lease = Lease(session.id, self.owner.lease_s, renew, confirmed_at, patience_s)
        live = self._live[session.id] = _Live(session, Drain(session, head, write, self.drain_limits), lease)
        return session

    def _require(self, session: Session) -> _Live:
        live = self._live.get(session.id)
        if live is None or live.session is not session:
            raise SessionNotLive(session.id)
        return live

    async def _refusable(self, live: _Live, call: Awaitable[None], repeated: Batch | None = None) -> None:
        try:
            await call
        except (*LOST_ERRORS, SessionNotFound) as refusal:
            error = await explain_refusal(self.persistence, live.session, live.drain.head, refusal, repeated)
            self._lose(live.session, error)
            raise error from refusal

    def _lose(self, session: Session, error: PersistenceError) -> None:
        if session.lost is None:
            session.lost = error
            logger.error("%s", error)
            for told in tuple(session.on_lost):
                told(error)

    async def _store_whole(self, header: Header, batch: Batch) -> None:
        """A session in one write, owned by nobody afterwards."""
        # fp: copy.free
        epoch = self._abandoned[header.id] = Epoch.first(self.owner)
        await self.persistence.append(header, batch, epoch)
        # fp: copy.stored
        try:
            await self._drop_abandoned(header.id)
        except Exception as error:  # whatever the store raised: the session is stored, and its lease ends by itself
            logger.warning("the lease of the new session %s was not ended: %s", header.id, error)

    def _reserve_new(self, session_id: str) -> AbstractContextManager[None]:
        if session_id in self._live or session_id in self._reserved:
            raise SessionExists(session_id)
        return self._reserve(session_id)

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
                logger.info("the claim that was left on session %s is gone already", session_id)
            del self._abandoned[session_id]
