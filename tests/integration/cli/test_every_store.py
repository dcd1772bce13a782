"""The commands that look and keep order, on each kind of store by settings alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from persistence.jsonl.directory import name_of
from persistence.sqlite.file import connect
from tests.integration.cli.command import Command, Done, tree
from tests.support.postgres import run_sql

READING = ("show s", "tail s", "verify s", "verify --all", "export s", "fork s", "prune --older-than 1d", "resume s")


@dataclass
class Store:
    """A kind of store, the command with its settings, and what spoils the row of one session in it."""

    kind: str
    command: Command
    spoil: Callable[[str], None]


@pytest.fixture(params=["postgres", "sqlite", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each durable kind, empty, or in a database that is."""
    kind: str = request.param
    settings: dict[str, object] = {"persistence__kind": kind, "write_behind_ms": "off"}
    if kind == "postgres":
        dsn: str = request.getfixturevalue("empty_postgres_dsn")
        settings["persistence__dsn"] = dsn
        spoil = "update beforehand.sessions set header = '[]' where id = $1"

    def on_disk(session_id: str) -> None:
        if kind == "jsonl":
            path = tmp_path / ".beforehand/sessions" / name_of(session_id)
            path.write_bytes(b"?" + path.read_bytes()[1:])
        elif kind == "sqlite":
            connection = connect(tmp_path / ".beforehand/sessions.db", "rw", 1)
            connection.execute("UPDATE sessions SET header = CAST(x'ff' AS TEXT) WHERE id = ?", (session_id,))
            connection.close()
        else:
            asyncio.run(run_sql(dsn, spoil.replace("$1", f"'{session_id}'")))

    return Store(kind, Command(tmp_path, **settings), on_disk)


def seed(command: Command, *sessions: str) -> None:
    for session_id in sessions:
        model = command.script({"say": "Hello"})
        assert command.inside("run", f"hi {session_id}", "--session", session_id, "--model", model).code == 0


def test_who_only_looks_makes_no_store(store: Store) -> None:
    """Not even an empty one; and says that there is none, and how one comes to be."""
    listed = store.command.inside("sessions")
    assert (listed.code, listed.out) == (0, "no sessions are stored here\n")
    assert listed.err.startswith("there is no store at ")
    assert "`beforehand run`" in listed.err
    assert store.command.inside("sessions", "--json") == Done(0, "", listed.err)
    for words in READING:
        assert store.command.inside(*words.split()) == Done(3, "", f"beforehand: {listed.err}")
    assert tree(store.command.directory) == {}
    if store.kind == "postgres":
        with pytest.raises(asyncpg.UndefinedTableError):
            asyncio.run(run_sql(str(store.command.settings["persistence__dsn"]), "select from beforehand.migrations"))


def test_a_bad_session_hides_no_other(store: Store) -> None:
    seed(store.command, "a", "b", "c")
    store.spoil("b")
    spoiled = name_of("b") if store.kind == "jsonl" else "b"
    verified = store.command.inside("verify", "--all")
    assert verified.code == 5
    assert sorted(line.split()[:2] for line in verified.out.splitlines()) == [
        ["bad", spoiled],
        ["ok", "a"],
        ["ok", "c"],
    ]
    listed = store.command.inside("sessions", "--json")
    assert listed.code == 0
    assert {row["id"] for row in listed.records} == {"a", spoiled, "c"}
    table = store.command.inside("sessions")
    assert table.code == 0
    if store.kind != "postgres":  # which keeps what a list shows apart from the header
        assert "damaged" in table.err
        assert [line.split()[0] for line in table.out.splitlines()] == ["session", "c", "a"]
        pruned = store.command.inside("prune", "--older-than", "0s", "--yes")
        assert (pruned.code, sorted(pruned.out.split())) == (0, ["a", "a", "c", "c", "hi", "hi"])
        assert pruned.err.startswith("beforehand: left as it is: ")
        assert pruned.err.endswith("\ndeleted 2 sessions\n")
    doctor = store.command.inside("doctor")
    assert doctor.code == (0 if store.kind == "postgres" else 5)


def test_an_export_is_the_same_from_every_store(store: Store, tmp_path: Path) -> None:
    seed(store.command, "s")
    exported = store.command.inside("export", "s")
    (tmp_path / "s.jsonl").write_text(exported.out)
    away = Command(tmp_path, persistence__kind="jsonl", persistence__directory="away")
    assert away.inside("import", "s.jsonl") == Done(0, "s\n", "")
    assert away.inside("export", "s") == exported
    assert json.loads(exported.out.splitlines()[-1]) == {"events": len(exported.out.splitlines()) - 2}
