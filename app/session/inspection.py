"""Looking at a stored session without touching it: what is there, what recovery would add, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.session import events as ev
from app.session.batch import BatchEnd
from app.session.errors import PersistenceError
from app.session.log_state import OpenCall
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent
from app.session.recovery import as_records, closing_events
from app.session.verification import verify


@dataclass(frozen=True, slots=True)
class Inspection:
    """A stored session as it is. `events` are stored, `closers` are what resuming would add with nothing asked.

    `open_calls` have a call and no result. `problem` is what would make resuming refuse the log, `torn` an incomplete
    last batch that would be cut.
    """

    session_id: str
    header_text: str
    events: tuple[SessionEvent, ...]
    ends: tuple[BatchEnd, ...]
    head: bytes
    holder: Holder
    closers: tuple[SessionEvent, ...]
    open_calls: tuple[OpenCall, ...]
    torn: str | None
    problem: PersistenceError | None

    @property
    def balanced(self) -> tuple[SessionEvent, ...]:
        """The log as it will be once it is resumed, with unknown outcomes."""
        return self.events + self.closers


def inspect(stored: StoredLog, extensions: Mapping[str, ev.ExtensionType]) -> Inspection:
    """Verify a stored log and say what there is; never raises for what the log holds."""
    closers: tuple[SessionEvent, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    problem: PersistenceError | None = None
    try:
        _, fold = verify(stored, extensions)
    except PersistenceError as error:
        problem = error
    else:
        open_calls = fold.state.turn.open_calls
        closing = closing_events(fold.state, {})
        closers = as_records(closing, len(stored.events), stored.events[-1].time) if closing else ()
    return Inspection(
        stored.session_id,
        stored.header_text,
        stored.events,
        stored.ends,
        stored.head,
        stored.holder,
        closers,
        open_calls,
        stored.torn,
        problem,
    )
