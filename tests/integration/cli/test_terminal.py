"""On a terminal: colours for people, and no way for a model's or a tool's text to take the terminal over."""

from __future__ import annotations

import os
import pty
import re
import subprocess

from tests.integration.cli.command import PROGRAM, Command, Done

COLOUR = re.compile("\x1b\\[[0-9;]*m")
HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\x9b31m\r\ttab"
HARMLESS = "\\x1b]0;owned\\x07\\x1b[2Jred\\x9b31m\\r\ttab"


def on_a_terminal(command: Command, *arguments: str) -> str:
    """What a terminal of 120 columns is sent, by both streams."""
    reading, writing = pty.openpty()
    environment = {**command.environment({}), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [PROGRAM, *arguments], cwd=command.directory, env=environment, stdin=writing, stdout=writing, stderr=writing
    )
    os.close(writing)
    sent = b""
    try:
        while read := os.read(reading, 65536):
            sent += read
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    finally:
        os.close(reading)
        process.wait()
    return sent.decode().replace("\r\n", "\n")


def in_a_pipe(command: Command, *arguments: str) -> str:
    """Standard output, byte for byte."""
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=command.directory, env=command.environment({}), capture_output=True, check=True
    )
    return done.stdout.decode()


def test_hostile_text_is_written_out_on_a_terminal_and_exact_in_a_pipe(beforehand: Command) -> None:
    model = beforehand.script({"when": {}, "answer": {"say": HOSTILE}, "repeat": True})
    sent = on_a_terminal(beforehand, "run", HOSTILE, "--session", "s", "--model", model)
    assert COLOUR.sub("", sent) == f"session s\n{HARMLESS}\n"
    assert in_a_pipe(beforehand, "run", HOSTILE, "--model", model) == f"{HOSTILE}\n"
    shown = on_a_terminal(beforehand, "show", "s")
    assert COLOUR.search(shown)
    assert "\x1b" not in COLOUR.sub("", shown)
    assert HARMLESS.replace("\t", "\\t") in COLOUR.sub("", shown)
    assert "\x1b" not in beforehand("show", "s").out


def test_a_hostile_error_or_call_is_written_out(beforehand: Command) -> None:
    model = beforehand.script({"call": HOSTILE, "id": HOSTILE}, {"fail": "AUTH", "message": HOSTILE})
    sent = COLOUR.sub("", on_a_terminal(beforehand, "run", "hi", "--session", "s", "--model", model))
    assert "\x1b" not in sent
    assert "\x9b" not in sent
    assert sent.endswith(f"turn 1 ended in error: AUTH: {HARMLESS}\n".replace("\t", "\\t"))


def test_a_line_about_the_turn_does_not_continue_the_answers_line(beforehand: Command) -> None:
    model = beforehand.script([{"say": "Hel"}, {"fail": "AUTH", "message": "no key"}])
    sent = on_a_terminal(beforehand, "run", "hi", "--session", "s", "--model", model)
    told = "beforehand: turn 1 ended in error: AUTH: no key"
    assert COLOUR.sub("", sent) == f"session s\nHel\n{told}\n"


def test_the_lines_of_a_timeline_fit_the_terminal(beforehand: Command) -> None:
    model = beforehand.script({"say": "日本語" * 200})
    beforehand("run", "x" * 500, "--session", "s", "--model", model)
    lines = COLOUR.sub("", on_a_terminal(beforehand, "show", "s")).splitlines()
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) == 120
    full = COLOUR.sub("", on_a_terminal(beforehand, "show", "s", "--full"))
    assert "x" * 500 in full


def test_a_long_operation_says_on_a_terminal_what_it_is_at_and_nowhere_else(beforehand: Command) -> None:
    beforehand.seed("a", "b")
    plain = in_a_pipe(beforehand, "verify", "--all")
    assert beforehand("verify", "--all") == Done(0, plain, "")
    sent = on_a_terminal(beforehand, "verify", "--all")
    assert sent.startswith("\r\x1b[Kverifying")
    drawn = re.compile("\r\x1b\\[K[^\r\n]*?(?=\r\x1b\\[K)")
    assert COLOUR.sub("", drawn.sub("", sent)).replace("\r\x1b[K", "") == plain
    for option in ("--quiet", "--json"):
        assert "\x1b[K" not in on_a_terminal(beforehand, "verify", "--all", option)


def test_an_error_does_not_continue_the_line_of_progress(beforehand: Command) -> None:
    beforehand.seed("s")
    sent = on_a_terminal(beforehand, "export", "nobody")
    told = "beforehand: session 'nobody' is not stored here; `beforehand sessions` lists those that are\n"
    assert COLOUR.sub("", sent).rpartition("\r\x1b[K")[2] == told
