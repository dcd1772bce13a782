"""Pages of sessions: of each, the first and the last lines of its file are read, and no events but titles."""

from __future__ import annotations

from dataclasses import dataclass

from app.session.errors import CorruptLog
from app.session.persistence import SessionRow
from persistence.jsonl.directory import Directory, name_of
from persistence.jsonl.file import LogFile
from persistence.jsonl.lines import Claim, parse_event, parse_mark, parse_tombstone
from persistence.jsonl.looking import State, look
from persistence.jsonl.scanning import read_header


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a session stands in the list. A session that was deleted has none, and never will."""

    inode: int
    created_at: int = 0
    session_id: str | None = None


class Listing:
    """Keeps, from page to page, what each file says once and for all: when its session was created, and its id."""

    def __init__(self) -> None:
        self._known: dict[str, _Position] = {}

    def page(self, directory: Directory, limit: int, after: tuple[int, str] | None) -> list[SessionRow]:
        """See the contract. Raises CorruptLog for a file whose own id cannot be read."""
        known = {name: self._position(directory, name, inode) for name, inode in directory.files().items()}
        self._known = {name: position for name, position in known.items() if position is not None}
        places = [
            (position.created_at, position.session_id)
            for position in self._known.values()
            if position.session_id is not None
            if after is None or (position.created_at, position.session_id) < after
        ]
        rows: list[SessionRow] = []
        for _, session_id in sorted(places, reverse=True):
            with directory.locked(session_id, exclusive=False) as file:
                state = look(session_id, file)
                if isinstance(state, State) and file is not None:
                    rows.append(_row(state, file))
            if len(rows) == limit:
                break
        return rows

    def _position(self, directory: Directory, name: str, inode: int) -> _Position | None:
        """None if nothing was completed in that file yet."""
        known = self._known.get(name)
        if known is not None and known.inode == inode:
            return known
        with directory.locked(name, exclusive=False, name=name) as file:
            session_id = None if file is None else _id_in(file)
            if session_id is None:
                return None
            if name_of(session_id) != name:
                raise CorruptLog(name, "offset 0", f"it is the file of session {session_id!r} under another name")
            seen = look(session_id, file)
        if isinstance(seen, State):
            return _Position(inode, seen.claim.created_at, session_id)
        return None if seen is None else _Position(inode)


def _row(state: State, file: LogFile) -> SessionRow:
    claim, end = state.claim, state.end
    title = None
    if end.title_at:
        event = parse_event(file.line_at(end.title_at) or b"")
        if event is None or event.type != "session/title":
            raise CorruptLog(claim.session_id, f"offset {end.title_at}", "it is not the title that stood there")
        title = event.text
    place = end.seq + 1, end.written_at
    return SessionRow(state.header_text, claim.session_id, claim.created_at, *place, state.holder, title)


def _id_in(file: LogFile) -> str | None:
    """The id that a file is about, by its first two lines; None if they are not complete. Raises CorruptLog."""
    first = file.line_at(0)
    if first is None:
        return None
    if first.startswith(b'{"deleted":'):
        session_id = parse_tombstone(first)
    else:
        second = file.line_at(len(first) + 1)
        if second is None:
            return None
        claim = parse_mark(second, read_header(file.name, first)[1])
        session_id = claim.session_id if isinstance(claim, Claim) else None
    if session_id is None:
        raise CorruptLog(file.name, "offset 0", "its first lines do not tell the session that the file belongs to")
    return session_id
