"""Help is quick, whole, and says what the exit codes mean."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.entrypoints import exits
from app.session import errors
from tests.integration.cli.command import Command

COMMANDS = [
    *("run", "resume", "sessions", "show", "tail", "verify", "fork", "export", "import", "delete", "prune"),
    *("explain", "tools", "migrate", "doctor", "config"),
]
HEAVY = ["asyncio", "containers", "dependency_injector", "persistence", "pydantic", "rich", "sqlite3"]


def test_help_names_every_command_and_the_exit_codes(beforehand: Command) -> None:
    for arguments in (("--help",), ()):
        done = beforehand(*arguments)
        assert (done.code, done.err) == (0, "")
        listed = done.out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == COMMANDS
        assert " ".join(done.out.split()).endswith(" ".join(exits.HELP.split()))
    assert not beforehand.database.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(beforehand: Command, command: str) -> None:
    done = beforehand(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: beforehand {command} ")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['beforehand', '--help']; from app.entrypoints.cli import main; main(); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command(beforehand: Command) -> None:
    done = subprocess.run([sys.executable, "-m", "app", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout == beforehand("--help").out


def test_every_error_of_ours_has_its_exit_code() -> None:
    codes = {
        cls.__name__: next(code for kind, code in exits._CODES if issubclass(cls, kind))
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.SessionError)
    }
    by_code = {code: sorted(name for name, given in codes.items() if given == code) for code in set(codes.values())}
    assert by_code[exits.HELD] == ["SequenceConflict", "SessionFenced", "SessionHeld"]
    assert by_code[exits.CORRUPT] == [
        "CorruptLog", "StoreRegressed", "UnknownEventType", "UnsupportedFormat", "UnsupportedSchema",
    ]  # fmt: skip
    assert by_code[exits.UNAVAILABLE] == [
        "FlushTimeout", "NoStore", "PersistenceError", "PersistenceUnavailable", "SessionNotLive", "StoreUnusable",
    ]  # fmt: skip
    assert exits.code_of(RuntimeError()) == exits.FAILED
