"""Sessions out of their files, beside those who write them: the lock is held to look where the file ends, no longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.session.errors import CorruptLog, SessionDeleted, SessionNotFound
from app.session.persistence import StoredLog
from app.session.record import SessionEvent
from persistence.jsonl.directory import Directory
from persistence.jsonl.file import LogFile
from persistence.jsonl.lines import parse_event
from persistence.jsonl.looking import Seen, State, look
from persistence.jsonl.scanning import Log, scan

_CHUNK = 1 << 20
_MAX_PLACES = 1000


class Places:
    """Where the events stand that followers will ask for next. Only hints: what is there need not be what was."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], int] = {}

    def get(self, session_id: str, seq: int) -> int:
        """The offset of a line at or before that event."""
        return self._places.get((session_id, seq), 0)

    def set(self, session_id: str, seq: int, at: int) -> None:
        self._places[session_id, seq] = at
        if len(self._places) > _MAX_PLACES:
            self._places.clear()


def read(directory: Directory, session_id: str, before: int | None) -> StoredLog:
    """See the contract. What is damaged at or after `before` stands in nobody's way."""
    with directory.locked(session_id, exclusive=False) as file:
        state = present(look(session_id, file), session_id)
        assert file is not None
        if before is not None and before < 1:  # who wants the header is not made to wait for the events
            return stored_log(Log(session_id, state.header_text, state.key), state)
        if state.is_clean:
            file.unlock()
        log = read_log(session_id, file, state)
    if log.problem is not None and (before is None or len(log.events) < before):
        raise log.problem
    return stored_log(log, state, before)


def read_from(directory: Directory, places: Places, session_id: str, seq: int, limit: int) -> Sequence[SessionEvent]:
    """See the contract. Who goes on where he stopped does not read again what came before."""
    with directory.locked(session_id, exclusive=False) as file:
        state = present(look(session_id, file), session_id)
        assert file is not None
        if state.is_clean:
            file.unlock()
        wanted = min(limit, state.end.seq + 1 - seq)
        found: list[SessionEvent] = []
        if wanted > 0:
            hint = places.get(session_id, seq)
            try:
                found, at = _events(file, state, seq, wanted, hint)
            except CorruptLog:
                if not hint:
                    raise
                found, at = _events(file, state, seq, wanted, 0)  # it may be another file by now
            places.set(session_id, seq + wanted, at)
    if state.problem is not None and len(found) < limit:
        raise state.problem
    return found


def present(seen: Seen, session_id: str) -> State:
    """The state of a session that is there, damaged or not. Raises SessionNotFound, SessionDeleted."""
    if seen is None:
        raise SessionNotFound(session_id)
    if seen == "deleted":
        raise SessionDeleted(session_id)
    return seen


def read_log(session_id: str, file: LogFile, state: State) -> Log:
    """The whole file, as far as `state` knows it."""
    log = scan(session_id, file.read(0, file.size))
    if log is None:  # though its last line is an end: the first ones have become NUL bytes
        raise state.problem or CorruptLog(session_id, "offset 0", "there is no header")
    return log


def stored_log(log: Log, state: State, before: int | None = None) -> StoredLog:
    """What the contract shows of a log."""
    upper = len(log.events) if before is None else max(before, 0)
    ends = tuple(end.of_batch for end in log.ends if end.seq < upper)
    place = state.end.seq + 1, state.end.digest, state.holder
    return StoredLog(log.session_id, log.header_text, tuple(log.events[:upper]), ends, *place, state.torn)


def _events(file: LogFile, state: State, seq: int, wanted: int, at: int) -> tuple[list[SessionEvent], int]:
    """That many events from `seq` on, and the offset after the last, read from a line at or before them."""
    events: list[SessionEvent] = []
    for start, line in _lines(file, at, state.size):
        if start == 0 or line.startswith((b'{"end":', b'{"claim":')):
            continue
        event = parse_event(line)
        if event is None or event.seq > seq + len(events):
            raise CorruptLog(
                state.claim.session_id, f"offset {start}", f"it is not event {seq + len(events)}, nor before it"
            )
        if event.seq == seq + len(events):
            events.append(event)
            if len(events) == wanted:
                return events, start + len(line) + 1
    raise CorruptLog(state.claim.session_id, f"offset {state.size}", f"event {seq + len(events)} is not in the file")


def _lines(file: LogFile, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines from one offset up to another, each with its own offset."""
    rest = b""
    while at + len(rest) < end:
        read_to = at + len(rest)
        piece = file.read(read_to, min(end, read_to + _CHUNK))
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield at, line
            at += len(line) + 1
