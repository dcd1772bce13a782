"""What the documentation says of stores is so: one of one's own, backups, and another kind by nothing but settings."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.session.persistence import SessionPersistence
from app.session.verification import verify
from examples.demo import Stage, killed_after_the_effect
from persistence.contract import Writer
from persistence.jsonl import JsonlPersistence
from persistence.sqlite import SqlitePersistence
from tests.integration.cli.command import ROOT, Command

BACKENDS, OPERATIONS = ((ROOT / "docs" / name).read_text() for name in ("backends.md", "operations.md"))


@pytest.fixture
def stores(tmp_path: Path, postgres_dsn: str) -> dict[str, dict[str, str]]:
    """For each shipped kind the environment that chooses it. They have all the rest in common."""
    places = {
        "BEFOREHAND_PERSISTENCE__PATH": str(tmp_path / "sessions.db"),
        "BEFOREHAND_PERSISTENCE__DIRECTORY": str(tmp_path / "sessions"),
        "BEFOREHAND_PERSISTENCE__DSN": postgres_dsn,
        "BEFOREHAND_LEASE_S": "3",  # a lease on a database outlives its owner
        "BEFOREHAND_LEASE_MARGIN_S": "1",
    }
    kinds = ("memory", "sqlite", "jsonl", "postgres")
    return {kind: {**places, "BEFOREHAND_PERSISTENCE__KIND": kind} for kind in kinds}


# ---------------------------------------------------------------------------------------- by settings alone

PROGRAM = """
import asyncio
from app.session.errors import SessionExists
from containers.lifespan import running
from containers.settings import load_settings

async def main():
    async with running(load_settings()) as application:
        agent, sessions = await application.agents.create("s"), application.sessions
        for text in ("hi", "and again"):
            outcome = await agent.wait(agent.send(text))
            print(outcome.reason, outcome.durable)
        await agent.close()
        child = await sessions.fork("s", new_id="child")
        try:
            await sessions.create("s")
        except SessionExists as error:
            print(error)
        for session_id in ("s", child):
            found = await sessions.inspect(session_id)
            print(*((event.seq, event.type, event.text) for event in found.events), sep="\\n")
            print(*((end.seq, end.reason) for end in found.ends), found.problem, found.open_calls)
        print([(row.session_id, row.next_seq, row.title, row.holder.owner) for row in await sessions.list()])
        await sessions.delete("s")
        print([row.session_id for row in await sessions.list()])

asyncio.run(main())
"""


def test_the_same_program_does_the_same_on_each_kind(tmp_path: Path, stores: dict[str, dict[str, str]]) -> None:
    """The message ids are random; nothing else differs."""
    script = Command(tmp_path).script({"when": {}, "answer": {"say": "Hello"}, "repeat": True})
    model = {
        "BEFOREHAND_MODEL__ADAPTER": "script",
        "BEFOREHAND_MODEL__NAME": "m",
        "BEFOREHAND_MODEL__SCRIPT": script.removeprefix("script:"),
        "BEFOREHAND_WRITE_BEHIND_MS": "off",
    }
    printed: dict[str, str] = {}
    for kind, chosen in stores.items():
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **model, **chosen}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        printed[kind] = re.sub(r"[0-9a-f]{32}", "ID", done.stdout)
    assert printed["memory"].count("turn/end") == 4
    assert printed == dict.fromkeys(printed, printed["memory"])


@pytest.mark.timeout(400)  # a dozen processes, one after another
def test_the_demo_tells_the_same_story_on_each_kind_that_outlives_a_kill(
    tmp_path: Path, stores: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, str] = {}
    for kind in ("sqlite", "jsonl", "postgres"):
        killed_after_the_effect(
            Stage(tmp_path / kind, stores[kind] | {"BEFOREHAND_PERSISTENCE__PATH": f"{tmp_path}/d.db"})
        )
        told[kind] = re.sub(
            r"\d\d:\d\d:\d\d\.\d{3}|(?<=created  ).*|(?<=owner    ).*|(?<=head     ).*|[0-9a-f]{32}|waiting for .*\n",
            "",
            capsys.readouterr().out,
        )
    assert "TOOL_OUTCOME_UNKNOWN" in told["sqlite"]
    assert told == dict.fromkeys(told, told["sqlite"])


# ---------------------------------------------------------------------------------------- docs/backends.md


def test_a_store_of_ones_own_is_named_and_proved_as_the_documentation_says(tmp_path: Path) -> None:
    variables = dict(re.findall(r"^export BEFOREHAND_(\w+)=(.+)$", BACKENDS, re.MULTILINE))
    own = Command(tmp_path, **{name.lower(): value for name, value in variables.items()})
    assert own.inside("run", "hi", "--session", "s", "--model", own.script({"say": "Hello"})).out == "Hello\n"
    assert own.inside("verify", "--all").out.startswith("ok   s  11 events, ")
    assert len(list((tmp_path / "documents").glob("*.json"))) == 1
    (proof,) = re.findall(r"```python\n(.*?)```", BACKENDS, re.DOTALL)
    assert proof in (ROOT / "tests/contracts/test_own_store.py").read_text()


# ---------------------------------------------------------------------------------------- docs/operations.md


def shape(report: str) -> list[str]:
    """Its lines with the numbers and the path taken out."""
    return re.sub(r"/\S+sessions\.db|[\d.]+(?: [kMG]?B)?|user \w+", "_", report).splitlines()


def test_the_doctor_says_what_the_documentation_shows(beforehand: Command) -> None:
    async def store() -> None:
        persistence = SqlitePersistence(beforehand.database)
        await persistence.open()
        for name, lease_s in (("owned", 1000.0), ("run out", -1.0), ("released", 1000.0)):
            writer = Writer.new(persistence, name, lease_s=lease_s)
            await writer.write()
        await persistence.release("released", writer.epoch)
        await persistence.close()

    asyncio.run(store())
    (shown,) = re.findall(r"```text\n(ok     store.*?\n)```", OPERATIONS, re.DOTALL)
    assert shape(beforehand.inside("doctor").out) == shape(shown)


async def test_a_store_of_files_is_copied_while_it_is_written(tmp_path: Path) -> None:
    """As the documentation says it: what was acknowledged before the copy began is in it, and it verifies."""

    def copy(kind: str) -> None:
        if kind == "sqlite":
            with closing(sqlite3.connect(tmp_path / "sqlite")) as connection:
                connection.execute("VACUUM INTO ?", (str(tmp_path / "sqlite copy"),))
        else:
            shutil.copytree(tmp_path / "jsonl", tmp_path / "jsonl copy")

    kinds: dict[str, type[SessionPersistence]] = {"sqlite": SqlitePersistence, "jsonl": JsonlPersistence}
    for kind, make in kinds.items():
        store = make(tmp_path / kind)  # type: ignore[call-arg]  # both take the place first
        await store.open()
        writer = Writer.new(store, "s")
        await writer.write(100)
        copying = asyncio.create_task(asyncio.to_thread(copy, kind))
        while not copying.done():
            await writer.write(1)
        await copying
        await store.close()
        again = make(tmp_path / f"{kind} copy")  # type: ignore[call-arg]
        await again.open()
        log = await again.read("s")
        verify(log, {})
        assert log.events == tuple(writer.events[: len(log.events)])
        assert len(log.events) >= 100
        await again.close()
