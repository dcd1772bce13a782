"""The real command in processes of its own, each test with a directory, a database and scripts to itself."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pytest

from app.entrypoints import cli
from app.entrypoints.documents import inspection_text
from app.entrypoints.output import Output
from app.session.errors import SessionExists
from app.session.inspection import Inspection
from app.session.ownership import this_owner
from app.session.store import SessionStore
from containers.lifespan import running
from containers.settings import Model, Persistence, Settings
from persistence.sqlite import SqlitePersistence

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(sys.executable).with_name("beforehand")
EXTENSIONS = "tests.integration.cli.extensions"


@dataclass(frozen=True, slots=True)
class Done:
    """What a finished command left: exit code and both outputs, whole."""

    code: int
    out: str
    err: str

    @property
    def records(self) -> list[Any]:
        """The lines of standard output, each of them JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """`beforehand`, run in `directory` with these settings (`persistence__path="x.db"`) and no others."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.settings = settings

    def __call__(self, *arguments: str, stdin: str = "", **settings: object) -> Done:
        """Run it to its end."""
        done = subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.directory,
            env=self.environment(settings),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def inside(self, *arguments: str, **settings: object) -> Done:
        """The same inside this process, which takes a tenth of the time: for what needs no process of its own."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.directory),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", ["beforehand", *arguments])
            patch.setattr(os, "environ", self.environment(settings))
            patch.setattr(Output, "_told", set())
            code = cli.main()
        return Done(code, out.getvalue(), err.getvalue())

    def start(self, *arguments: str, **settings: object) -> Running:
        """Start it, to be stopped by the test."""
        return Running([str(PROGRAM), *arguments], self.directory, self.environment(settings))

    def environment(self, settings: dict[str, object]) -> dict[str, str]:
        given = {f"BEFOREHAND_{name.upper()}": str(value) for name, value in {**self.settings, **settings}.items()}
        return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **given}

    def script(self, *steps: Any, name: str = "script") -> str:
        """A script file in the directory; what `--model` takes for it."""
        (self.directory / f"{name}.json").write_text(json.dumps({"steps": steps}))
        return f"script:{name}.json"

    def seed(self, *sessions: str) -> None:
        """A turn that answers `Hello` in each of these sessions, run inside this process: that is faster."""
        path = self.script({"when": {}, "answer": {"say": "Hello"}, "repeat": True}).removeprefix("script:")
        model = Model(adapter="script", name="script", script=self.directory / path)
        settings = Settings(persistence=Persistence(path=self.database), model=model, write_behind_ms=None)

        async def run() -> None:
            async with running(settings) as application:
                for session_id in sessions:
                    try:
                        agent = await application.agents.create(session_id)
                    except SessionExists:
                        agent = await application.agents.resume(session_id)
                    await agent.wait(agent.send(f"hi {session_id}"))
                    await agent.close()

        asyncio.run(run())

    def shown(self, session_id: str) -> dict[str, Any]:
        """What `show --json` prints of a session that is in order, asked for inside this process: that is faster."""

        async def inspect() -> Inspection:
            persistence = SqlitePersistence(self.database)
            await persistence.open()
            try:
                return await SessionStore(persistence, this_owner()).inspect(session_id)
            finally:
                await persistence.close()

        found = asyncio.run(inspect())
        assert found.problem is None
        shown: dict[str, Any] = json.loads(inspection_text(found))
        return shown

    @property
    def database(self) -> Path:
        return self.directory / ".beforehand/sessions.db"

    @property
    def is_untouched(self) -> bool:
        """Whether no session is stored here."""
        return not self.database.exists() or self("sessions", "--json") == Done(0, "", "")


class Running:
    """A command that runs; left, it is dead, whatever happened."""

    def __init__(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            arguments,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for(self, text: str) -> None:
        """Return once it has written a line with this text to standard error."""
        self.err += _read_until(self.process.stderr, lambda line: text in line)
        assert text in self.err, f"it ended before it wrote {text!r}:\n{self.err}"

    def wait_for_output(self, text: str) -> None:
        """The same for standard output, where the text need not end its line."""
        assert self.process.stdout is not None
        while text not in self.out:
            read = self.process.stdout.read(1)
            assert read, f"it ended before it wrote {text!r}:\n{self.out}"
            self.out += read

    def go_on(self) -> None:
        """Let it go on where it waits for its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def ended(self) -> Done:
        """All that it left, once it has ended by itself."""
        out, err = self.process.communicate()
        return Done(self.process.returncode, self.out + out, self.err + err)


def _read_until(stream: IO[str] | None, is_last: Callable[[str], bool]) -> str:
    assert stream is not None
    text = ""
    for line in stream:
        text += line
        if is_last(line):
            break
    return text


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, and every folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def types(shown: dict[str, Any]) -> list[str]:
    """The types of the stored events; runs of chunks as one `chunk*`, the reason of `turn/end` in braces."""
    names: list[str] = []
    for event in shown["events"]:
        if event["type"] == "assistant/chunk":
            names += [] if names[-1:] == ["chunk*"] else ["chunk*"]
        elif event["type"] == "turn/end":
            names.append(f"turn/end{{{event['data']['reason']}}}")
        else:
            names.append(event["type"])
    return names


def outcomes(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Each tool result: call id, and its value or its error's code."""
    results = [event["data"] for event in events if event["type"] == "tool/result"]
    return [(data["call_id"], data["error"]["code"] if data["is_error"] else data["value"]) for data in results]
