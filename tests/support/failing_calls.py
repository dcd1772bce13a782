"""A short life of sessions in which one call that changes a file goes wrong, for each call and each way there is.

`run` counts the calls of a life, and then forks a process for every other life, and one more that looks at what it
left. The library that makes calls fail is failing_calls.c.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import PersistenceError, PersistenceUnavailable, SessionDeleted, SessionNotFound, StoreUnusable
from app.session.ownership import this_owner
from app.session.session import Session
from app.session.store import SessionStore
from app.session.verification import verify
from persistence.contract.samples import messages
from tests.support.child import ROOT
from tests.support.stores import Place, place_of

T = TypeVar("T")
Tell: TypeAlias = Callable[..., None]
Part: TypeAlias = Callable[[Tell], Coroutine[Any, Any, None]]
Note: TypeAlias = dict[str, Any]

ONCE, FOR_EVER, KILLED = ("error", "short"), ("broken", "full"), ("torn", "before", "after")
"""EIO, or half of a write; EIO from then on, or half of a write and then no room; killed in half a write, or beside it.

`short` and `torn` befall writes alone.
"""
_WRITE = "w"
_TRIES = 3
_BATCHES = {"a": (1, 4, 6, 8), "b": (2,)}
"""How many events each session has after each of its batches; the last one of "a" is written after a restart."""


@dataclass
class Report:
    """`calls` has a letter for each call of a whole life. `ends` says how lives ended, as often: "error: done"."""

    calls: str
    runs: int = 0
    acknowledged: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


# -- one life ------------------------------------------------------------------------------------


def content(seq: int) -> str:
    """What an event says: two need pages of their own, so that half of their batch has a whole line in it."""
    return "x" * (5_000 if seq in (1, 2) else 10)


def sessions_at(place: Place, owner: str) -> SessionStore:
    limits = DrainLimits(write_behind_ms=None)
    return SessionStore(place.persistence(), this_owner(owner), drain_limits=limits)


def append(session: Session, upto: int) -> None:
    for seq in range(len(session), upto):
        session.append(ev.InboxAccepted({"id": f"m{seq}", "content": content(seq)}, "context"))


async def live(place: Place, tell: Tell) -> None:
    """Two sessions, of which one is deleted and one is written to again after a restart."""

    async def insist(act: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_TRIES - 1):
            try:
                return await act()
            except (PersistenceUnavailable, StoreUnusable):
                tell("failed")
        return await act()

    async def write(session: Session, upto: int) -> None:
        append(session, upto)
        await insist(lambda: sessions.flush(session))
        tell("acknowledged", session=session.id, events=upto)

    *before, last = _BATCHES["a"]
    sessions = sessions_at(place, "first")
    await insist(sessions.persistence.open)
    session, other = [await insist(partial(sessions.create, name)) for name in _BATCHES]
    for upto in before:
        await write(session, upto)
    await write(other, *_BATCHES["b"])
    for one in (session, other):
        await insist(partial(sessions.release, one))
    tell("deleting")
    await insist(lambda: sessions.delete("b"))
    tell("deleted")
    await sessions.persistence.close()
    sessions = sessions_at(place, "second")
    await insist(sessions.persistence.open)
    session = await insist(lambda: sessions.resume("a"))
    await write(session, last)
    await insist(lambda: sessions.release(session))
    await sessions.persistence.close()


# -- what it leaves ------------------------------------------------------------------------------


async def look(place: Place, notes: Sequence[Note], tell: Tell) -> None:
    """Tell all that is wrong, from another process."""
    sessions = sessions_at(place, "third")
    await sessions.persistence.open()
    said = [note["what"] for note in notes]
    for name, borders in _BATCHES.items():
        count = acknowledged(notes, name)
        upto = next((border for border in borders if border > count), count)  # the batch whose outcome nobody knows
        try:
            stored = await sessions.persistence.read(name)
        except SessionDeleted:
            if name != "b" or "deleting" not in said:
                tell(f"{name} is deleted, which nobody asked for")
        except SessionNotFound:
            if count:
                tell(f"{name} is gone, with {count} acknowledged events")
        else:
            verify(stored, {})
            if name == "b" and "deleted" in said:
                tell("b was deleted, and is there")
            if len(stored.events) not in (count, upto):
                tell(f"{name} has {len(stored.events)} events; {count} were acknowledged")
            if [event.text for event in stored.events] != [text(seq) for seq in range(len(stored.events))]:
                tell(f"{name} has other events than those that were appended")
    for row in [row.session_id for row in await sessions.list()] or ["new"]:
        session = await (sessions.create(row) if row == "new" else sessions.resume(row))
        append(session, len(session) + 2)
        await sessions.release(session)
        if (await sessions.inspect(row)).events != session.events:
            tell(f"{row} does not show what was added to it")
    await sessions.persistence.close()


def acknowledged(notes: Sequence[Note], session_id: str) -> int:
    return max((note["events"] for note in notes if note.get("session") == session_id), default=0)


def text(seq: int) -> str:
    """What is stored of an event that `append` makes, byte for byte."""
    (event,) = messages(seq, 1, content(seq))
    return event.text


# -- all lives -----------------------------------------------------------------------------------


def forked(part: Part, before: Callable[[], None] = lambda: None) -> tuple[str, list[Note]]:
    """A part played in a process of its own: how it ended, and what it told until then."""
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        _play(part, before, ours)
    os.close(ours)
    with os.fdopen(theirs, "rb") as told:
        notes = [json.loads(line) for line in told]
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name, notes
    return notes.pop()["what"], notes


def _play(part: Part, before: Callable[[], None], ours: int) -> None:
    def tell(what: str, **details: Any) -> None:
        os.write(ours, json.dumps({"what": what, **details}).encode() + b"\n")

    warnings.simplefilter("error")
    end = "done"
    try:
        before()
        asyncio.run(part(tell))
    except PersistenceError as error:
        end = error.code
    except BaseException:  # whatever it was, it is for the parent to see
        end = traceback.format_exc()
    tell(end)
    os._exit(0)


def live_all(kind: str, directory: Path) -> Report:
    """Every life there is, one after another, each in a new place."""
    library = ctypes.CDLL(None)
    library.faults_seen.restype = ctypes.c_char_p

    def lived(nth: int, way: str) -> tuple[str, list[Note], list[Note]]:
        place = Place(place_of(kind, "").kind, directory / "place")
        place.directory.mkdir()

        async def part(tell: Tell) -> None:
            await live(place, tell)
            tell("calls", calls=library.faults_seen().decode())

        end, notes = forked(part, lambda: library.faults_begin(os.fsencode(place.directory), nth, way.encode()))
        looked, wrong = forked(lambda tell: look(place, notes, tell))
        shutil.rmtree(place.directory)
        return end, notes, wrong + ([] if looked == "done" else [{"what": looked}])

    end, notes, wrong = lived(0, "")
    assert (end, wrong) == ("done", []), (end, wrong)
    report = Report(notes[-1]["calls"])
    for nth, call in enumerate(report.calls, start=1):
        for way in (*ONCE, *FOR_EVER, *KILLED):
            if way in ("short", "torn") and call != _WRITE:
                continue
            end, notes, wrong = lived(nth, way)
            report.runs += 1
            report.acknowledged += sum(acknowledged(notes, name) for name in _BATCHES)
            report.ends[f"{way}: {end}"] += 1
            report.violations += [f"{way} at call {nth} ({call}): {note['what']}" for note in wrong]
    return report


def run(kind: str, directory: Path, compiler: str) -> Report:
    """All lives of a store, in an empty directory."""
    library, lives = directory / "failing_calls.so", directory / "lives"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    lives.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", __name__, kind, str(lives)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return Report(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(vars(live_all(sys.argv[1], Path(sys.argv[2])))))
