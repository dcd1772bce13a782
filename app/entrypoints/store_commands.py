"""The commands that look at what is stored, or keep it in order. What they do is imported when they are called."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.entrypoints.options import Full, Json, Profile, Quiet, SessionId
from app.entrypoints.output import Output
from app.session.errors import ConfigurationError, NoStore

if TYPE_CHECKING:
    from app.session.store import SessionStore


def sessions(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Sessions on a page.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """List the stored sessions, newest first."""
    from app.entrypoints import looking

    place = None if after is None else looking.cursor(after)
    try:
        return _look(profile, json, lambda store, output: looking.list_sessions(store, limit, place, output))
    except NoStore as error:
        return looking.list_none(error, Output(is_json=json))


def show(
    session_id: SessionId,
    full: Full = False,
    chunks: Annotated[bool, typer.Option("--chunks", help="A line for each chunk of the model's stream.")] = False,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Show a session as a timeline.

    Between the events stand the checkpoints: what is above such a line was durable before the model was asked, before
    the tool acted, or whatever the line says. An open call is marked, and below the log stands what resuming would add.
    Works beside a live owner and changes nothing.
    """
    from app.entrypoints import looking

    return _look(
        profile, json, lambda store, output: looking.show(store, session_id, output, full=full, all_chunks=chunks)
    )


def tail(
    session_id: SessionId,
    start: Annotated[int, typer.Option("--from", min=0, metavar="SEQ", help="The first event to print.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for events to come, until Ctrl-C.")] = True,
    full: Full = False,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Print a session's events as they become durable."""
    from app.entrypoints import looking

    return _look(
        profile, json, lambda store, output: looking.tail(store, session_id, start, output, follow=follow, full=full)
    )


def verify(
    session_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The session's id; without one, every session and the store.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The same as no id.")] = False,
    head: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="A head that this log had: it must hold it.")
    ] = None,
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check that a log, or every log, is what was written.

    Gaps, decodability, digests, grammar, pairing and order are checked, and the head digest is printed. Kept elsewhere
    and given as --head later, it also shows whether the end of the log is missing, which nothing inside the log can.
    """
    from app.entrypoints import verifying

    if session_id is not None and every:
        raise ConfigurationError("give a session's id, or --all")
    if session_id is None and head is not None:
        raise ConfigurationError("--head belongs to one session")
    expected = None if head is None else verifying.digest(head)
    return _look(
        profile, json, lambda store, output: verifying.verify(store, session_id, expected, output), quiet=quiet
    )


def fork(
    session_id: SessionId,
    at: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="The seq of a turn/end; the last by default.")
    ] = None,
    new_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="The new session's id.")] = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Branch a session off at the end of a turn.

    The new session shares the log up to there and goes its own way; its id is printed. The old one is not touched.
    """
    from app.entrypoints import keeping

    return _look(profile, json, lambda store, output: keeping.fork(store, session_id, at, new_id, output))


def export(session_id: SessionId, profile: Profile = None, quiet: Quiet = False) -> int:
    """Print a session as lines of JSON: header, events, and their number.

    `beforehand export ID > FILE` and `beforehand import FILE` move it to another store, equal byte for byte.
    """
    from app.entrypoints import keeping

    return _look(profile, False, lambda store, output: keeping.export(store, session_id, output), quiet=quiet)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` printed; - reads standard input.")],
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Store an exported session under its own id, verified as a whole first."""
    from app.entrypoints import keeping

    lines = _lines(file)
    lines = chain([next(lines, "")], lines)  # a file that cannot be read is told before a store is made
    return _look(
        profile, json, lambda store, output: keeping.import_(store, lines, output), quiet=quiet, makes_store=True
    )


def _lines(file: str) -> Iterator[str]:
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
            for line in source:
                yield line.decode("ascii")
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: is no export: it holds characters beyond ASCII") from None


def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Since the last write: 30d, 12h, 15m or 30s.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it: there is no way back.")] = False,
    profile: Profile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Delete the sessions that were not written for so long and that nobody owns; without --yes only name them."""
    from app.entrypoints import keeping

    before_ms = time.time_ns() // 1_000_000 - _age_ms(older_than)
    return _look(profile, json, lambda store, output: keeping.prune(store, before_ms, output, yes=yes), quiet=quiet)


def _age_ms(text: str) -> int:
    units = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise ConfigurationError(f"--older-than {text!r} is no age: it takes a number and one of d, h, m, s")
    return int(number) * units[unit]


def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: there is no way back.")] = False,
    profile: Profile = None,
) -> int:
    """Delete a session for good, whoever owns it. Its id cannot be used again."""
    from app.entrypoints import keeping

    if not yes:
        raise ConfigurationError(f"deleting {session_id!r} cannot be undone; say --yes to do it")
    return _look(profile, False, lambda store, output: keeping.delete(store, session_id, output))


def _look(
    profile: str | None,
    json: bool,
    action: Callable[[SessionStore, Output], Awaitable[int]],
    *,
    quiet: bool = False,
    makes_store: bool = False,
) -> int:
    from app.entrypoints.opening import load, look

    return look(load(profile), action, Output(is_json=json, is_quiet=quiet), makes_store=makes_store)
