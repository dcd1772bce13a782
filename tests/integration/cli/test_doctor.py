"""`doctor`: what an operator is told of each kind of store, well and not well; and that looking changes nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.entrypoints import upkeep
from app.entrypoints.output import Output
from app.session.persistence import SessionPersistence
from containers.application import build
from containers.settings import Settings
from persistence.contract import Writer
from persistence.contract.samples import ALREADY_OVER
from persistence.jsonl.directory import name_of
from tests.integration.cli.command import Command, tree
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Server, run_sql
from tests.support.postgres_local import LocalServer

__all__ = ["pgbouncer"]

FILES = {"sqlite": ("path", "sessions.db"), "jsonl": ("directory", "sessions")}
GOOD = {
    "sqlite": "store file permissions room schema opening sessions owned",
    "jsonl": "store directory permissions room opening sessions owned",
    "postgres": "store server connections durability standby pooler clock privileges schema opening sessions owned",
}


def settings_of(kind: str, **persistence: Any) -> Settings:
    return Settings.model_validate({"persistence": {"kind": kind, **persistence}})


def in_files(kind: str, folder: Path) -> Settings:
    name, place = FILES[kind]
    return settings_of(kind, **{name: folder / place})


def examine(settings: Settings) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and of each line by what it is about: its level and its text."""
    out = io.StringIO()
    code = upkeep.doctor(settings, Output(is_json=True, out=out))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return code, {line["what"]: (line["level"], line["text"]) for line in lines}


def levels(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {what: level for what, (level, _) in found.items() if level != "ok"}


def store(settings: Settings, work: Callable[[SessionPersistence], Any]) -> None:
    """Do something with the store."""

    async def run() -> None:
        persistence = build(settings).persistence
        await persistence.open()
        await work(persistence)
        await persistence.close()

    asyncio.run(run())


async def three_sessions(persistence: SessionPersistence) -> None:
    """One that is owned, one whose lease has run out, one that was released."""
    for name, lease_s in (("owned", 1000.0), ("run out", ALREADY_OVER), ("released", 1000.0)):
        writer = Writer.new(persistence, name, lease_s=lease_s)
        await writer.write()
    await persistence.release("released", writer.epoch)


# ---------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", FILES)
def test_a_store_of_files_that_is_well(kind: str, tmp_path: Path) -> None:
    settings = in_files(kind, tmp_path)
    store(settings, three_sessions)
    before = tree(tmp_path)
    code, found = examine(settings)
    assert (code, list(found)) == (0, [*GOOD[kind].split(), "run out"])
    assert levels(found) == {"run out": "note"}
    assert found["sessions"][1] == "3 stored"
    assert found["owned"][1] == "1 owned, by anna (1)"
    assert "`beforehand resume ID` takes one over" in found["run out"][1]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", FILES)
def test_where_nothing_is_stored_yet_nothing_is_made(kind: str, tmp_path: Path) -> None:
    code, found = examine(in_files(kind, tmp_path))
    assert (code, levels(found)) == (0, {"opening": "note"})
    where = tmp_path / FILES[kind][1]
    assert found["opening"][1] == f"there is no store at {where} yet; `beforehand run` makes one"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FILES)
def test_what_others_may_read_and_a_disk_that_fills_up_are_noted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = in_files(kind, tmp_path)
    store(settings, three_sessions)
    shared = tmp_path / FILES[kind][1]
    shared = shared / name_of("owned") if kind == "jsonl" else shared
    shared.chmod(0o644)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_500_000))
    code, found = examine(settings)
    assert (code, levels(found)) == (0, {"permissions": "note", "room": "note", "run out": "note"})
    assert found["permissions"][1] == f"others than its owner may use {shared}; chmod go= unless that is meant"
    assert found["room"][1].startswith("only 1.5 MB are left; make room: ")


@pytest.mark.parametrize("kind", FILES)
def test_a_place_that_this_user_may_not_write_is_a_fault(kind: str, tmp_path: Path) -> None:
    settings = in_files(kind, tmp_path)
    store(settings, three_sessions)
    for path in (tmp_path / FILES[kind][1], *tmp_path.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    if os.geteuid() == 0:  # who may write everything
        for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        code, found = examine(settings)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
    assert (code, list(found)[-1]) == (3, "room" if kind == "jsonl" else "schema")
    assert found["permissions"][0] == "fault"
    assert f"may not read and write {tmp_path / FILES[kind][1]}; give it that right, or " in found["permissions"][1]


def test_a_file_of_another_program_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "sessions.db").write_text("my diary, not yours to touch")
    code, found = examine(in_files("sqlite", tmp_path))
    assert (code, levels(found)) == (3, {"permissions": "note", "schema": "fault"})
    assert found["schema"][1] == "the file is not a database (SQLITE_NOTADB)"


def test_a_file_that_tells_nothing_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    settings = in_files("jsonl", tmp_path)
    store(settings, three_sessions)
    (tmp_path / "sessions" / name_of("owned")).write_bytes(b"scribble\nscribble\n")
    code, found = examine(settings)
    assert (code, levels(found)) == (5, {"run out": "note", "damage": "fault"})
    assert found["sessions"][1] == "3 stored"
    assert found["damage"][1].startswith("1 sessions cannot be read: `beforehand verify --all` names them; the first: ")


