"""The schema: made once however many start, never changed behind anybody's back, refused unless it is exactly ours."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.session.errors import ConfigurationError, StoreUnusable, UnsupportedSchema
from persistence.contract import Writer
from persistence.postgres import PostgresPersistence, migrate
from tests.support.postgres import connect, run_sql

NAMES = [migration.name for migration in migrate.migrations()]
JOURNAL = "select version, name from beforehand.migrations order by version"
RELATIONS = """
select n.nspname, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname not like 'pg_%' and n.nspname <> 'information_schema' order by 1, 2
"""

STARTS = """
import asyncio, sys
from persistence.contract import Writer
from persistence.postgres import PostgresPersistence

async def main(dsn, name):
    store = PostgresPersistence(dsn, migrate_on_start=True, statement_cache_size=0)
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await Writer.new(store, name).write(2)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""

MIGRATES = """
import asyncio, sys
from pathlib import Path
from persistence.postgres import migrate
from tests.support.postgres import connect

async def main(dsn, folder):
    await migrate.migrate(await connect(dsn), "beforehand", migrate.migrations(Path(folder)))

asyncio.run(main(*sys.argv[1:]))
"""


async def child(script: str, *words: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = sys.executable, "-c", script, *words
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe)


def folder_with(folder: Path, **later: str) -> Path:
    """A folder of the real migrations and some that come after them."""
    for migration in migrate.migrations():
        (folder / f"{migration.name}.sql").write_text(migration.sql)
    for name, sql in later.items():
        (folder / f"{name.removeprefix('_')}.sql").write_text(sql)
    return folder


async def journal(dsn: str) -> list[str]:
    return [name for _, name in await run_sql(dsn, JOURNAL)]


async def test_eight_processes_that_start_at_once_migrate_once(empty_postgres_dsn: str) -> None:
    """MIG-01."""
    starters = [await child(STARTS, empty_postgres_dsn, f"s{n}") for n in range(8)]
    for starter in starters:
        assert starter.stdout is not None
        assert await starter.stdout.readline() == b"ready\n"
    await asyncio.gather(*(starter.communicate(b"go\n") for starter in starters))
    assert [starter.returncode for starter in starters] == [0] * 8
    assert await journal(empty_postgres_dsn) == NAMES
    store = PostgresPersistence(empty_postgres_dsn)
    await store.open()
    assert {row.session_id for row in await store.list(10)} == {f"s{n}" for n in range(8)}
    await store.close()


async def test_a_migration_that_was_killed_is_done_by_the_next_start(empty_postgres_dsn: str, tmp_path: Path) -> None:
    """MIG-02: the schema one version behind, and SIGKILL in the middle of the second migration."""
    sql = "create table @schema@.planted (a int);\nlock table public.gate;\ninsert into @schema@.planted values (1);\n"
    folder = folder_with(tmp_path, _0002_planted=sql)
    gate = await connect(empty_postgres_dsn)
    await gate.execute("create table public.gate ()")
    await gate.execute("begin")
    await gate.execute("lock table public.gate")
    killed = await child(MIGRATES, empty_postgres_dsn, str(folder))
    while not await gate.fetchval("select exists (select from pg_locks where not granted)"):
        pass
    killed.kill()
    await killed.wait()
    assert await journal(empty_postgres_dsn) == NAMES
    await gate.execute("rollback")
    known = migrate.migrations(folder)
    assert await migrate.migrate(gate, "beforehand", known) == ["0002_planted"]
    assert await migrate.migrate(gate, "beforehand", known) == []
    assert await journal(empty_postgres_dsn) == [*NAMES, "0002_planted"]
    assert await gate.fetch("select a from beforehand.planted") == [(1,)]
    await gate.close()


async def test_a_migration_that_fails_leaves_nothing_of_itself(empty_postgres_dsn: str, tmp_path: Path) -> None:
    sql = "create table @schema@.planted (a int);\nselect 1 / 0;\n"
    known = migrate.migrations(folder_with(tmp_path, _0002_broken=sql))
    connection = await connect(empty_postgres_dsn)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate.migrate(connection, "beforehand", known)
    assert await journal(empty_postgres_dsn) == NAMES
    assert await connection.fetchval("select to_regclass('beforehand.planted')") is None
    assert await migrate.check(connection, "beforehand", known) == ["0002_broken"]
    await connection.close()


