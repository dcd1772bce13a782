"""`verify`: whether what is stored is what was written."""

from __future__ import annotations

from collections.abc import AsyncIterator

from app.entrypoints.escaping import one_line
from app.entrypoints.exits import CORRUPT, DONE, code_of
from app.entrypoints.output import Output
from app.session.batch import Header
from app.session.errors import ConfigurationError, PersistenceError, SessionNotFound
from app.session.inspection import Inspection
from app.session.store import SessionStore
from app.session.values import encode

PAGE = 100


async def verify(sessions: SessionStore, session_id: str | None, head: str | None, output: Output) -> int:
    """Check one session, or all; a line each. `head` is a digest that the log is known to have had, in hexadecimal.

    Gaps, decodability, digests, grammar, pairing and order are checked, for each session by itself: nothing inside a
    log can show that its last batches are missing, which is what `head` is for.
    """
    expected = None if head is None else _digest(head)
    is_good = True
    async for one in _ids(sessions, session_id):
        try:
            fault = await _verify(sessions, one, expected, output)
        except SessionNotFound:
            if session_id is not None:
                raise
            continue  # deleted since it was listed
        is_good = is_good and not fault
    return DONE if is_good else CORRUPT


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigurationError(f"--head {text!r} is no digest: 64 hexadecimal digits, as `verify` prints them")
    return digest


async def _ids(sessions: SessionStore, session_id: str | None) -> AsyncIterator[str]:
    if session_id is not None:
        yield session_id
        return
    after: tuple[int, str] | None = None
    while rows := await sessions.list(PAGE, after):
        for row in rows:
            yield row.session_id
        after = (rows[-1].created_at, rows[-1].session_id)


async def _verify(sessions: SessionStore, session_id: str, expected: bytes | None, output: Output) -> str | None:
    """What is wrong with one session, told; None if nothing is."""
    found: Inspection | None = None
    try:
        found = await sessions.inspect(session_id)
        fault = _fault(found, expected)
    except PersistenceError as error:
        if code_of(error) != CORRUPT:
            raise
        fault = str(error)
    if output.is_json:
        output.record(_text(session_id, found, fault))
    elif found is None or fault is not None:
        output.lines([(("bad  ", "bold red"), (f"{one_line(session_id)}  {one_line(fault or '')}", ""))])
    else:
        note = f", torn: {one_line(found.torn)}" if found.torn else ""
        what = f"{one_line(session_id)}  {len(found.events)} events, head {found.head.hex()}{note}"
        output.lines([(("ok   ", "green"), (what, ""))])
    return fault


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
