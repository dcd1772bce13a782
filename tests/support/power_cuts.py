"""A writer whose power is cut again and again: `python -m tests.support.power_cuts STORE CUTS SEED [WITHOUT]`.

With WITHOUT, a name of UNSAFE, the store leaves something out that it needs, and the run ends with the first loss.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.errors import PersistenceError, SessionDeleted, SessionNotFound
from app.session.ownership import this_owner
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.session import Session
from app.session.store import SessionStore
from app.session.verification import verify
from persistence.sqlite.database import Database
from tests.support.child import ROOT, mark
from tests.support.power import Disk, NotHere, alone
from tests.support.stores import Place, place_of
from tests.support.system_calls import intercepted

_DRAIN = DrainLimits(write_behind_ms=None)


@dataclass
class Report:
    """`acknowledged` counts the events of all cuts' writers; `not_run` is the reason if there was no disk to cut."""

    cuts: int = 0
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    not_run: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """What had been acknowledged at one moment: of each session how many events, or that it was deleted."""

    events: dict[str, int]
    deleted: frozenset[str]


class Writer:
    """Lives through the sessions of one process, step by step; `appended` is all that a store may ever show."""

    def __init__(self, persistence: SessionPersistence, chance: random.Random) -> None:
        self.sessions = SessionStore(persistence, this_owner("the writer"), drain_limits=_DRAIN)
        self.chance = chance
        self.appended: dict[str, tuple[SessionEvent, ...]] = {}
        self.deleting: set[str] = set()
        self._acknowledged: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._session: Session | None = None

    @property
    def promised(self) -> Promised:
        return Promised(dict(self._acknowledged), frozenset(self._deleted))

    async def step(self) -> bool:
        """A flush of some events; or the end of a session, which every second time is deleted: whether it was."""
        if self._session is None:
            self._session = await self.sessions.create(f"s{len(self.appended)}")
        session = self._session
        if len(session) < 12:
            append(session, self.chance)
            self.appended[session.id] = session.events
            await self.sessions.flush(session)
            self._acknowledged[session.id] = len(session)
        else:
            self._session = None
            await self.sessions.release(session)
            if self.chance.random() < 0.5:
                self.deleting.add(session.id)
                await self.sessions.delete(session.id)
                self._deleted.add(session.id)
                return True
        return False


def append(session: Session, chance: random.Random) -> None:
    """One to four events, of which some take many pages."""
    for _ in range(chance.randint(1, 4)):
        content = chance.randbytes(chance.choice((5, 50, 20_000))).hex()
        session.append(ev.InboxAccepted({"id": f"m{len(session)}", "content": content}, "context"))


async def live(kind: str, disk: Disk, cuts: int, chance: random.Random, *, to_the_first_loss: bool) -> Report:
    """One long life, cut at random moments: while it waits for the disk, or as soon as a step is acknowledged."""
    report, began = Report(), time.monotonic()
    persistence = place_of(kind, str(disk.path)).persistence()
    await persistence.open()
    writer = Writer(persistence, chance)

    def cut(after_s: float = 0.0) -> Promised:
        time.sleep(after_s)
        promised = writer.promised
        disk.clone()
        return promised

    while report.cuts < cuts and not (report.violations and to_the_first_loss):
        moment = chance.choice(["while it waits", "after a step", "after a deletion"])
        for _ in range(chance.randint(1, 12)):
            started = time.monotonic()
            has_deleted = await writer.step()
        step_s = time.monotonic() - started
        while moment == "after a deletion" and not has_deleted:
            has_deleted = await writer.step()
        if moment == "while it waits":
            promised, _ = await asyncio.gather(asyncio.to_thread(cut, chance.random() * step_s), writer.step())
        else:
            promised = cut()
        report.cuts += 1
        with disk.after_the_cut() as path:
            for wrong in await examine(place_of(kind, str(path)), promised, writer):
                report.violations.append(f"cut {report.cuts}: {wrong}")
    await persistence.close()
    report.acknowledged = sum(writer.promised.events.values())
    report.seconds = time.monotonic() - began
    return report


