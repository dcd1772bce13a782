"""What is looked at before a database is used: that a commit is durable there, and that it holds our tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from app.session.errors import StoreUnusable
from persistence.postgres import migrate
from persistence.postgres.connecting import Connection, Link
from persistence.postgres.queries import with_schema

Standby: TypeAlias = Literal["on", "remote_apply"]

OLDEST = 140000
"""The oldest server that this was written for, as its server_version_num: 14."""

_SETTINGS = (
    "server_version_num",
    "server_encoding",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
)
_READ = "select name, current_setting(name) as value from unnest($1::text[]) as s (name)"
_ARE_THERE = """
select to_regclass('@schema@.sessions') is not null and to_regclass('@schema@.events') is not null
    and exists (
        select from pg_catalog.pg_proc
        where pronamespace = '@schema@'::regnamespace and proname = 'append_batch'
    )
"""


def levels(standby: Standby | None) -> tuple[str, ...]:
    """The values of synchronous_commit under which a commit is a checkpoint."""
    return ("remote_apply",) if standby == "remote_apply" else ("on", "remote_apply")


async def check_server(connection: Connection, where: str, standby: Standby | None) -> None:
    """Raises StoreUnusable, saying what to do, for a server on which what is acknowledged could be lost."""
    found: dict[str, str] = {row["name"]: row["value"] for row in await connection.fetch(_READ, _SETTINGS)}
    if int(found["server_version_num"]) < OLDEST:
        raise StoreUnusable(where, f"Postgres {OLDEST // 10_000} or newer is needed")
    if found["server_encoding"] != "UTF8":
        raise StoreUnusable(where, f"the database is encoded as {found['server_encoding']}; create one with UTF8")
    for name in ("fsync", "full_page_writes"):
        if found[name] != "on":
            raise StoreUnusable(where, f"{name} is {found[name]}, so a crash can lose what was committed; turn it on")
    if found["synchronous_commit"] not in levels(standby):
        wanted = " or ".join(levels(standby))
        raise StoreUnusable(
            where,
            f"synchronous_commit is {found['synchronous_commit']} for this user and database, "
            f"and has to be {wanted}: ALTER ROLE ... SET synchronous_commit = {levels(standby)[0]}",
        )
    if standby is not None and not found["synchronous_standby_names"]:
        raise StoreUnusable(where, "no standby has to confirm a commit; set synchronous_standby_names = 'ANY 1 (...)'")


async def check_schema(connection: Connection, where: str, schema: str) -> None:
    """Raises StoreUnusable for a schema that is missing, behind, ahead (UnsupportedSchema), or not whole."""
    missing: Sequence[str] = await migrate.check(connection, schema)
    if missing:
        raise StoreUnusable(where, f"the schema {schema!r} lacks {', '.join(missing)}; run `beforehand migrate`")
    if not await connection.fetchval(with_schema(_ARE_THERE, schema)):
        raise StoreUnusable(
            where, f"tables are missing from the schema {schema!r}, though its migrations ran; restore it"
        )


def check_cache(link: Link, where: str, statement_cache_size: int) -> None:
    """Raises StoreUnusable for prepared statements through a pooler, where the next statement meets another server."""
    if link.is_pooled and statement_cache_size:
        raise StoreUnusable(where, "a pooler stands in between; set persistence.statement_cache_size to 0")
