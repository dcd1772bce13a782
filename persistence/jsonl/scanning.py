"""What a session's file holds, read from its first byte on: batches that are whole, and what is wrong after them.

Nothing but the rest of a write that was cut short may be cut away. Such a rest is a beginning of what was being
written, or blocks of it, with NUL bytes where the others would be: so a line that is complete and wrong is damage
unless it holds NUL bytes, and so is anything that is followed by a good line. Digests are not looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.session.batch import Header
from app.session.errors import CorruptLog
from app.session.record import SessionEvent
from persistence.jsonl.lines import Claim, End, parse_event, parse_mark

_NUL = b"\0"


@dataclass
class Log:
    """The batches that are whole, with the claim that stands after them; they take the first `size` bytes.

    `torn` tells of a rest that may be cut. `problem` is the damage after `size`, if there is any; it is not raised
    here, because what comes before may be all that somebody wants.
    """

    session_id: str
    header_text: str
    key: bytes
    claim: Claim | None = None
    claim_at: int = 0
    end_at: int = 0
    lease_until: int = 0
    size: int = 0
    events: list[SessionEvent] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    torn: str | None = None
    problem: CorruptLog | None = None


def scan(session_id: str, data: bytes) -> Log | None:
    """All that the bytes of a file hold; None if no batch was ever completed. Raises CorruptLog, UnsupportedFormat."""
    start = data.find(b"\n") + 1
    if not start:
        return None
    first = data[: start - 1]
    if _NUL in first and b'\n{"end":' not in data:
        return None
    text, key = read_header(session_id, first)
    log = Log(session_id, text, key)
    _Scan(log, data).run(start)
    if log.ends:
        return log
    if log.problem is not None:
        Header.read(session_id, text)  # if it is the header that is wrong, that is what to tell
        raise log.problem
    return None


def read_header(session_id: str, line: bytes) -> tuple[str, bytes]:
    """The text on a first line, which says nothing here, and the key of all checks. Raises CorruptLog."""
    if not line.isascii():
        raise CorruptLog(session_id, "the header", "it is not ASCII")
    text = line.decode("ascii")
    return text, Header(session_id, text, 0).digest


class _Scan:
    def __init__(self, log: Log, data: bytes) -> None:
        self._log = log
        self._data = data
        self._key = log.key
        self._open: list[SessionEvent] = []
        self._open_at: list[int] = []

    def run(self, at: int) -> None:
        data, log = self._data, self._log
        wrong: str | None = None
        while (newline := data.find(b"\n", at)) >= 0:
            wrong = self._take(data[at:newline], at)
            if wrong is not None:
                break
            at = newline + 1
        log.problem = self._damage_after(at, newline, wrong)
        left = len(data) - log.size
        if left and log.problem is None:
            what = f"{left} bytes at offset {log.size} hold no complete batch"
            log.torn = f"{what}; they are cut before anything else is written"

    def _damage_after(self, at: int, newline: int, wrong: str | None) -> CorruptLog | None:
        """What is wrong with the bytes that no batch holds, if they are more than the rest of a write."""
        data = self._data
        for event, start in zip(self._open, self._open_at, strict=True):
            try:
                _ = event.data
            except ValueError:  # of events that have an end, the digest says so
                return self._told(start, f"the data of event {event.seq} is not what it has to be")
        if wrong is not None:
            line = data[at:newline]
            if _NUL not in line or self._is_followed(newline + 1) or self._is_good(line.rpartition(_NUL)[2]):
                return self._told(at, wrong)
        elif data[-1:] != _NUL and parse_mark(data[at:-1], self._key) is not None:
            return self._told(len(data) - 1, "another byte stands in the place of the line's end")
        return None

    def _told(self, at: int, wrong: str) -> CorruptLog:
        return CorruptLog(self._log.session_id, f"offset {at}", wrong)

    def _take(self, line: bytes, at: int) -> str | None:
        """Add a line to the log; what is wrong if it cannot follow."""
        log = self._log
        if line.startswith(b'{"seq":'):
            event = parse_event(line)
            seq = len(log.events) + len(self._open)
            if event is None:
                return f"the line of event {seq} is not what it has to be"
            if event.seq != seq or log.claim is None:
                return f"event {event.seq} stands where {seq} is to be"
            self._open.append(event)
            self._open_at.append(at)
            return None
        mark = parse_mark(line, self._key)
        if mark is None:
            return "it is no line of this session's log, or it or the header was altered"
        if isinstance(mark, End):
            seq = len(log.events) + len(self._open) - 1
            if not self._open or mark.seq != seq or mark.claim_at != log.claim_at:
                return f"the end of batch {mark.seq} stands where it does not belong"
            log.events += self._open
            log.ends.append(mark)
            log.end_at = at
            self._open, self._open_at = [], []
        else:
            if mark.session_id != log.session_id:
                return f"it is the claim of session {mark.session_id!r}"
            if self._open or mark.end_at != log.end_at:
                return f"claim {mark.number} stands where it does not belong"
            log.claim, log.claim_at = mark, at
        log.lease_until = mark.lease_until
        log.size = at + len(line) + 1
        return None

    def _is_followed(self, at: int) -> bool:
        return any(self._is_good(line) for line in self._data[at:].split(b"\n"))

    def _is_good(self, line: bytes) -> bool:
        return parse_event(line) is not None or parse_mark(line, self._key) is not None