async def examine(place: Place, promised: Promised, writer: Writer) -> list[str]:
    """What is wrong with the store that a cut has left, and with going on there."""
    persistence = place.persistence()
    try:
        await persistence.open()
    except PersistenceError as error:
        return [str(error)]
    sessions = SessionStore(persistence, this_owner("the next"), drain_limits=_DRAIN)
    wrong: list[str] = []
    for session_id, appended in writer.appended.items():
        try:
            stored = await sessions.persistence.read(session_id)
            verify(stored, {})
        except SessionDeleted:
            if session_id not in writer.deleting:
                wrong.append(f"{session_id} is deleted, which nobody asked for")
            continue
        except SessionNotFound:
            if session_id in promised.events:
                wrong.append(f"{session_id} is gone, with {promised.events[session_id]} acknowledged events")
            continue
        except PersistenceError as error:
            wrong.append(str(error))
            continue
        count = promised.events.get(session_id, 0)
        if session_id in promised.deleted:
            wrong.append(f"{session_id} was deleted, and is there")
        elif stored.events != appended[: len(stored.events)] or len(stored.events) not in (count, len(appended)):
            wrong.append(f"{session_id} has {len(stored.events)} of {len(appended)} events; {count} were acknowledged")
    if not wrong:
        wrong = await go_on(sessions, writer)
    await persistence.close()
    return wrong


async def go_on(sessions: SessionStore, writer: Writer) -> list[str]:
    """Whether what was left can be written to: the newest session that is there, and one that is new."""
    for row in [row.session_id for row in await sessions.list(1)] + [None]:
        # By force: to a store that may be shared, a process of another boot can be one of another machine.
        session = await sessions.create("new") if row is None else await sessions.resume(row, force=True)
        append(session, writer.chance)
        await sessions.release(session)
        if (await sessions.inspect(session.id)).events != session.events:
            return [f"{session.id} does not show what was added to it after the cut"]
    return []


# -- teeth ---------------------------------------------------------------------------------------


def sqlite_with(level: str) -> AbstractContextManager[Any]:
    """While inside, SQLite is told to sync less."""
    connect = Database._connect

    def careless(database: Database) -> Any:
        connection = connect(database)
        connection.execute(f"PRAGMA synchronous = {level}")
        return connection

    return mock.patch.object(Database, "_connect", careless)


def jsonl_without(call: str) -> AbstractContextManager[Any]:
    """While inside, calls of this name do nothing."""
    return intercepted(lambda name, do, arguments: None if name == call else do())


UNSAFE: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "any sync": ("sqlite", lambda: sqlite_with("OFF")),
    "a sync of each commit": ("sqlite", lambda: sqlite_with("NORMAL")),
    "syncs of files": ("jsonl", lambda: jsonl_without("fdatasync")),
    "syncs of the directory": ("jsonl", lambda: jsonl_without("fsync")),
}
"""What a store can be without, and which one."""


async def inside(directory: str, kind: str, cuts: str, seed: str, without: str) -> None:
    """What runs alone: mark the report."""
    try:
        disk = Disk(Path(directory))
    except NotHere as error:
        mark(json.dumps(vars(Report(not_run=str(error)))))
        return
    with UNSAFE[without][1]() if without else nullcontext():
        report = await live(kind, disk, int(cuts), random.Random(seed), to_the_first_loss=bool(without))
    mark(json.dumps(vars(report)))


def run(kind: str, cuts: int, seed: str, without: str = "") -> Report:
    """A whole life, in a process that leaves nothing behind."""
    try:
        before = alone()
    except NotHere as error:
        return Report(not_run=str(error))
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-W", "error", "-m", "tests.support.child", "tests.support.power_cuts:inside"]
        words = [directory, kind, str(cuts), seed, without]
        done = subprocess.run([*before, *command, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return Report(**json.loads(done.stdout))


if __name__ == "__main__":
    print(run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
