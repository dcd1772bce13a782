"""The ways between event data, a log and a live session, without a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from app.session import events as ev
from app.session.batch import Header
from app.session.ownership import Epoch, Owner
from app.session.record import SessionEvent, parse, to_json
from app.session.session import Session
from app.session.values import encode

NOTE: Final = ev.ExtensionType("test/note")
MARK: Final = ev.ExtensionType("test/mark", ignorable=True)
EXTENSIONS: Final = (NOTE, MARK)

START_MS: Final = 1_750_000_000_000


def record(
    events: Iterable[ev.EventData], *, time: Callable[[int], int] = lambda seq: START_MS + seq
) -> tuple[SessionEvent, ...]:
    """The events as a log keeps them; `time` gives an event's milliseconds from its seq."""
    return tuple(
        SessionEvent(seq, time(seq), event.type, encode(to_json(event)), _is_ignorable(event))
        for seq, event in enumerate(events)
    )


def _is_ignorable(event: ev.EventData) -> bool:
    return isinstance(event, ev.Extension) and event.kind.ignorable


def data_of_event(event: SessionEvent) -> ev.EventData:
    """What was appended to give this event."""
    if event.type in ev.CATALOGUE:
        return parse(event.type, event.data)
    return ev.Extension(ev.ExtensionType(event.type, event.ignorable), event.data)


def live(events: Iterable[ev.EventData] = (), session_id: str = "s") -> Session:
    """A session of no store that these events were appended to, one by one."""
    header = Header.make(session_id, START_MS)
    declared = {extension.name: extension for extension in EXTENSIONS}
    session = Session(header, Epoch.first(Owner("test")), lambda: START_MS, extensions=declared)
    for event in events:
        session.append(event)
    return session
