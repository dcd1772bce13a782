"""A session as lines of JSON, to be moved between stores: the header, each event, and how many there were. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.session import events as ev
from app.session.batch import Batch, BatchEnd, Header
from app.session.errors import CorruptLog, LimitExceeded, PersistenceError, UnsupportedFormat
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent
from app.session.values import DEFAULT, decode, encode
from app.session.verification import verify

_KEYS = ({"seq", "type", "time", "data"}, {"seq", "type", "time", "data", "ignorable"})


def export_lines(stored: StoredLog) -> Iterator[str]:
    """The lines of a stored log, without line ends, as they are stored."""
    yield stored.header_text
    for event in stored.events:
        yield event.line
    yield encode({"events": len(stored.events)})


def import_lines(lines: Iterable[str], extensions: Mapping[str, ev.ExtensionType]) -> tuple[Header, Batch]:
    """The header and the one batch of an exported session, verified as a whole.

    Raises CorruptLog naming the line, UnknownEventType, UnsupportedFormat.
    """
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1)]
    if len(numbered) < 3:
        raise CorruptLog("(import)", "line 1", "an export has a header, events, and a last line with their number")
    header = _header(numbered[0][1])
    events = tuple(_event(header.id, number, line) for number, line in numbered[1:-1])
    if _object(header.id, *numbered[-1]) != {"events": len(events)}:
        reason = f"it has to be the number of events, which is {len(events)}; the export may be cut"
        raise CorruptLog(header.id, f"line {numbered[-1][0]}", reason)
    batch = Batch(events, header.digest, "import")
    end = BatchEnd(len(events) - 1, "import", 0, batch.digest)
    verify(_as_stored(header, events, end), extensions)
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
