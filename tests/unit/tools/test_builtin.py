"""The built-in tools, called as a model calls them: by name and JSON, through the tool service."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cancel import CancelSignal
from app.session.values import encode
from app.tools import command, files
from app.tools.builtin import workspace_tools
from app.tools.files import matches
from app.tools.service import ToolService
from app.tools.tool_set import ToolSet
from app.tools.types import ToolExecution, ToolResult
from app.tools.workspace_path import WorkspacePath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def call(root):
    """Calls a tool by name; the value, or (code, message)."""
    service = ToolService(ToolSet(workspace_tools(root)))

    async def call(name: str, signal: CancelSignal | None = None, /, **arguments) -> Any:
        return answer(await service.execute(execution(name, arguments, signal)))

    return call


def execution(name: str, arguments: object, signal: CancelSignal | None = None) -> ToolExecution:
    return ToolExecution(name, json.dumps(arguments), "c1", signal=signal or CancelSignal())


def answer(result: ToolResult) -> Any:
    return result.value if result.failure is None else (result.failure.code, result.failure.message)


def put(root: Path, **texts: str | bytes) -> None:
    for path, text in texts.items():
        place = root / path.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)


def found_lines(*lines: tuple[str, int, str], truncated: bool = False, **numbers: Any) -> dict[str, Any]:
    return {
        "matches": [dict(zip(("path", "line", "text"), line, strict=True)) for line in lines],
        "truncated": truncated,
        "problems": [],
        "files_searched": 0,
        "files_skipped": 0,
        **numbers,
    }


def test_each_tool_declares_its_effects_and_whether_bodies_may_overlap(root):
    assert [
        (tool.name, tool.effects, tool.is_parallel_safe({}), tool.timeout_s, tool.reconcile)
        for tool in workspace_tools(root)
    ] == [
        ("list_files", "read_only", True, None, None),
        ("read_file", "read_only", True, None, None),
        ("search_files", "read_only", True, None, None),
        ("write_file", "idempotent", False, None, None),
        ("append_file", "side_effect", False, None, None),
        ("run_command", "side_effect", False, None, None),
    ]


def test_each_tool_and_each_parameter_is_described_and_the_execution_is_not_told(root):
    for tool in workspace_tools(root):
        properties = tool.input_schema["properties"]
        assert len(tool.description) > 80
        assert all(parameter["description"] for parameter in properties.values())
        assert "execution" not in properties

    assert {tool.name: tool.input_schema.get("required", []) for tool in workspace_tools(root)} == {
        "list_files": [],
        "read_file": ["path"],
        "search_files": ["text"],
        "write_file": ["path", "content"],
        "append_file": ["path", "content"],
        "run_command": ["argv"],
    }


def test_making_the_tools_touches_no_file(tmp_path):
    workspace_tools(tmp_path / "not" / "there")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_files", {}),
        ("read_file", {}),
        ("search_files", {"text": "x"}),
        ("write_file", {"content": "x"}),
        ("append_file", {"content": "x"}),
    ],
)
async def test_no_tool_leaves_the_workspace(name, arguments, call, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("x")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside" / "x")

    for path in ["../outside/x", f"{tmp_path}/outside/x", "link/x", "link", "file", "a/../../outside"]:
        code, message = await call(name, path=path, **arguments)
        assert (code, message[0]) == ("PATH_OUTSIDE_WORKSPACE", "'")
    assert {path.name: path.read_text() for path in (tmp_path / "outside").iterdir()} == {"x": "x"}
    assert sorted(path.name for path in root.iterdir()) == ["file", "link"]


# ------------------------------------------------------------------------------------------ list_files


async def test_listing_gives_path_kind_and_size_sorted_by_name(call, root):
    put(root, b__c_dot_txt="12345", a_dot_txt="", _dot_git__config="x")
    (root / "link").symlink_to("a.txt")

    assert await call("list_files") == {
        "entries": [
            {"path": ".git", "kind": "directory", "size": None},
            {"path": "a.txt", "kind": "file", "size": 0},
            {"path": "b", "kind": "directory", "size": None},
            {"path": "link", "kind": "symlink", "size": None},
        ],
        "truncated": False,
        "problems": [],
    }
    assert [entry["path"] for entry in (await call("list_files", path="b"))["entries"]] == ["b/c.txt"]
    assert [entry["path"] for entry in (await call("list_files", recursive=True))["entries"]] == [
        ".git",
        "a.txt",
        "b",
        "b/c.txt",
        "link",
    ]


async def test_listing_what_is_no_directory_is_refused(call, root):
    put(root, a_dot_txt="a")

    assert await call("list_files", path="a.txt") == ("NOT_A_DIRECTORY", "'a.txt' is a file, not a directory")
    assert await call("list_files", path="none") == ("NOT_FOUND", "'none': No such file or directory")


@pytest.mark.parametrize(("limit", "names", "truncated"), [(3, "abc", False), (2, "ab", True)])
async def test_listing_ends_at_its_limit_and_says_so_only_if_there_is_more(limit, names, truncated, call, root):
    put(root, a="", b="", c="")

    answer = await call("list_files", limit=limit)

    assert ("".join(entry["path"] for entry in answer["entries"]), answer["truncated"]) == (names, truncated)


async def test_listing_is_bounded_in_bytes_and_in_what_it_looks_at(call, root, monkeypatch):
    put(root, a="", b="", c="", d="")
    monkeypatch.setattr(files, "MAX_ANSWER_BYTES", 3)
    by_bytes = await call("list_files")
    monkeypatch.undo()
    monkeypatch.setattr(files, "MAX_ENTRIES", 2)
    by_entries = await call("list_files", glob="[bd]")

    assert ([entry["path"] for entry in by_bytes["entries"]], by_bytes["truncated"]) == (["a", "b", "c"], True)
    assert ([entry["path"] for entry in by_entries["entries"]], by_entries["truncated"]) == (["b"], True)


async def test_listing_tells_which_directory_it_could_not_enter(call, root, monkeypatch):
    put(root, a__1="", b__2="", c__3="")
    really_open = os.open

    def refuse_b(name, *arguments, **keywords):
        if name == "b":
            raise PermissionError(13, "Permission denied")
        return really_open(name, *arguments, **keywords)

    monkeypatch.setattr(os, "open", refuse_b)
    answer = await call("list_files", recursive=True)

    assert [entry["path"] for entry in answer["entries"]] == ["a", "a/1", "b", "c", "c/3"]
    assert (answer["truncated"], answer["problems"]) == (True, ["'b': Permission denied"])


@pytest.mark.parametrize(
    ("glob", "meant"),
    [
        (None, "a.py b.txt src src/a.py src/x src/x/a.py src/x/y src/x/y/test_1.py"),
        ("*.py", "a.py src/a.py src/x/a.py src/x/y/test_1.py"),
        ("/*.py", "a.py"),
        ("./*.py", "a.py"),
        ("src/*.py", "src/a.py"),
        ("src/**/*.py", "src/a.py src/x/a.py src/x/y/test_1.py"),
        ("**/x/*", "src/x/a.py src/x/y"),
        ("src/**", "src src/a.py src/x src/x/a.py src/x/y src/x/y/test_1.py"),
        ("**/test_[0-9].p?", "src/x/y/test_1.py"),
        ("[ab].*", "a.py b.txt src/a.py src/x/a.py"),
        ("A.PY", ""),
        ("src", "src"),
        ("src/", "src"),
        ("../*", ""),
    ],
)
async def test_a_pattern_without_a_slash_is_for_names_and_one_with_it_for_paths(glob, meant, call, root):
    put(root, a_dot_py="", b_dot_txt="", src__a_dot_py="", src__x__a_dot_py="", src__x__y__test_1_dot_py="")

    answer = await call("list_files", recursive=True, glob=glob)

    assert [entry["path"] for entry in answer["entries"]] == meant.split()


def test_no_pattern_makes_matching_slow():
    deep = WorkspacePath(("a" * 250,) * 200)

    for glob in ["/".join(["**", "*"] * 200) + "/b", "*a" * 400 + "b", "/".join(["**"] * 500) + "/b", "[!]" * 300]:
        assert not matches(glob, deep)


# ------------------------------------------------------------------------------------------ read_file


async def test_reading_gives_the_text_as_it_is(call, root):
    text = "one\r\ntwo\n\nfünf \u2028 \0 \ufeff no end"
    put(root, a_dot_txt=text)

    assert await call("read_file", path="a.txt") == {
        "path": "a.txt",
        "text": text,
        "offset": 0,
        "lines": 4,
        "truncated": False,
        "next_offset": None,
    }


async def test_reading_on_from_each_answer_gives_the_whole_file(call, root):
    text = "".join(f"line {number}\n" for number in range(25))
    put(root, a_dot_txt=text)

    pieces, offset = [], 0
    while offset is not None:
        piece = await call("read_file", path="a.txt", offset=offset, limit=10)
        pieces.append((piece["offset"], piece["lines"], piece["truncated"], piece["next_offset"]))
        text = text.removeprefix(piece["text"])
        offset = piece["next_offset"]

    assert pieces == [(0, 10, True, 10), (10, 10, True, 20), (20, 5, False, None)]
    assert text == ""


async def test_a_last_line_at_the_limit_is_not_called_truncated_and_an_offset_past_the_end_gives_nothing(call, root):
    put(root, a_dot_txt="1\n2\n")
    nothing = {"path": "a.txt", "text": "", "lines": 0, "truncated": False, "next_offset": None}

    assert (await call("read_file", path="a.txt", limit=2))["truncated"] is False
    assert await call("read_file", path="a.txt", offset=2) == {**nothing, "offset": 2}
    assert await call("read_file", path="a.txt", offset=10**30) == {**nothing, "offset": 10**30}


async def test_an_answer_over_the_size_limit_ends_after_a_whole_line(call, root, monkeypatch):
    monkeypatch.setattr(files, "MAX_ANSWER_BYTES", 10)
    put(root, exact="12345\n789\n", over="12345\n7890\n")

    exact, over = [await call("read_file", path=path) for path in ("exact", "over")]

    assert (exact["text"], exact["truncated"], exact["next_offset"]) == ("12345\n789\n", False, None)
    assert (over["text"], over["truncated"], over["next_offset"]) == ("12345\n", True, 1)


@pytest.mark.parametrize(
    ("content", "text", "next_offset"),
    [
        ("1234567890123\nnext\n", "1234567890", 1),
        ("1234567890\nnext\n", "1234567890", 1),
        ("1234567890", "1234567890", None),
        ("12345678901", "1234567890", None),
        ("123456789€12\nnext\n", "123456789", 1),
        ("12345678€€", "12345678", None),
        ("x" * 200_000 + "\nnext\n", "x" * 10, 1),
    ],
)
async def test_a_line_longer_than_an_answer_loses_its_end_but_no_half_character_is_given(
    content, text, next_offset, call, root, monkeypatch
):
    monkeypatch.setattr(files, "MAX_ANSWER_BYTES", 10)
    put(root, a_dot_txt=content)

    answer = await call("read_file", path="a.txt")

    assert (answer["text"], answer["lines"], answer["next_offset"]) == (text, 1, next_offset)
    assert answer["truncated"] is (content != text)
    if next_offset is not None:
        assert (await call("read_file", path="a.txt", offset=next_offset))["text"] == "next\n"


@pytest.mark.parametrize("content", [b"caf\xe9\n", b"\xff\xfeU\0T\0F\0", b"ends early \xe2\x82", b"\xed\xa0\x80"])
async def test_a_file_that_is_not_utf8_is_refused(content, call, root):
    put(root, a_dot_bin=content)

    assert await call("read_file", path="a.bin") == ("NOT_TEXT", "'a.bin' is not UTF-8 text")


async def test_the_largest_answer_of_the_worst_characters_fits_the_limit_of_a_result(call, root):
    put(root, a_dot_txt="\x01" * 300_000)

    answer = await call("read_file", path="a.txt")

    assert len(answer["text"]) == files.MAX_ANSWER_BYTES
    assert len(encode(answer)) < 4 * 1024 * 1024 / 2


@pytest.mark.parametrize(
    ("name", "arguments", "place"),
    [
        ("read_file", {"path": "a", "offset": -1}, "/offset"),
        ("read_file", {"path": "a", "limit": 0}, "/limit"),
        ("read_file", {"path": None}, "/path"),
        ("list_files", {"limit": 2001}, "/limit"),
        ("list_files", {"glob": "x" * 1001}, "/glob"),
        ("search_files", {"text": ""}, "/text"),
        ("run_command", {"argv": []}, "/argv"),
        ("run_command", {"argv": "ls -l"}, "/argv"),
        ("run_command", {"argv": ["ls"], "timeout_s": 0}, "/timeout_s"),
        ("run_command", {"argv": ["ls"], "timeout_s": 3601}, "/timeout_s"),
        ("write_file", {"path": "a", "content": "", "mode": "w"}, "/mode"),
    ],
)
async def test_arguments_outside_their_bounds_are_refused_with_their_place(name, arguments, place, call):
    code, message = await call(name, **arguments)

    assert (code, f'at "{place}"' in message) == ("INVALID_ARGUMENTS", True)


# ------------------------------------------------------------------------------------------ write_file, append_file


async def test_writing_and_appending_tell_the_size_in_bytes(call, root):
    answers = [
        await call("write_file", path="./notes//a.txt", content="ä\r\n"),
        await call("write_file", path="notes/a.txt", content=""),
        await call("append_file", path="notes/a.txt", content="é\n"),
        await call("append_file", path="log.txt", content="1"),
    ]

    assert answers == [
        {"path": "notes/a.txt", "size": 4, "replaced": False},
        {"path": "notes/a.txt", "size": 0, "replaced": True},
        {"path": "notes/a.txt", "size": 3},
        {"path": "log.txt", "size": 1},
    ]
    assert ((root / "notes/a.txt").read_bytes(), (root / "log.txt").read_bytes()) == ("é\n".encode(), b"1")


async def test_half_a_character_cannot_be_written_and_changes_nothing(call, root):
    put(root, a_dot_txt="old")
    message = "the content has an unpaired surrogate at character 1"

    assert await call("write_file", path="a.txt", content="x\ud800") == ("NOT_TEXT", message)
    assert await call("append_file", path="a.txt", content="x\udc00") == ("NOT_TEXT", message)
    assert (root / "a.txt").read_text() == "old"


async def test_the_same_write_twice_leaves_what_one_leaves(call, root):
    for _ in range(2):
        await call("write_file", path="a.txt", content="text")

    assert {path.name: path.read_text() for path in root.iterdir()} == {"a.txt": "text"}


# ------------------------------------------------------------------------------------------ search_files


async def test_searching_finds_the_text_as_it_stands_with_path_and_line(call, root):
    put(root, a_dot_txt="x\nA.*b here\r\nno", sub__b_dot_py="a.*b\nA.*b", c_dot_bin=b"\xff A.*b", _dot_git__d="A.*b")

    assert await call("search_files", text="A.*b") == found_lines(
        ("a.txt", 2, "A.*b here"), ("sub/b.py", 2, "A.*b"), files_searched=2, files_skipped=1
    )
    assert await call("search_files", text="a.*B", ignore_case=True, glob="*.py") == found_lines(
        ("sub/b.py", 1, "a.*b"), ("sub/b.py", 2, "A.*b"), files_searched=1
    )
    assert await call("search_files", text="A.*b", path=".git") == found_lines((".git/d", 1, "A.*b"), files_searched=1)
    assert await call("search_files", text="b", path="a.txt") == found_lines(
        ("a.txt", 2, "A.*b here"), files_searched=1
    )
    assert await call("search_files", text="nowhere") == found_lines(files_searched=2, files_skipped=1)


@pytest.mark.parametrize(("limit", "count", "truncated"), [(3, 3, False), (2, 2, True)])
async def test_searching_ends_at_its_limit_and_says_so_only_if_there_is_more(limit, count, truncated, call, root):
    put(root, a="x\nx\n", b="x")

    answer = await call("search_files", text="x", limit=limit)

    assert (len(answer["matches"]), answer["truncated"]) == (count, truncated)


async def test_of_a_long_line_the_part_round_the_place_is_given(call, root, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_CHARACTERS", 9)
    put(root, a="-" * 20 + "needle" + "-" * 20, b="needle" + "-" * 20, c="-" * 20 + "needle", d="--needle-")

    assert [match["text"] for match in (await call("search_files", text="needle"))["matches"]] == [
        "...---needle...",
        "needle---...",
        "...---needle",
        "--needle-",
    ]


async def test_searching_is_bounded_in_what_it_reads(call, root, monkeypatch):
    put(root, a="x" * 10, b="x" * 11, c="x" * 10, d="x" * 10)
    monkeypatch.setattr(files, "MAX_SEARCHED_FILE_BYTES", 10)
    monkeypatch.setattr(files, "MAX_SEARCHED_BYTES", 19)
    by_bytes = await call("search_files", text="x")
    monkeypatch.undo()
    monkeypatch.setattr(files, "MAX_ENTRIES", 2)
    by_entries = await call("search_files", text="x")

    assert by_bytes == found_lines(
        ("a", 1, "x" * 10), ("c", 1, "x" * 10), truncated=True, files_searched=2, files_skipped=1
    )
    assert by_entries == found_lines(("a", 1, "x" * 10), ("b", 1, "x" * 11), truncated=True, files_searched=2)


async def test_searching_counts_files_it_may_not_read_and_never_waits_for_a_fifo(call, root, monkeypatch):
    put(root, a="x", b="x")
    os.mkfifo(root / "fifo")
    really_open = os.open

    def refuse_a(name, *arguments, **keywords):
        if name == "a":
            raise PermissionError(13, "Permission denied")
        return really_open(name, *arguments, **keywords)

    monkeypatch.setattr(os, "open", refuse_a)

    assert await call("search_files", text="x") == found_lines(("b", 1, "x"), files_searched=1, files_skipped=1)


async def test_a_text_over_a_line_end_is_refused_instead_of_never_being_found(call):
    assert await call("search_files", text="a\nb") == (
        "INVALID_ARGUMENTS",
        "text is looked for in each line: it is not empty and holds no line end",
    )


@pytest.mark.parametrize(("name", "arguments"), [("list_files", {}), ("search_files", {"text": "x"})])
async def test_a_cancelled_turn_ends_a_walk(name, arguments, call, root, monkeypatch):
    put(root, **{f"f{number}": "x" for number in range(20)})
    signal = CancelSignal()
    looked_at = []

    def look_and_cancel(glob, path):
        looked_at.append(str(path))
        signal.cancel()
        return True

    monkeypatch.setattr(files, "matches", look_and_cancel)

    code, _ = await call(name, signal, **arguments)
    assert (code, len(looked_at)) == ("ABORTED", 1)


# ------------------------------------------------------------------------------------------ run_command


async def test_a_command_runs_in_the_workspace_without_our_secrets(call, root, monkeypatch):
    monkeypatch.setenv("BEFOREHAND_PROFILE", "dev")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("HARMLESS", "yes")
    source = "import os, sys; print(os.getcwd()); print(*sorted({'BEFOREHAND_PROFILE', 'SOME_API_KEY', 'HARMLESS'} & set(os.environ))); sys.exit(2)"  # noqa: E501

    assert await call("run_command", argv=[sys.executable, "-c", source]) == {
        "ended": "exited",
        "exit_code": 2,
        "signal": None,
        "stdout": f"{root}\nHARMLESS\n",
        "stdout_truncated": False,
        "stderr": "",
        "stderr_truncated": False,
    }


async def test_a_command_over_its_own_time_gives_its_output_and_says_so(call):
    answer = await call("run_command", argv=["sh", "-c", "echo before; exec sleep 1000"], timeout_s=0.3)

    assert (answer["ended"], answer["signal"], answer["stdout"]) == ("timed_out", "SIGTERM", "before\n")


async def test_a_command_over_the_services_time_is_ended_before_the_call_is(root):
    """The service cancels and awaits an async body at its timeout: by then the command has to be gone."""
    service = ToolService(ToolSet(workspace_tools(root)), default_timeout_s=0.5)
    fifo = root / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    result = await service.execute(execution("run_command", {"argv": ["sh", "-c", "exec 9> fifo; sleep 1000"]}))
    end_of_file = os.read(reader, 1)  # while a writer is there, this would raise BlockingIOError
    os.close(reader)

    assert (answer(result)[0], end_of_file) == ("TOOL_TIMEOUT", b"")


async def test_cancelling_the_turn_ends_its_command(call, root):
    fifo = root / "fifo"
    os.mkfifo(fifo)
    signal = CancelSignal()
    running = asyncio.create_task(call("run_command", signal, argv=["sh", "-c", "exec 9> fifo; sleep 1000"]))
    with await asyncio.to_thread(fifo.open, "rb") as reader:  # opened, once the command opens it too
        signal.cancel()
        code, _ = await running
        assert (code, reader.read()) == ("ABORTED", b"")


async def test_a_program_that_is_not_there_is_an_error_with_its_name(call):
    assert await call("run_command", argv=["no-such-program-anywhere"]) == (
        "COMMAND_NOT_FOUND",
        "there is no program 'no-such-program-anywhere', or it is a script without interpreter",
    )


async def test_the_longest_output_fits_the_limit_of_a_result(call):
    source = "import sys; [stream.write('\\x01' * 1_000_000) for stream in (sys.stdout, sys.stderr)]"

    answer = await call("run_command", argv=[sys.executable, "-c", source])

    assert (answer["stdout_truncated"], answer["stderr_truncated"]) == (True, True)
    assert len(encode(answer)) < 4 * 1024 * 1024 / 2
    assert answer["stdout"].count("\x01") == command.KEEP_BYTES
