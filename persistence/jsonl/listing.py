"""Pages of sessions: of each, the first and the last lines of its file are read, and no events but titles."""

from __future__ import annotations

from dataclasses import dataclass

from app.session.errors import CorruptLog, PersistenceError
from app.session.persistence import SessionRow
from app.session.values import decode
from persistence.jsonl import errors
from persistence.jsonl.directory import Directory, name_of
from persistence.jsonl.file import LogFile
from persistence.jsonl.lines import Claim, parse_event, parse_mark, parse_tombstone
from persistence.jsonl.looking import State, look
from persistence.jsonl.scanning import read_header


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a session stands in the list. A session that was deleted has none, and never will.

    With a `problem` the file does not tell whose it is; then its name stands for the id, behind all sessions.
    """

    inode: int
    created_at: int = 0
    session_id: str | None = None
    problem: PersistenceError | None = None


class Listing:
    """Keeps, from page to page, what each file says once and for all: when its session was created, and its id."""

    def __init__(self) -> None:
        self._known: dict[str, _Position] = {}

    def page(self, directory: Directory, limit: int, after: tuple[int, str] | None) -> list[SessionRow]:
        """See the contract."""
        found = {name: self._position(directory, name, inode) for name, inode in directory.files().items()}
        known = {name: position for name, position in found.items() if position is not None}
        self._known = {name: position for name, position in known.items() if position.problem is None}
        places = [
            (position.created_at, position.session_id, position.problem)
            for position in known.values()
            if position.session_id is not None
            if after is None or (position.created_at, position.session_id) < after
        ]
        rows: list[SessionRow] = []
        for created_at, session_id, problem in sorted(places, key=lambda place: place[:2], reverse=True):
            row = _row(directory, created_at, session_id, problem)
            if row is not None:
                rows.append(row)
            if len(rows) == limit:
                break
        return rows

    def _position(self, directory: Directory, name: str, inode: int) -> _Position | None:
        """None if nothing was completed in that file yet."""
        known = self._known.get(name)
        if known is not None and known.inode == inode:
            return known
        try:
            with directory.locked(name, exclusive=False, name=name) as file:
                return None if file is None else _position_of(file, inode)
        except PersistenceError as error:
            return _Position(inode, 0, name, error)
        except OSError as error:
            return _Position(inode, 0, name, errors.meaning(error, name))


def _position_of(file: LogFile, inode: int) -> _Position | None:
    """Raises CorruptLog for a file that does not tell whose it is, or whose it cannot be."""
    first = file.line_at(0)
    second = None if first is None else file.line_at(len(first) + 1)
    if first is None or (second is None and not first.startswith(b'{"deleted":')):
        return None
    session_id, created_at = (parse_tombstone(first), 0) if second is None else _told_by(file.name, first, second)
    if session_id is None:
        if look(file.name, file) is None:
            return None
        raise CorruptLog(file.name, "offset 0", "its first lines do not tell the session that the file belongs to")
    if name_of(session_id) != file.name:
        raise CorruptLog(file.name, "offset 0", f"it is the file of session {session_id!r} under another name")
    try:
        seen = look(session_id, file)
    except PersistenceError:  # its row will tell
        return _Position(inode, created_at, session_id)
    return _Position(inode, created_at, session_id) if isinstance(seen, State) else seen and _Position(inode)


def _told_by(name: str, first: bytes, second: bytes) -> tuple[str | None, int]:
    """Whose file it is, and when that session was created: by its first claim, else by its header."""
    text, key = read_header(name, first)
    claim = parse_mark(second, key)
    if isinstance(claim, Claim):
        return claim.session_id, claim.created_at
    try:
        header = decode(text)
        if isinstance(header, dict) and type(header["id"]) is str and name_of(header["id"]) == name:
            created_at = header.get("created_at")
            return header["id"], created_at if type(created_at) is int else 0
    except (KeyError, ValueError):  # it may be any text by now
        pass
    return None, 0


def _row(directory: Directory, created_at: int, session_id: str, problem: PersistenceError | None) -> SessionRow | None:
    """None if the session is gone by now."""
    try:
        if problem is not None:
            raise problem
        with directory.locked(session_id, exclusive=False) as file:
            state = look(session_id, file)
            return _row_of(state, file) if isinstance(state, State) and file is not None else None
    except PersistenceError as error:
        return SessionRow.unreadable(session_id, created_at, error)
    except OSError as error:
        return SessionRow.unreadable(session_id, created_at, errors.meaning(error, session_id))


def _row_of(state: State, file: LogFile) -> SessionRow:
    claim, end = state.claim, state.end
    title = None
    if end.title_at:
        event = parse_event(file.line_at(end.title_at) or b"")
        if event is None or event.type != "session/title":
            raise CorruptLog(claim.session_id, f"offset {end.title_at}", "it is not the title that stood there")
        title = event.text
    place = end.seq + 1, end.written_at
    return SessionRow(state.header_text, claim.session_id, claim.created_at, *place, state.holder, title)
