"""Reading a stored log back: every check that stands between bytes on a disk and a live session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.session import events as ev
from app.session.batch import MAX_TIME, Header, chain
from app.session.errors import CorruptLog, IllegalEvent, LimitExceeded, UnknownEventType
from app.session.grammar import advance
from app.session.history import History
from app.session.log_state import LogState
from app.session.persistence import StoredLog
from app.session.record import SessionEvent, parse
from app.session.unknown_calls import UnknownCalls


@dataclass
class Fold:
    """What a log adds up to: its state, what the model sees of it, and the calls whose effect is not known."""

    state: LogState = field(default_factory=LogState)
    history: History = field(default_factory=History)
    unknown_calls: UnknownCalls = field(default_factory=UnknownCalls)

    def add(self, data: ev.EventData, event: SessionEvent) -> None:
        """Take in an event that the grammar has accepted already."""
        self.history.add(data)
        self.unknown_calls.add(event)


def verify(stored: StoredLog, extensions: Mapping[str, ev.ExtensionType]) -> tuple[Header, Fold]:
    """The header and the fold of a stored log. Raises UnsupportedFormat, UnknownEventType, CorruptLog."""
    header = Header.read(stored.session_id, stored.header_text)
    _verify_chain(stored, header)
    fold = Fold()
    for event in stored.events:
        data = _read(stored.session_id, event, extensions)
        try:
            advance(fold.state, data)
        except IllegalEvent as error:
            raise CorruptLog(stored.session_id, f"seq {event.seq}", str(error)) from None
        fold.add(data, event)
    return header, fold


def _verify_chain(stored: StoredLog, header: Header) -> None:
    for position, event in enumerate(stored.events):
        if event.seq != position:
            raise CorruptLog(stored.session_id, f"seq {position}", f"the event stored there has seq {event.seq}")
    head, start = header.digest, 0
    for end in stored.ends:
        events = stored.events[start : end.seq + 1]
        if end.seq < start or len(events) != end.seq + 1 - start:
            raise CorruptLog(stored.session_id, f"seq {start}", "a batch lacks events")
        head = chain(head, events)
        if head != end.digest:
            raise CorruptLog(
                stored.session_id, f"seq {start}", f"the digest of batch {start} to {end.seq} does not fit"
            )
        start = end.seq + 1
    if start != len(stored.events):
        raise CorruptLog(stored.session_id, f"seq {start}", "events without the end of their batch")
    if (stored.next_seq, stored.head) != (start, head):
        raise CorruptLog(
            stored.session_id, f"seq {start}", f"the store says that {stored.next_seq} events lead to another digest"
        )


def _read(session_id: str, event: SessionEvent, extensions: Mapping[str, ev.ExtensionType]) -> ev.EventData:
    if type(event.time) is not int or not 0 <= event.time < MAX_TIME:
        raise CorruptLog(session_id, f"seq {event.seq}", "its time is not a number of milliseconds")
    try:
        data = event.data
        if event.type in ev.CATALOGUE:
            return parse(event.type, data)
    except (ValueError, LimitExceeded) as error:
        raise CorruptLog(session_id, f"seq {event.seq}", str(error)) from None
    if event.type not in extensions and not event.ignorable:
        raise UnknownEventType(session_id, event.type, event.seq)
    return ev.Extension(ev.ExtensionType(event.type, event.ignorable), data)