def test_memory_is_noted_to_end_with_its_process() -> None:
    code, found = examine(settings_of("memory"))
    assert (code, levels(found)) == (0, {"store": "note"})


# ---------------------------------------------------------------------------------------- Postgres


def test_a_database_that_is_well(postgres_dsn: str) -> None:
    settings = settings_of("postgres", dsn=postgres_dsn)
    store(settings, three_sessions)
    code, found = examine(settings)
    assert (code, list(found)) == (0, [*GOOD["postgres"].split(), "run out"])
    assert levels(found) == {"run out": "note"}
    assert re.search(r": Postgres \d+\.\d+, database \w+, user \w+; it takes writes$", found["server"][1])
    assert re.match(r"the database's is \d+ ms (ahead of|behind) this machine's, give or take ", found["clock"][1])
    assert found["pooler"][1] == "none stands in between"


def test_an_empty_database_is_left_empty(empty_postgres_dsn: str) -> None:
    relations = "select count(*) from pg_namespace where nspname = 'beforehand'"
    for migrates, code, level in ((True, 0, "note"), (False, 3, "fault")):
        told, found = examine(settings_of("postgres", dsn=empty_postgres_dsn, migrate_on_start=migrates))
        assert told == code
        assert found["schema"][0] == level
        assert "`beforehand migrate`" in found["schema"][1]
    assert asyncio.run(run_sql(empty_postgres_dsn, relations)) == [(0,)]


FAULTS: dict[str, tuple[str, str, str, int]] = {
    "a newer schema": (
        "insert into beforehand.migrations values (99, '0099_from_the_future', 'x')",
        *("schema", "use a newer build", 5),
    ),
    "a table that is gone": ("drop table beforehand.events", "schema", "restore it", 3),
    "commits that are not synced": (
        "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$",
        *("durability", "ALTER ROLE ... SET synchronous_commit = on", 3),
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_wrong_with_a_database_is_told_with_what_to_do(postgres_dsn: str, kind: str) -> None:
    statement, what, advice, code = FAULTS[kind]
    if kind == "a newer schema":  # by one, whatever this build has
        statement = statement.replace("99,", "(select max(version) + 1 from beforehand.migrations),", 1)
    asyncio.run(run_sql(postgres_dsn, statement))
    told, found = examine(settings_of("postgres", dsn=postgres_dsn))
    assert (told, levels(found)) == (code, {what: "fault"})
    assert advice in found[what][1]


async def test_a_user_who_lacks_privileges_is_told_which(postgres_dsn: str) -> None:
    role = f"clerk_{os.urandom(4).hex()}"
    await run_sql(postgres_dsn, f"create role {role} login password 'secret'")
    as_clerk = f"{postgres_dsn}{'&' if '?' in postgres_dsn else '?'}user={role}&password=secret"
    try:
        for grant, lacking in (
            ("select", "usage on schema beforehand"),
            (f"grant usage on schema beforehand to {role}", "delete on events, insert on events, insert on sessions"),
            (f"grant select, insert, update, delete on all tables in schema beforehand to {role}", None),
        ):
            await run_sql(postgres_dsn, grant)
            code, found = await asyncio.to_thread(examine, settings_of("postgres", dsn=as_clerk))
            if lacking is None:
                assert (code, levels(found)) == (0, {})
            else:
                assert (code, found["privileges"][0]) == (3, "fault")
                assert lacking in found["privileges"][1]
                assert f"; grant them to {role}, or connect as " in found["privileges"][1]
    finally:
        await run_sql(postgres_dsn, f"drop owned by {role}", f"drop role {role}")


def test_a_pooler_in_between_is_told_with_the_setting_to_change(pgbouncer: Server, postgres_dsn: str) -> None:
    pooled = pgbouncer.to(postgres_dsn.partition("?")[0].rpartition("/")[2])
    code, found = examine(settings_of("postgres", dsn=pooled))
    assert (code, levels(found)) == (3, {"pooler": "fault"})
    assert found["pooler"][1] == "a pooler stands in between; set persistence.statement_cache_size to 0"
    code, found = examine(settings_of("postgres", dsn=pooled, statement_cache_size=0))
    assert (code, levels(found)) == (0, {})
    assert found["pooler"][1] == "one stands in between, and statement_cache_size is 0"


def test_a_server_that_would_lose_what_was_committed_is_a_fault() -> None:
    """The self check at a start, and what the doctor says of the same server."""
    with LocalServer({"full_page_writes": "off"}) as server:
        code, found = examine(settings_of("postgres", dsn=server.dsn()))
        assert (code, found["durability"][0]) == (3, "fault")
        assert "full_page_writes is off, so a crash can lose what was committed; turn it on" in found["durability"][1]


# ---------------------------------------------------------------------------------------- the command


def test_the_command_prints_a_line_for_each_and_never_the_password(beforehand: Command) -> None:
    beforehand.seed("s")
    done = beforehand("doctor")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [["ok", what] for what in GOOD["sqlite"].split()]
    done = beforehand("doctor", persistence__kind="postgres", persistence__dsn="postgresql://me:canary@127.0.0.1:1/db")
    assert (done.code, done.err) == (3, "")
    assert done.out.splitlines()[-1].startswith("fault  server       ")
    assert "is persistence.dsn right" in done.out
    assert "canary" not in done.out
