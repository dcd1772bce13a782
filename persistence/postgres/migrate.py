"""Brings a schema up to date, and tells whether it is: numbered SQL files, each applied once, whole, and never changed.

Any number of processes may start at once. Each migration is a transaction that begins by waiting for a lock which ends
with it, so they take turns; whoever is killed in the middle leaves what the last finished one left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.session.errors import StoreUnusable, UnsupportedSchema
from persistence.postgres.connecting import Connection
from persistence.postgres.pool import transaction
from persistence.postgres.queries import quoted, with_schema

FOLDER = Path(__file__).with_name("migrations")

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_LOCK = "select pg_advisory_xact_lock(hashtextextended('beforehand migrations of ' || $1, 0))"
_PATIENCE_S = 600.0
"""For those before, and for what a migration has to rewrite."""
_HAS_SCHEMA = "select exists (select from pg_catalog.pg_namespace where nspname = $1)"
_HAS_JOURNAL = "select to_regclass($1) is not null"
_SCHEMA = "create schema @schema@"
_JOURNAL = """
create table @schema@.migrations (
    version    integer     primary key,
    name       text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""
_APPLIED = "select version, name, checksum from @schema@.migrations order by version"
_APPLY = "insert into @schema@.migrations (version, name, checksum) values ($1, $2, $3)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name, and the digest by which a change of it is seen."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations(folder: Path = FOLDER) -> list[Migration]:
    """Every migration of this build, in order. Raises ValueError for files misnamed, missing or there twice."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name} is not named NNNN_what_it_does.sql")
        found.append(Migration(int(match[1]), path.stem, path.read_text()))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations are not numbered 1, 2, ...: {[migration.name for migration in found]}")
    return found


async def migrate(connection: Connection, schema: str, known: Sequence[Migration] | None = None) -> list[str]:
    """Apply what is missing; the names of what was applied here. Raises StoreUnusable, having changed nothing more."""
    known = migrations() if known is None else known
    applied: list[str] = []
    while True:
        async with transaction(connection):
            await connection.execute(_LOCK, schema, timeout=_PATIENCE_S)
            if not await connection.fetchval(_HAS_SCHEMA, schema):
                await connection.execute(with_schema(_SCHEMA, schema))
            if not await _has_journal(connection, schema):
                await connection.execute(with_schema(_JOURNAL, schema))
            missing = await _missing(connection, schema, known)
            if not missing:
                return applied
            await connection.execute(with_schema(missing[0].sql, schema), timeout=_PATIENCE_S)
            await connection.execute(
                with_schema(_APPLY, schema), missing[0].version, missing[0].name, missing[0].checksum
            )
        # fp: postgres.migrated
        applied.append(missing[0].name)


async def check(connection: Connection, schema: str, known: Sequence[Migration] | None = None) -> list[str]:
    """The names of the migrations that are missing, changing nothing. Raises StoreUnusable for a schema not of ours."""
    known = migrations() if known is None else known
    if not await _has_journal(connection, schema):
        return [migration.name for migration in known]
    return [migration.name for migration in await _missing(connection, schema, known)]


async def _has_journal(connection: Connection, schema: str) -> bool:
    return bool(await connection.fetchval(_HAS_JOURNAL, f"{quoted(schema)}.migrations"))


async def _missing(connection: Connection, schema: str, known: Sequence[Migration]) -> Sequence[Migration]:
    where = f"schema {schema!r}"
    applied = await connection.fetch(with_schema(_APPLIED, schema))
    if len(applied) > len(known):
        raise UnsupportedSchema(
            where, f"it is at version {len(applied)}, this build knows {len(known)}; use a newer build"
        )
    for migration, (version, name, checksum) in zip(known, applied, strict=False):
        if (version, name) != (migration.version, migration.name):
            raise StoreUnusable(where, f"migration {version} ({name}) stands where {migration.name} has to be")
        if checksum != migration.checksum:
            raise StoreUnusable(
                where, f"it was made by another {migration.name} than this build has; restore that file"
            )
    return known[len(applied) :]
