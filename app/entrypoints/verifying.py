"""`verify`: whether what is stored is what was written."""

from __future__ import annotations

from app.entrypoints.escaping import one_line
from app.entrypoints.exits import CORRUPT, DONE, code_of
from app.entrypoints.output import Output
from app.entrypoints.rows import every_row
from app.session.batch import Header
from app.session.errors import ConfigurationError, PersistenceError, SessionNotFound
from app.session.inspection import Inspection
from app.session.store import SessionStore
from app.session.values import encode


async def verify(sessions: SessionStore, session_id: str | None, head: bytes | None, output: Output) -> int:
    """Check one session, or all; a line each. `head` is a digest that the log is known to have had.

    Gaps, decodability, digests, grammar, pairing and order are checked, for each session by itself: nothing inside a
    log can show that its last batches are missing, which is what `head` is for. The exit code is that of the first
    session that is not well; whatever is wrong with it, the others are looked at too.
    """
    if session_id is not None:
        return await _verify(sessions, session_id, head, output)
    codes: list[int] = []
    with output.progress("verifying"):
        async for row in every_row(sessions):
            output.at(f"verifying: {len(codes)} sessions, now {row.session_id}")
            try:
                if row.problem is not None:
                    raise row.problem
                codes.append(await _verify(sessions, row.session_id, None, output))
            except SessionNotFound:  # deleted since it was listed
                pass
            except PersistenceError as error:
                _tell(row.session_id, None, str(error), output)
                codes.append(code_of(error))
                await sessions.list(1)  # if it is not this session but the store that fails, that is the end
    return next((code for code in codes if code), DONE)


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
        fault = str(error)
    _tell(session_id, found, fault, output)
    return DONE if fault is None else CORRUPT


def _tell(session_id: str, found: Inspection | None, fault: str | None, output: Output) -> None:
    if output.is_json:
        output.record(_text(session_id, found, fault))
    elif found is None or fault is not None:
        output.lines([(("bad  ", "bold red"), (f"{one_line(session_id)}  {one_line(fault or '')}", ""))])
    else:
        note = f", torn: {one_line(found.torn)}" if found.torn else ""
        what = f"{one_line(session_id)}  {len(found.events)} events, head {found.head.hex()}{note}"
        output.lines([(("ok   ", "green"), (what, ""))])


def _fault(found: Inspection, expected: bytes | None) -> str | None:
    if found.problem is not None:
        return str(found.problem)
    if expected is None:
        return None
    heads = {Header.read(found.session_id, found.header_text).digest, *(end.digest for end in found.ends)}
    if expected in heads:
        return None
    return f"the log does not hold the head {expected.hex()}: batches are missing at its end, or it is another log"


def _text(session_id: str, found: Inspection | None, fault: str | None) -> str:
    stored = {} if found is None else {"events": len(found.events), "head": found.head.hex(), "torn": found.torn}
    return encode({"id": session_id, "ok": fault is None, **stored, "problem": fault})
