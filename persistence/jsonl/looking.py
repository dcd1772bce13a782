"""Where a session stands, from the first and the last lines of its file: however long it is, that takes no longer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from app.session.errors import CorruptLog
from app.session.persistence import Holder
from persistence.jsonl.file import LogFile
from persistence.jsonl.lines import Claim, End, parse_mark, parse_tombstone
from persistence.jsonl.scanning import Log, read_header, scan
from persistence.rules import Row


@dataclass(frozen=True, slots=True)
class State:
    """The claim and the end that stand last in a file, and where; `size`, `torn` and `problem` as in a Log."""

    header_text: str
    key: bytes
    claim: Claim
    claim_at: int
    end: End
    end_at: int
    lease_until: int
    size: int
    torn: str | None = None
    problem: CorruptLog | None = None

    @classmethod
    def of(cls, log: Log) -> State:
        assert log.claim is not None  # no event stands before one
        marks = log.claim, log.claim_at, log.ends[-1], log.end_at
        return cls(log.header_text, log.key, *marks, log.lease_until, log.size, log.torn, log.problem)

    @property
    def is_clean(self) -> bool:
        """Whether the file ends with what is told here, so that nothing that counts will ever change."""
        return self.torn is None and self.problem is None

    def row(self) -> Row:
        """What the rules decide by. Raises the problem, if there is one."""
        if self.problem is not None:
            raise self.problem
        claim, left = self.claim, (self.lease_until - now_ms()) / 1000
        place = self.end.seq + 1, self.end.digest
        return Row(self.header_text, claim.number, claim.token, claim.owner, claim.process, left, *place)

    @property
    def holder(self) -> Holder:
        return Holder(self.claim.number, self.claim.owner, (self.lease_until - now_ms()) / 1000)


Seen = State | Literal["deleted"] | None
"""What a file says: a session, a tombstone, or nothing that was ever completed."""


def now_ms() -> int:
    """The clock of leases and of batches: the machine's."""
    return time.time_ns() // 1_000_000


def look(session_id: str, file: LogFile | None) -> Seen:
    """What stands under an id. Raises CorruptLog if that cannot be told, UnsupportedFormat, OSError."""
    if file is None:
        return None
    first = file.line_at(0)
    if first is None:
        return None
    if first.startswith(b'{"deleted":'):
        if parse_tombstone(first) != session_id:
            raise CorruptLog(session_id, "the tombstone", "it was altered, or it is that of another session")
        return "deleted"
    return _from_the_end(session_id, file, first) or _from_the_start(session_id, file)


def _from_the_end(session_id: str, file: LogFile, first: bytes) -> State | None:
    last = file.last_line()
    if last is None:
        return None
    at, line = last
    if b"\0" in first or not line.startswith((b'{"end":', b'{"claim":')):
        return None
    text, key = read_header(session_id, first)
    mark = parse_mark(line, key)
    if isinstance(mark, End):
        claim = parse_mark(file.line_at(mark.claim_at) or b"", key)
        if isinstance(claim, Claim) and claim.session_id == session_id:
            return State(text, key, claim, mark.claim_at, mark, at, mark.lease_until, file.size)
    elif mark is not None and mark.end_at and mark.session_id == session_id:
        end = parse_mark(file.line_at(mark.end_at) or b"", key)
        if isinstance(end, End):
            return State(text, key, mark, at, end, mark.end_at, mark.lease_until, file.size)
    return None


def _from_the_start(session_id: str, file: LogFile) -> State | None:
    log = scan(session_id, file.read(0, file.size))
    return None if log is None else State.of(log)
