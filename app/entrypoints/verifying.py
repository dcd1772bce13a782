"""`verify`: whether what is stored is what was written."""

from __future__ import annotations

from collections.abc import Sequence

from app.entrypoints.escaping import one_line
from app.entrypoints.exits import CORRUPT, DONE, code_of
from app.entrypoints.output import Output
from app.entrypoints.rows import every_row
from app.session.batch import Header
from app.session.errors import ConfigurationError, CorruptLog, PersistenceError, SessionDeleted, SessionNotFound
from app.session.health import Checkable, InFiles
from app.session.inspection import Inspection
from app.session.store import SessionStore
from app.session.values import encode

_BAD = ("bad  ", "bold red")


async def verify(sessions: SessionStore, session_id: str | None, head: bytes | None, output: Output) -> int:
    """Check one session, or the whole store; a line each. `head` is a digest that the log is known to have had.

    Gaps, decodability, digests, grammar, pairing and order are checked, for each session by itself: nothing inside a
    log can show that its last batches are missing, which is what `head` is for. Of the whole store also what it can
    tell beside its sessions. The exit code is that of the first thing that is not well; all others are looked at too.
    """
    if session_id is not None:
        return await _verify(sessions, session_id, head, output)
    found = DONE
    faults: list[str] = []
    with output.progress("verifying"):
        try:
            found = await _verify_all(sessions, output)
        except CorruptLog as error:  # of the list, which is of no session
            faults.append(error.reason)
        faults += await _faults(sessions)
    for fault in faults:
        if output.is_json:
            output.record(_record(None, None, fault, None))
        else:
            output.lines([(_BAD, (f"the store  {one_line(fault)}", ""))])
    return found or (CORRUPT if faults else DONE)


def digest(text: str) -> bytes:
    """The digest that somebody wrote down. Raises ConfigurationError."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigurationError(f"--head {text!r} is no digest: 64 hexadecimal digits, as `verify` prints them")
    return digest


async def _verify(sessions: SessionStore, session_id: str, expected: bytes | None, output: Output) -> int:
    """Check one session and tell; the exit code. Raises what keeps it from being read, unless that is damage."""
    found: Inspection | None = None
    try:
        found = await sessions.inspect(session_id)
        fault = _fault(found, expected)
    except PersistenceError as error:
        if code_of(error) != CORRUPT:
            raise
        fault = error
    _tell(sessions, session_id, found, fault, output)
    return DONE if fault is None else CORRUPT


async def _verify_all(sessions: SessionStore, output: Output) -> int:
    """Check every session and tell of each; the first exit code that is not DONE."""
    found = DONE
    count = 0
    async for row in every_row(sessions):
        output.at(f"verifying: {count} sessions, now {row.session_id}")
        count += 1
        try:
            if row.problem is not None:
                raise row.problem
            code = await _verify(sessions, row.session_id, None, output)
        except SessionDeleted:  # since it was listed
            continue
        except SessionNotFound:
            code = CORRUPT
            _tell(sessions, row.session_id, None, "it is listed, and cannot be found by its id", output)
        except PersistenceError as error:
            code = code_of(error)
            _tell(sessions, row.session_id, None, error, output)
            await sessions.list(1)  # if it is not this session but the store that fails, that is the end
        found = found or code
    return found


async def _faults(sessions: SessionStore) -> Sequence[str]:
    """What is wrong that no session shows."""
    if not isinstance(sessions.persistence, Checkable):
        return []
    try:
        return await sessions.persistence.faults()
    except CorruptLog as error:  # of no session either
        return [error.reason]


def _fault(found: Inspection, expected: bytes | None) -> PersistenceError | str | None:
    if found.problem is not None or expected is None:
        return found.problem
    heads = {Header.read(found.session_id, found.header_text).digest, *(end.digest for end in found.ends)}
    if expected in heads:
        return None
    return f"the log does not hold the head {expected.hex()}: batches are missing at its end, or it is another log"


def _tell(
    sessions: SessionStore,
    session_id: str,
    found: Inspection | None,
    fault: PersistenceError | str | None,
    output: Output,
) -> None:
    store = sessions.persistence
    file = str(store.file_of(session_id)) if isinstance(store, InFiles) else None
    if output.is_json:
        output.record(_record(session_id, found, fault, file))
    elif found is None or fault is not None:
        where = "" if file is None else f"; the file is {file}"
        output.lines([(_BAD, (one_line(f"{session_id}  {fault}{where}"), ""))])
    else:
        note = f", torn: {one_line(found.torn)}" if found.torn else ""
        what = f"{one_line(session_id)}  {len(found.events)} events, head {found.head.hex()}{note}"
        output.lines([(("ok   ", "green"), (what, ""))])


def _record(
    session_id: str | None, found: Inspection | None, fault: PersistenceError | str | None, file: str | None
) -> str:
    stored = {
        "events": None if found is None else len(found.events),
        "head": None if found is None else found.head.hex(),
        "torn": None if found is None else found.torn,
    }
    code = fault.code if isinstance(fault, PersistenceError) else None
    where = fault.where if isinstance(fault, CorruptLog) else None
    problem = None if fault is None else str(fault)
    told = {"code": code, "where": where, "file": file, "problem": problem}
    return encode({"id": session_id, "ok": fault is None, **stored, **told})
