"""What a store's refusal means to the one process that knows what was acknowledged to it."""

from __future__ import annotations

import logging

from app.session.batch import Batch
from app.session.errors import (
    PersistenceError,
    SequenceConflict,
    SessionDeleted,
    SessionFenced,
    SessionNotFound,
    Stored,
    StoreRegressed,
)
from app.session.persistence import SessionPersistence
from app.session.session import Session

logger = logging.getLogger(__name__)


async def explain_refusal(
    persistence: SessionPersistence, session: Session, head: bytes, refusal: PersistenceError, repeated: Batch | None
) -> PersistenceError:
    """The error that a lost session keeps. `head` is the digest last acknowledged, `repeated` a batch sent before.

    A store that shows less than it acknowledged, or something else, has regressed; a fenced writer with a batch of
    unknown outcome is told whether the log holds it.
    """
    if isinstance(refusal, SessionDeleted):
        return refusal
    if isinstance(refusal, SessionNotFound):
        return StoreRegressed(session.id, session.durable, "nothing of it") if session.durable else refusal
    stored = refusal.stored if isinstance(refusal, SessionFenced | SequenceConflict) else None
    if stored is not None and (found := _regression(session, head, stored)):
        return StoreRegressed(session.id, session.durable, found)
    if isinstance(refusal, SessionFenced):
        committed = refusal.committed
        if repeated is not None:
            committed = await _is_committed(persistence, session.id, repeated)
        is_released = stored is not None and stored.epoch == session.epoch.number  # whoever takes it goes one higher
        return SessionFenced(session.id, stored, committed, is_released)
    return refusal


def _regression(session: Session, head: bytes, stored: Stored) -> str | None:
    if stored.next_seq < session.durable:
        return f"{stored.next_seq}"
    if stored.epoch < session.epoch.number:
        return f"epoch {stored.epoch}, older than ours, {session.epoch.number}"
    if stored.next_seq == session.durable and stored.head != head:
        return f"{stored.next_seq}, others than those"
    return None


async def _is_committed(persistence: SessionPersistence, session_id: str, batch: Batch) -> bool | None:
    try:
        stored = await persistence.read_from(session_id, batch.first_seq, len(batch.events))
    except Exception as error:  # the store failed once more: then it stays unknown, which is what None says
        logger.warning("whether the last batch of session %s was stored is not known: %s", session_id, error)
        return None
    return tuple(stored) == batch.events
