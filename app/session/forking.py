"""A child that shares its parent's log up to the end of a turn. Pure: the store reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.session import events as ev
from app.session.batch import Batch, BatchEnd, Header, chain
from app.session.errors import InvalidBoundary, OpenTurn
from app.session.persistence import StoredLog
from app.session.record import SessionEvent, to_json
from app.session.values import encode
from app.session.verification import verify


def fork(
    stored: StoredLog, seq: int | None, child_id: str, created_at: int, extensions: Mapping[str, ev.ExtensionType]
) -> tuple[Header, Batch]:
    """The header and the one batch of a child of `stored` at the boundary `seq` (by default the last `turn/end`).

    Messages pending there are discarded in the child, so they do not run twice. Raises InvalidBoundary, OpenTurn, and
    as `verify` for the events up to the boundary; what comes after it does not matter.
    """
    boundary = _boundary(stored, seq)
    part = _up_to(stored, boundary)
    _, fold = verify(part, extensions)
    header = Header.make(child_id, created_at, parent={"id": stored.session_id, "seq": boundary})
    events = part.events
    if fold.state.pending:
        dropped = ev.InboxDiscarded(list(fold.state.pending), "fork")
        events += (SessionEvent(len(events), events[-1].time, dropped.type, encode(to_json(dropped))),)
    return header, Batch(events, header.digest, "fork")


def _boundary(stored: StoredLog, seq: int | None) -> int:
    ends = [event.seq for event in stored.events if event.type == ev.TurnEnd.type]
    if seq is None and not ends:
        raise InvalidBoundary(stored.session_id, "its last turn/end, since no turn has ended")
    boundary = ends[-1] if seq is None else seq
    if boundary not in ends:
        is_inside = 0 <= boundary < len(stored.events) and _is_inside_turn(stored, boundary)
        raise (
            OpenTurn(stored.session_id, boundary)
            if is_inside
            else InvalidBoundary(stored.session_id, f"seq {boundary}")
        )
    return boundary


def _is_inside_turn(stored: StoredLog, boundary: int) -> bool:
    turns = [e.type for e in stored.events[: boundary + 1] if e.type in (ev.TurnStart.type, ev.TurnEnd.type)]
    return bool(turns) and turns[-1] == ev.TurnStart.type


def _up_to(stored: StoredLog, boundary: int) -> StoredLog:
    """The log cut after the boundary. Whole batches keep their digests; one that is cut gets a digest of its own."""
    events = stored.events[: boundary + 1]
    ends = tuple(end for end in stored.ends if end.seq <= boundary)
    start, head = (ends[-1].seq + 1, ends[-1].digest) if ends else (0, _header_digest(stored))
    if start <= boundary:
        head = chain(head, events[start:])
        ends += (BatchEnd(boundary, "fork", 0, head),)
    return replace(stored, events=events, ends=ends, next_seq=len(events), head=head)


def _header_digest(stored: StoredLog) -> bytes:
    return Header.read(stored.session_id, stored.header_text).digest
