"""`migrate` and `doctor`: whether the store is as this build needs it, and what to do if it is not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from app.entrypoints.escaping import one_line
from app.entrypoints.exits import DONE, UNAVAILABLE, code_of
from app.entrypoints.output import Output
from app.entrypoints.rows import every_row
from app.session.errors import PersistenceError
from app.session.health import Examinable, Finding
from app.session.identifiers import new_id
from app.session.values import encode

if TYPE_CHECKING:
    from app.session.persistence import SessionPersistence
    from containers.settings import Settings

_STYLES = {"ok": "green", "note": "yellow", "fault": "bold red"}
_MOST_OWNERS = 5


@runtime_checkable
class Migratable(Protocol):
    """A store with a schema that is brought up to date apart from opening it."""

    async def migrate(self) -> list[str]:
        """Apply what is missing; the names of what was applied."""
        ...

    async def missing_migrations(self) -> list[str]:
        """The names of what is not applied yet."""
        ...


def migrate(settings: Settings, output: Output, *, only_check: bool) -> int:
    """Apply the missing migrations, or with `only_check` name them. Raises as the store does."""
    from containers.application import build

    persistence = build(settings).persistence
    if not isinstance(persistence, Migratable):
        output.note((f"{persistence.kind} has nothing to migrate: it is made as it is opened", "dim"))
        return DONE
    with output.progress("migrating: others that migrate or write are waited for"):
        names = asyncio.run(persistence.missing_migrations() if only_check else persistence.migrate())
    what = "missing" if only_check else "applied"
    for name in names:
        if output.is_json:
            output.record(encode({what: name}))
        else:
            output.lines([((f"{what}  {name}", ""),)])
    if not names:
        output.note(("the schema is up to date", "dim"))
    return UNAVAILABLE if only_check and names else DONE


def doctor(settings: Settings, output: Output) -> int:
    """Look at the store without changing anything, a line for each thing; the exit code of the first fault."""
    from containers.application import build

    persistence = build(settings).persistence

    async def tell() -> int:
        faults: list[PersistenceError] = []
        with output.progress("looking at the store"):
            async for finding in _examine(persistence, output):
                _tell(finding, output)
                if finding.error is not None:
                    faults.append(finding.error)
        return code_of(faults[0]) if faults else DONE

    return asyncio.run(tell())


async def _examine(persistence: SessionPersistence, output: Output) -> AsyncIterator[Finding]:
    lasts = "acknowledged events survive a crash" if persistence.durable else "not durable: it ends with its process"
    yield Finding("store", f"{persistence.kind}, {lasts}", is_note=not persistence.durable)
    if isinstance(persistence, Examinable):
        is_well = True
        async for finding in persistence.examine():
            is_well = is_well and finding.error is None
            yield finding
        if not is_well:
            return
        missing = await persistence.missing()
        if missing is not None:  # opening would make it
            yield Finding("opening", str(missing), is_note=True)
            return
    try:
        await persistence.open()
    except PersistenceError as error:
        yield Finding.fault("opening", error)
        return
    try:
        started = time.perf_counter()
        await persistence.check_free(new_id())
        took_ms = (time.perf_counter() - started) * 1000
        yield Finding("opening", f"as at any start; then a session's row was looked for in {took_ms:.1f} ms")
        async for finding in _sessions(persistence, output):
            yield finding
    except PersistenceError as error:
        yield Finding.fault("reading", error)
    finally:
        await persistence.close()


async def _sessions(persistence: SessionPersistence, output: Output) -> AsyncIterator[Finding]:
    count = run_out = 0
    owners: Counter[str] = Counter()
    unreadable: list[PersistenceError] = []
    async for row in every_row(persistence):
        count += 1
        output.at(f"looking at the store: {count} sessions")
        if row.problem is not None:
            unreadable.append(row.problem)
        elif row.holder.owner is not None and row.holder.lease_left_s > 0:
            owners[row.holder.owner] += 1
        elif row.holder.owner is not None:
            run_out += 1
    yield Finding("sessions", f"{count} stored")
    named = [f"{one_line(owner)} ({number})" for owner, number in owners.most_common(_MOST_OWNERS)]
    more = f" and {len(owners) - _MOST_OWNERS} owners more" if len(owners) > _MOST_OWNERS else ""
    whose = f", by {', '.join(named)}{more}" if named else ""
    yield Finding("owned", f"{owners.total()} owned{whose}")
    if run_out:
        advice = "their owners stand idle or died; `beforehand resume ID` takes one over and closes its turn"
        yield Finding("run out", f"the leases of {run_out} have run out: {advice}", is_note=True)
    if unreadable:
        advice = f"`beforehand verify --all` names them; the first: {one_line(str(unreadable[0]))}"
        yield Finding("damage", f"{len(unreadable)} sessions cannot be read: {advice}", error=unreadable[0])


def _tell(finding: Finding, output: Output) -> None:
    if output.is_json:
        output.record(encode({"level": finding.level, "what": finding.what, "text": finding.text}))
    else:
        mark = (f"{finding.level:<7}", _STYLES[finding.level])
        output.lines([(mark, (f"{finding.what:<13}", "bold"), (one_line(finding.text), ""))])