async def test_starting_never_migrates_unless_it_was_told_to(empty_postgres_dsn: str) -> None:
    store = PostgresPersistence(empty_postgres_dsn)
    assert await store.missing_migrations() == NAMES
    with pytest.raises(StoreUnusable) as raised:
        await store.open()
    assert raised.value.reason == f"the schema 'beforehand' lacks {', '.join(NAMES)}; run `beforehand migrate`"
    assert await run_sql(empty_postgres_dsn, RELATIONS) == []
    assert await store.migrate() == NAMES
    assert await store.migrate() == []
    assert await store.missing_migrations() == []
    await store.open()
    await store.close()


SPOILED: dict[str, tuple[str, type[StoreUnusable], str]] = {
    "newer": (
        "insert into beforehand.migrations values (2, '0002_from_the_future', 'x')",
        UnsupportedSchema,
        "it is at version 2, this build knows 1; use a newer build",
    ),
    "a missing table": (
        "drop table beforehand.events",
        StoreUnusable,
        "tables are missing from the schema 'beforehand', though its migrations ran; restore it",
    ),
    "a changed file": (
        "update beforehand.migrations set checksum = 'x'",
        StoreUnusable,
        f"it was made by another {NAMES[0]} than this build has; restore that file",
    ),
    "a gap": (
        "update beforehand.migrations set version = 2",
        StoreUnusable,
        f"migration 2 ({NAMES[0]}) stands where {NAMES[0]} has to be",
    ),
    "synchronous_commit off": (
        "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$",
        StoreUnusable,
        (
            "synchronous_commit is off for this user and database, and has to be on or remote_apply: "
            "ALTER ROLE ... SET synchronous_commit = on"
        ),
    ),
}


@pytest.mark.parametrize("spoil", SPOILED)
async def test_what_cannot_be_used_is_refused_with_what_to_do_and_left_alone(postgres_dsn: str, spoil: str) -> None:
    """MIG-03."""
    statement, kind, reason = SPOILED[spoil]
    await run_sql(postgres_dsn, statement)
    before = await run_sql(postgres_dsn, RELATIONS)
    for migrates in (False, True) if spoil in ("newer", "a changed file", "a gap") else (False,):
        with pytest.raises(StoreUnusable) as raised:
            await PostgresPersistence(postgres_dsn, migrate_on_start=migrates).open()
        assert (type(raised.value), raised.value.reason) == (kind, reason)
    assert await run_sql(postgres_dsn, RELATIONS) == before


async def test_two_schemas_whatever_their_names_and_the_search_path_never_cross(empty_postgres_dsn: str) -> None:
    """MIG-04."""
    await run_sql(
        empty_postgres_dsn,
        "create schema decoy",
        "create table decoy.sessions (id text)",
        "create table decoy.events (id text)",
        "do $$ begin execute format('alter database %I set search_path = decoy', current_database()); end $$",
    )
    stores = {name: PostgresPersistence(empty_postgres_dsn, schema=name) for name in ("My-Schema", "my-schema", "x")}
    for store in stores.values():
        assert await store.migrate() == NAMES
        await store.open()
    writers = {name: Writer.new(store, "s", meta={"in": name}) for name, store in stores.items()}
    for count, writer in enumerate(writers.values(), start=1):
        await writer.write(count)
        await writer.write(count)
    for name, store in stores.items():
        await writers[name].check()
        await store.delete("s")
        assert await store.list(10) == []
        await store.close()
    assert (
        await run_sql(empty_postgres_dsn, "select id from decoy.sessions union all select id from decoy.events") == []
    )


async def test_a_schema_name_that_is_none_is_refused_before_any_connection() -> None:
    for name in ("", "1x", 'a"b', "a b", "a.b", "a;b", "x" * 64, "é", "a$b", "a\nb", "x\n"):
        with pytest.raises(ConfigurationError):
            PostgresPersistence("postgresql://nobody@localhost:1/x", schema=name)


async def test_migrating_beside_a_writer_disturbs_nobody(postgres_dsn: str) -> None:
    """MIG-05: also with starters that come one after another."""
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writer = Writer.new(store)
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            await writer.write(1)

    writing = asyncio.create_task(write())
    for _ in range(20):
        other = PostgresPersistence(postgres_dsn, migrate_on_start=True)
        await other.open()
        await other.close()
    done.set()
    await writing
    assert writer.seq > 20
    await writer.check()
    await store.close()


def test_files_that_are_misnamed_or_not_in_a_row_are_a_bug_of_the_build(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"x": ""}, {"_0003_gap": ""}, {"_0001_twice": ""}]
    for number, later in enumerate(wrong):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ValueError):
            migrate.migrations(folder_with(tmp_path / str(number), **later))
