"""A session as lines of JSON, to be moved between stores: the header, each event, and how many there were. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from app.session import events as ev
from app.session.batch import Batch, BatchEnd, Header
from app.session.errors import CorruptLog, LimitExceeded, PersistenceError, UnsupportedFormat
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent
from app.session.values import DEFAULT, decode, encode
from app.session.verification import verify

_PAGE = 200
_KEYS = ({"seq", "type", "time", "data"}, {"seq", "type", "time", "data", "ignorable"})


async def export_lines(
    stored: StoredLog, read_from: Callable[[str, int, int], Awaitable[Sequence[SessionEvent]]]
) -> AsyncIterator[str]:
    """The lines of a stored log, without line ends, as they are stored. Its events are read a page at a time."""
    yield stored.header_text
    seq, end, count = 0, stored.next_seq, 0
    while seq < end and (page := await read_from(stored.session_id, seq, min(_PAGE, end - seq))):
        for event in page:
            yield event.line
        seq, count = page[-1].seq + 1, count + len(page)
    yield encode({"events": count})


def import_lines(lines: Iterable[str], extensions: Mapping[str, ev.ExtensionType]) -> tuple[Header, Batch]:
    """The header and the one batch of an exported session, verified as a whole.

    Raises CorruptLog naming the line, UnknownEventType, UnsupportedFormat.
    """
    rest = enumerate(lines, 1)
    number, last = next(rest, (1, ""))
    header: Header | None = None
    events: list[SessionEvent] = []
    for following, line in rest:  # each is read once the next is there: the last one is no event
        if header is None:
            header = _header(last)
        else:
            events.append(_event(header.id, number, last))
        number, last = following, line.rstrip("\r\n")
    if header is None or not events:
        raise CorruptLog("(import)", "line 1", "an export has a header, events, and a last line with their number")
    if _object(header.id, number, last) != {"events": len(events)}:
        reason = f"it has to be the number of events, which is {len(events)}; the export may be cut"
        raise CorruptLog(header.id, f"line {number}", reason)
    batch = Batch(tuple(events), header.digest, "import")
    end = BatchEnd(len(events) - 1, "import", 0, batch.digest)
    verify(_as_stored(header, batch.events, end), extensions)
    return header, batch


def _as_stored(header: Header, events: tuple[SessionEvent, ...], end: BatchEnd) -> StoredLog:
    return StoredLog(header.id, header.text, events, (end,), len(events), end.digest, Holder(0, None, 0.0))


def _header(line: str) -> Header:
    data = _object("(import)", 1, line)
    session_id = data.get("id")
    try:
        return Header.read(session_id if isinstance(session_id, str) else "(import)", encode(data))
    except UnsupportedFormat:
        raise
    except PersistenceError as error:
        raise CorruptLog("(import)", "line 1", str(error)) from None


def _event(session_id: str, number: int, line: str) -> SessionEvent:
    data = _object(session_id, number, line)
    kinds = (type(data.get("seq")), type(data.get("type")), type(data.get("time")), type(data.get("data")))
    if set(data) not in _KEYS or kinds != (int, str, int, dict) or data.get("ignorable", True) is not True:
        reason = "an event has seq, type, time and data, perhaps ignorable, which is true, and nothing else"
        raise CorruptLog(session_id, f"line {number}", reason)
    if not data["type"].isprintable():  # an unknown one is told by the verification; this one no store could keep
        raise CorruptLog(session_id, f"line {number}", f"{data['type']!r} is no type of an event")
    if data["seq"] != number - 2:
        raise CorruptLog(session_id, f"line {number}", f"its seq is {data['seq']}, where {number - 2} is due")
    return SessionEvent(data["seq"], data["time"], data["type"], encode(data["data"]), "ignorable" in data)


def _object(session_id: str, number: int, line: str) -> dict[str, Any]:
    try:
        data = decode(line, DEFAULT)
    except (ValueError, LimitExceeded) as error:
        raise CorruptLog(session_id, f"line {number}", f"it is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise CorruptLog(session_id, f"line {number}", "it is not an object")
    return data
