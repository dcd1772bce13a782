"""`migrate` and `doctor`: whether the store is as this build needs it, and what to do if it is not."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from app.entrypoints.exits import DONE, UNAVAILABLE, code_of
from app.entrypoints.output import Output
from app.session.errors import PersistenceError
from app.session.identifiers import new_id
from app.session.values import encode

if TYPE_CHECKING:
    from app.session.persistence import SessionPersistence
    from containers.settings import Settings


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
    """Open the store as the service would, look something up, and close it; the exit code of the first failure."""
    from containers.application import build

    persistence = build(settings).persistence
    return asyncio.run(_examine(persistence, output))


async def _examine(persistence: SessionPersistence, output: Output) -> int:
    _tell(output, True, "kind", f"{persistence!r}")
    durable = "acknowledged events survive a crash" if persistence.durable else "not durable: it ends with the process"
    _tell(output, persistence.durable, "durability", durable)
    try:
        await persistence.open()
    except PersistenceError as error:
        _tell(output, False, "opening", str(error))
        return code_of(error)
    try:
        _tell(output, True, "opening", "it opened, and everything that a start checks is as it has to be")
        started = time.perf_counter()
        await persistence.check_free(new_id())
        took_ms = (time.perf_counter() - started) * 1000
        _tell(output, True, "looking up", f"a session's row was looked for in {took_ms:.1f} ms")
        newest = await persistence.list(1)
        _tell(output, True, "sessions", "there are some" if newest else "none is stored yet")
    except PersistenceError as error:
        _tell(output, False, "reading", str(error))
        return code_of(error)
    finally:
        await persistence.close()
    return DONE


def _tell(output: Output, is_good: bool, what: str, text: str) -> None:
    if output.is_json:
        output.record(encode({"ok": is_good, "what": what, "text": text}))
    else:
        mark = ("ok  ", "green") if is_good else ("!!  ", "bold red")
        output.lines([(mark, (f"{what:<12}", ""), (text, ""))])
