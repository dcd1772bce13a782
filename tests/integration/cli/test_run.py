"""`run`: an answer on standard output, everything else on standard error, and a session that stays."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.session.errors import PersistenceUnavailable
from app.session.events import CATALOGUE
from tests.integration.cli.command import EXTENSIONS, PROGRAM, Command, Done, types

SAY_HELLO = {"say": "Hello there", "chunks": 3}
CALL = [
    {"say": "One moment."},
    {"call": "write_file", "arguments": {"path": "a.txt", "content": "text"}, "id": "c1"},
    {"call": "read_file", "arguments": {"path": "none"}, "id": "c2"},
]


def test_the_answer_goes_to_stdout_and_the_session_id_to_stderr(beforehand: Command) -> None:
    done = beforehand("run", "hi", "--model", beforehand.script(SAY_HELLO))
    session_id = done.err.removeprefix("session ").removesuffix("\n")
    assert re.fullmatch("[0-9a-f]{32}", session_id)
    assert done == Done(0, "Hello there\n", f"session {session_id}\n")
    assert types(beforehand.shown(session_id)) == [
        "inbox/accepted", "turn/start", "user/message", "step/start", "request/header",
        "chunk*", "assistant/message", "session/title", "step/end", "turn/end{completed}",
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["semantic", "turn_end", "every_event"])
def test_the_session_id_is_printed_when_the_prompt_is_durable_and_before_the_model_is_asked(
    beforehand: Command, policy: str
) -> None:
    done = beforehand("run", "hi", "--session", "s", "--model", f"python:{EXTENSIONS}:Reader", policy__kind=policy)
    assert done == Done(0, "read\n", "session s\nasked\n")
    first, *_ = beforehand.shown("s")["batches"]
    assert (first["last_seq"], first["reason"]) == (0, "caller")


def test_calls_and_their_failures_are_a_line_each_on_stderr(beforehand: Command) -> None:
    done = beforehand("run", "hi", "--session", "s", "--model", beforehand.script(CALL, {"say": "Written."}))
    assert done.code == 0
    assert done.out == "One moment.\nWritten.\n"
    assert done.err.splitlines() == [
        "session s",
        '  c1 write_file {"path": "a.txt", "content": "text"}',
        '  c2 read_file {"path": "none"}',
        "  c2 NOT_FOUND: 'none': No such file or directory",
    ]
    assert (beforehand.directory / "a.txt").read_text() == "text"


def test_what_a_failed_attempt_had_said_is_marked_as_void(beforehand: Command) -> None:
    model = beforehand.script([{"say": "Hel"}, {"fail": "SERVER", "message": "overloaded"}], SAY_HELLO)
    done = beforehand("run", "hi", "--session", "s", "--model", model, retry__base_ms=1)
    void = "  retry 1 of 2 in 1 ms, after SERVER: overloaded; the 3 characters above are void\n"
    assert done == Done(0, "Hel\nHello there\n", "session s\n" + void)


def test_a_turn_that_ends_in_error_says_why_and_exits_with_1(beforehand: Command) -> None:
    model = beforehand.script({"fail": "AUTH", "message": "no such\nkey"})
    done = beforehand("run", "hi", "--session", "s", "--model", model)
    assert done == Done(1, "", "session s\nbeforehand: turn 1 ended in error: AUTH: no such\\nkey\n")


def test_an_answer_cut_by_max_tokens_is_done_with_a_notice(beforehand: Command) -> None:
    model = beforehand.script([{"say": "Hel"}, {"chunk": {"kind": "finish", "reason": "max_tokens"}}])
    done = beforehand("run", "hi", "--session", "s", "--model", model)
    notice = "beforehand: the answer hit the limit of max_tokens and is cut there\n"
    assert done == Done(0, "Hel\n", "session s\n" + notice)


def test_a_prompt_comes_from_stdin(beforehand: Command) -> None:
    model = beforehand.script({"when": {"contains": "two\nlines"}, "answer": SAY_HELLO})
    done = beforehand("run", "-", "--session", "s", "--model", model, stdin="two\nlines\n")
    assert done == Done(0, "Hello there\n", "session s\n")
    assert beforehand.shown("s")["events"][0]["data"]["message"]["content"] == "two\nlines"


def test_a_session_that_is_there_is_gone_on_with(beforehand: Command) -> None:
    """LIF-07."""
    model = beforehand.script({"when": {"assistant_messages": 0}, "answer": SAY_HELLO}, {"say": "again"})
    beforehand("run", "hi", "--session", "s", "--model", model)
    length = len(beforehand.shown("s")["events"])
    model = beforehand.script({"when": {"assistant_messages": 1}, "answer": {"say": "again"}})
    done = beforehand("run", "hi", "--session", "s", "--model", model)
    assert done == Done(0, "again\n", "session s\n")
    second = beforehand.shown("s")["events"][length:]
    assert [event["data"]["turn"] for event in second if event["type"] == "turn/start"] == [2]
    assert [event["data"]["reason"] for event in second if event["type"] == "request/header"] == ["resume"]


def test_with_json_stdout_is_the_log_a_line_an_event(beforehand: Command) -> None:
    done = beforehand("run", "hi", "--session", "s", "--model", beforehand.script(CALL, SAY_HELLO), "--json")
    assert (done.code, done.err) == (0, "session s\n")
    assert done.records == beforehand.shown("s")["events"]
    assert {record["type"] for record in done.records} - {"session/title"} <= CATALOGUE.keys()


def test_a_model_is_an_instance_a_class_or_a_function(beforehand: Command) -> None:
    for attribute in ("reader", "Reader", "make_reader"):
        done = beforehand("run", "hi", "--model", f"python:{EXTENSIONS}:{attribute}")
        assert (done.code, done.out) == (0, "read\n")


def test_a_model_of_python_is_found_in_the_working_directory(beforehand: Command) -> None:
    (beforehand.directory / "mine.py").write_text(f"from {EXTENSIONS} import Reader as Mine")
    assert beforehand("run", "hi", "--model", "python:mine:Mine").out == "read\n"


def test_a_tool_that_returns_nan_is_a_result_that_says_so(beforehand: Command) -> None:
    model = beforehand.script({"call": "bad", "id": "c1"}, SAY_HELLO)
    tools = {"tools__extra__bad": f"{EXTENSIONS}:returns_nan"}
    done = beforehand("run", "hi", "--session", "s", "--model", model, **tools)
    assert (done.code, done.out) == (0, "Hello there\n")
    assert done.err.splitlines() == [
        "session s",
        "  c1 bad {}",
        '  c1 INVALID_TOOL_OUTPUT: the tool ran, but its result cannot be recorded: at "": NaN',
    ]
    assert [event["type"] for event in beforehand.shown("s")["events"]].count("tool/result") == 1


def test_a_store_that_refuses_the_prompt_is_exit_3_and_the_model_is_not_asked(beforehand: Command) -> None:
    done = beforehand("run", "hi", "--session", "s", "--model", f"python:{EXTENSIONS}:Reader", **refusing(0))
    told = PersistenceUnavailable(session_id="s", reason="the disk is full")
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines()[-1] == f"beforehand: {told}"
    assert "asked" not in done.err
    assert "session s\n" not in done.err
    assert beforehand.is_untouched


def test_a_turn_whose_end_is_not_stored_is_exit_3(beforehand: Command) -> None:
    done = beforehand("run", "hi", "--session", "s", "--model", f"python:{EXTENSIONS}:Reader", **refusing(2))
    told = PersistenceUnavailable(session_id="s", reason="the disk is full")
    assert (done.code, done.out) == (3, "read\n")
    assert done.err.splitlines() == [
        "session s",
        "asked",
        f"beforehand: {told}",
        "beforehand: session s: 5 events were never stored",
    ]
    assert types(beforehand.shown("s"))[-1] == "request/header"


def refusing(takes: int) -> dict[str, Any]:
    return {
        "persistence__kind": "refusing",
        "persistence__extra__refusing": f"{EXTENSIONS}:Refusing",
        "persistence__options__path": ".beforehand/sessions.db",
        "persistence__options__takes": takes,
    }


def test_a_reader_that_goes_away_does_not_end_the_turn(beforehand: Command) -> None:
    model = beforehand.script({"say": "a" * 200_000, "chunks": 20})
    arguments = [str(PROGRAM), "run", "hi", "--session", "s", "--model", model]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        arguments,
        cwd=beforehand.directory,
        env=beforehand.environment({}),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"session s\n")
    assert types(beforehand.shown("s"))[-1] == "turn/end{completed}"


def test_output_that_cannot_be_written_is_said_and_does_not_end_the_turn(beforehand: Command) -> None:
    arguments = [str(PROGRAM), "run", "hi", "--session", "s", "--model", beforehand.script(SAY_HELLO)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            arguments,
            cwd=beforehand.directory,
            env=beforehand.environment({}),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    told = "cannot write the output: No space left on device; `beforehand show` has all of it"
    assert (done.returncode, done.stderr) == (0, f"session s\nbeforehand: {told}\n")
    assert types(beforehand.shown("s"))[-1] == "turn/end{completed}"
