"""Bad input is one clear line on standard error, and nothing is written."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests.integration.cli.command import EXTENSIONS, Command, Done

HELLO = ("run", "hi", "--model", "script:hello.json")
TOOLS = "append_file, fetch_url, list_files, read_file, run_command, search_files, sql_read, write_file"
FORMS = "script:FILE, python:pkg.mod:attr, ADAPTER:MODEL or the NAME of a table of `models`"

# Each: what is wrong, the arguments, the settings, the exit code, the line.
BAD: list[tuple[str, tuple[str, ...], dict[str, Any], int, str]] = [
    ("no prompt", ("run", ""), {}, 2, "the prompt is empty"),
    ("no model", ("run", "hi"), {}, 2, "no model is configured: pass --model, or set model.adapter and model.name"),
    (
        "a model spec of no form",
        ("run", "hi", "--model", "gpt:"),
        {},
        2,
        f"the model 'gpt:' is not written as {FORMS}",
    ),
    (
        "an unknown model spec",
        ("run", "hi", "--model", "scrip:x"),
        {},
        2,
        (
            "model.adapter (argument): no adapter is named 'scrip' (did you mean 'script'?); "
            "known names: anthropic, local, openai, script"
        ),
    ),
    (
        "a missing script file",
        ("run", "hi", "--model", "script:none.json"),
        {},
        2,
        "cannot read the script 'none.json': No such file or directory",
    ),
    (
        "a script that is no JSON",
        ("run", "hi", "--model", "script:broken.json"),
        {},
        2,
        "the script 'broken.json' is not JSON, line 1 column 11: Expecting value",
    ),
    (
        "a malformed script",
        ("run", "hi", "--model", "script:wrong.json"),
        {},
        2,
        (
            "the script 'wrong.json' is wrong at /steps/0: a part is an object with one of the keys "
            "say, reason, call, fail, pause, cut, chunk"
        ),
    ),
    (
        "an address for a model that has none",
        (*HELLO, "--base-url", "http://127.0.0.1:1"),
        {},
        2,
        "--base-url goes with a model that is asked over HTTP; 'script:hello.json' is not",
    ),
    ("no workspace", (*HELLO, "--workspace", "gone"), {}, 2, "--workspace 'gone': there is no such directory"),
    (
        "a model in no module",
        ("run", "hi", "--model", "python:nowhere:Model"),
        {},
        2,
        "adapters.extra.python = 'nowhere:Model': there is no module 'nowhere'",
    ),
    (
        "a model that is none",
        ("run", "hi", "--model", f"python:{EXTENSIONS}:not_an_adapter"),
        {},
        2,
        f"adapters.extra.python = '{EXTENSIONS}:not_an_adapter': a int is no adapter: it has no `stream`",
    ),
    (
        "an unknown profile",
        (*HELLO, "--profile", "production"),
        {},
        2,
        "profile (argument): takes one of dev, test, prod",
    ),
    (
        "a misspelt environment variable",
        HELLO,
        {"persistance__kind": "sqlite"},
        2,
        "BEFOREHAND_PERSISTANCE__KIND: names no setting; did you mean BEFOREHAND_PERSISTENCE__KIND?",
    ),
    (
        "an unwritable database",
        HELLO,
        {"persistence__path": "hello.json/sessions.db"},
        3,
        "cannot use the store {directory}/hello.json/sessions.db: Not a directory",
    ),
    (
        "a database that is something else",
        HELLO,
        {"persistence__path": "hello.json"},
        3,
        "cannot use the store {directory}/hello.json: the file is not a database (SQLITE_NOTADB)",
    ),
    (
        "a session id with control characters",
        (*HELLO, "--session", "a\x1b[2J\nb"),
        {},
        2,
        "'a\\x1b[2J\\nb' is no valid id: an id holds no control characters and no unpaired surrogates",
    ),
    (
        "a listener order with an unknown name",
        HELLO,
        {"post_step__order": "usage,chekpoint,title"},
        2,
        (
            "post_step.order (BEFOREHAND_POST_STEP__ORDER): no post-step listener is named 'chekpoint' (did you mean "
            "'checkpoint'?); 'checkpoint' is missing, and a SemanticCheckpointPolicy needs it here; known names: "
            "checkpoint, title, usage"
        ),
    ),
    (
        "an unknown tool",
        (*HELLO, "--tools", "read_file,write"),
        {},
        2,
        f"tools.enabled (argument): no tool is named 'write' (did you mean 'write_file'?); known names: {TOOLS}",
    ),
    ("an unknown command", ("rum", "hi"), {}, 2, "No such command 'rum'. Did you mean 'run', 'resume'?"),
    (
        "an unknown option",
        (*HELLO, "--modle", "x"),
        {},
        2,
        "No such option: --modle (Possible options: --model, --profile)",
    ),
    (
        "a session where there is no store",
        ("show", "nobody"),
        {},
        3,
        "there is no store at {directory}/.beforehand/sessions.db yet; `beforehand run` makes one",
    ),
    (
        "a session to resume where there is no store",
        ("resume", "nobody", "go on", "--model", "script:hello.json"),
        {},
        3,
        "there is no store at {directory}/.beforehand/sessions.db yet; `beforehand run` makes one",
    ),
    (
        "no place in the list",
        ("sessions", "--after", "yesterday"),
        {},
        2,
        "--after 'yesterday' is no place in the list; take it from the end of a page",
    ),
    (
        "a head that is no digest",
        ("verify", "s", "--head", "12"),
        {},
        2,
        "--head '12' is no digest: 64 hexadecimal digits, as `verify` prints them",
    ),
    ("both a session and all", ("verify", "s", "--all"), {}, 2, "give a session's id, or --all"),
    ("a head of no session", ("verify", "--head", "00" * 32), {}, 2, "--head belongs to one session"),
    ("deleting half-heartedly", ("delete", "s"), {}, 2, "deleting 's' cannot be undone; say --yes to do it"),
]


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "line"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD]
)
def test_bad_input_is_one_line_and_nothing_is_written(
    beforehand: Command, arguments: tuple[str, ...], settings: dict[str, Any], code: int, line: str
) -> None:
    beforehand.script({"say": "Hello"}, name="hello")
    (beforehand.directory / "broken.json").write_text('{"steps": ')
    (beforehand.directory / "wrong.json").write_text('{"steps": [{"sya": "Hello"}]}')
    done = beforehand(*arguments, **settings)
    assert done == Done(code, "", f"beforehand: {line.format(directory=beforehand.directory)}\n")
    assert beforehand.is_untouched
    assert arguments[0] != "run" or not beforehand.database.exists()


def test_a_prompt_that_is_not_utf_8_is_refused(beforehand: Command) -> None:
    beforehand.script({"say": "Hello"}, name="hello")
    done = beforehand("run", "caf\udce9", "--model", "script:hello.json")
    assert done == Done(2, "", "beforehand: the prompt is not UTF-8\n")


def test_a_database_of_a_newer_schema_is_exit_5(beforehand: Command) -> None:
    model = beforehand.script({"say": "Hello"})
    beforehand("run", "hi", "--session", "s", "--model", model)
    path = beforehand.directory / ".beforehand/sessions.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    told = f"cannot use the store {path}: its schema is version 99, this build knows 1; use a newer build"
    for arguments in (("run", "hi", "--model", model), ("show", "s"), ("sessions",)):
        assert beforehand(*arguments) == Done(5, "", f"beforehand: {told}\n")
    assert path.read_bytes() == before


def test_a_corrupt_row_is_exit_5_and_changes_nothing(beforehand: Command) -> None:
    model = beforehand.script({"say": "Hello"})
    beforehand("run", "hi", "--session", "s", "--model", model)
    path = beforehand.directory / ".beforehand/sessions.db"
    database = sqlite3.connect(path)
    database.execute("UPDATE events SET data = replace(data, 'hi', 'ho') WHERE seq = 0")
    database.commit()
    database.close()
    told = "the log of session 's' is damaged at seq 0: the digest of batch 0 to 0 does not fit; nothing was changed"
    resumed = beforehand("resume", "s", "go on", "--model", model)
    assert resumed == Done(5, "", f"beforehand: {told}\n")
    shown = beforehand("show", "s")
    assert (shown.code, shown.err) == (5, f"beforehand: {told}\n")
    assert "     0  " in shown.out
    assert '"ho"' in shown.out
    assert beforehand("verify", "s") == Done(5, f"bad  s  {told}\n", "")


def test_a_deleted_session_cannot_be_begun_again(beforehand: Command) -> None:
    model = beforehand.script({"say": "Hello"})
    beforehand("run", "hi", "--session", "s", "--model", model)
    assert beforehand("delete", "s", "--yes") == Done(0, "", "session s is deleted\n")
    done = beforehand("run", "hi", "--session", "s", "--model", model)
    assert done == Done(2, "", "beforehand: session 's' was deleted; its id cannot be used again\n")
