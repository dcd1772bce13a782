"""The workspace lets nothing out, writes whole files, and shows what is there."""

import errno
import os
import resource
import socket
import stat
import threading
from pathlib import Path

import pytest

from app.tools import workspace as module
from app.tools.types import ToolError
from app.tools.workspace import Entry, Workspace
from app.tools.workspace_path import WorkspacePath

at = WorkspacePath.parse


def read(workspace: Workspace, path: str) -> bytes:
    with workspace.reading(at(path)) as stream:
        return stream.read()


OPERATIONS = {
    "read": read,
    "write": lambda workspace, path: workspace.write(at(path), b"changed"),
    "append": lambda workspace, path: workspace.append(at(path), b"changed"),
    "walk": lambda workspace, path: list(workspace.walk(at(path), recursive=True)),
}
any_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
a_file_operation = pytest.mark.parametrize("operation", list(OPERATIONS.values())[:3], ids=list(OPERATIONS)[:3])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    return tmp_path / "outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


def refusal(call, *arguments) -> tuple[str, str]:
    with pytest.raises(ToolError) as caught:
        call(*arguments)
    return caught.value.code, caught.value.message


def tree(directory: Path) -> dict[str, bytes | str | None]:
    """What is below a directory: the content of files, the target of links, None for the rest."""
    return {
        str(path.relative_to(directory)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(directory.rglob("*"))
    }


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@any_operation
@pytest.mark.parametrize("path", ["..", "../outside/secret.txt", "a/../../outside/secret.txt", "a/..", "./../outside"])
def test_a_path_with_dot_dot_is_refused_and_nothing_outside_changes(operation, path, workspace, root, outside):
    (root / "a").mkdir()

    assert refusal(operation, workspace, path)[0] == "PATH_OUTSIDE_WORKSPACE"
    assert tree(outside) == {"secret.txt": b"secret"}
    assert tree(root) == {"a": None}


@any_operation
def test_an_absolute_path_is_refused_even_if_it_points_inside(operation, workspace, root, outside):
    (root / "a.txt").write_text("a")

    for path in [str(outside / "secret.txt"), str(root / "a.txt"), "//etc/passwd", "/"]:
        code, message = refusal(operation, workspace, path)
        assert (code, message) == (
            "PATH_OUTSIDE_WORKSPACE",
            f"'{path}' is absolute; give a path relative to the workspace",
        )
    assert tree(outside) == {"secret.txt": b"secret"}


@any_operation
@pytest.mark.parametrize("target", ["{outside}", "../outside", "real", "."])
def test_a_link_as_a_directory_of_the_path_is_refused_wherever_it_points(operation, target, workspace, root, outside):
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_text("inside")
    (root / "link").symlink_to(target.format(outside=outside))
    before = tree(root), tree(outside)

    code, message = refusal(operation, workspace, "link/secret.txt")

    assert code == "PATH_OUTSIDE_WORKSPACE"
    assert message == "'link' is a symbolic link; links are not followed, as they may leave the workspace"
    assert (tree(root), tree(outside)) == before


@any_operation
@pytest.mark.parametrize("target", ["{outside}/secret.txt", "real.txt", "{outside}/not-there", "{outside}", "link"])
def test_a_link_as_the_last_part_is_refused_wherever_it_points(operation, target, workspace, root, outside):
    (root / "real.txt").write_text("inside")
    (root / "link").symlink_to(target.format(outside=outside))
    before = tree(root), tree(outside)

    code, message = refusal(operation, workspace, "link")

    assert code == "PATH_OUTSIDE_WORKSPACE"
    assert message == "'link' is a symbolic link; links are not followed, as they may leave the workspace"
    assert (tree(root), tree(outside)) == before


@a_file_operation
@pytest.mark.parametrize("place", ["last", "middle"])
def test_a_link_put_in_place_after_the_look_and_before_the_open_is_refused(
    operation, place, workspace, root, outside, monkeypatch
):
    """The exchange happens at the worst instant: directly before the system call that opens the part."""
    victim = root / ("secret.txt" if place == "last" else "d")
    if place == "middle":
        victim.mkdir()
    (root / "d").mkdir(exist_ok=True)
    (victim if place == "last" else victim / "secret.txt").write_text("inside")
    really_open = os.open

    def exchange_then_open(name, flags, *arguments, **keywords):
        if name == victim.name and not victim.is_symlink():
            victim.rename(root / "moved")
            victim.symlink_to(outside / "secret.txt" if place == "last" else outside)
        return really_open(name, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", exchange_then_open)
    code, _ = refusal(operation, workspace, "secret.txt" if place == "last" else "d/secret.txt")

    assert victim.is_symlink()
    assert code == "PATH_OUTSIDE_WORKSPACE"
    assert tree(outside) == {"secret.txt": b"secret"}


def test_a_directory_exchanged_for_a_link_over_and_over_never_lets_a_call_out(workspace, root, outside):
    (root / "d").mkdir()
    (root / "d" / "inside.txt").write_bytes(b"inside")
    (outside / "inside.txt").write_bytes(b"secret")
    (root / "link").symlink_to(outside)
    stop = threading.Event()

    def exchange():
        while not stop.is_set():
            for source, target in [("d", "away"), ("link", "d"), ("d", "link"), ("away", "d")]:
                (root / source).rename(root / target)

    # NOT_FOUND: between two renamings nothing has that name. NOT_A_DIRECTORY, rarely: a link, gone when looked at.
    all_outcomes = {"b'inside'", "['d', 'd/inside.txt']", "NOT_FOUND", "PATH_OUTSIDE_WORKSPACE"}
    outcomes: set[str] = set()
    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for count in range(100_000):
            if count > 2000 and outcomes >= all_outcomes:  # the race was met
                break
            for call in (
                lambda: read(workspace, "d/inside.txt"),
                lambda: [str(entry.path) for entry in workspace.walk(at("d"), recursive=True)],
            ):
                try:
                    outcomes.add(str(call()))
                except ToolError as error:
                    outcomes.add(error.code)
    finally:
        stop.set()
        thread.join()

    assert outcomes - {"NOT_A_DIRECTORY"} == all_outcomes
    assert tree(outside) == {"inside.txt": b"secret", "secret.txt": b"secret"}


def test_the_root_itself_may_be_a_link_because_its_owner_chose_it(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    workspace = Workspace(tmp_path / "alias")

    workspace.write(at("a.txt"), b"a")

    assert read(workspace, "a.txt") == b"a"
    assert tree(root) == {"a.txt": b"a"}


def test_a_relative_root_stays_where_it_was_when_the_working_directory_changes(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(Path("root"))
    monkeypatch.chdir("/")

    workspace.write(at("a.txt"), b"a")

    assert tree(root) == {"a.txt": b"a"}


@any_operation
def test_a_missing_root_is_told_as_such(operation, tmp_path):
    code, message = refusal(operation, Workspace(tmp_path / "gone"), "a")

    assert (code, message) == ("WORKSPACE_UNAVAILABLE", f"workspace '{tmp_path}/gone': No such file or directory")


@a_file_operation
@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device"])
def test_what_is_no_regular_file_is_refused_by_kind_and_without_waiting(operation, kind, workspace, root):
    place = root / "odd"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "socket":
            listener.bind(str(place))
        elif kind == "directory":
            place.mkdir()
        else:
            if os.geteuid() != 0:
                pytest.skip("only root can make a device node")
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))

        assert refusal(operation, workspace, "odd") == ("NOT_A_FILE", f"'odd' is a {kind}, not a regular file")


@a_file_operation
def test_a_fifo_put_in_place_after_the_look_does_not_hold_the_call_up(operation, workspace, root, monkeypatch):
    (root / "a.txt").write_text("a")
    really_stat = os.stat

    def look_then_exchange(*arguments, **keywords):
        status = really_stat(*arguments, **keywords)
        if arguments[0] == "a.txt":
            (root / "a.txt").unlink()
            os.mkfifo(root / "a.txt")
        return status

    monkeypatch.setattr(os, "stat", look_then_exchange)
    before = open_descriptors()

    # Opened to be read it is recognised; opened to be written the system itself refuses a fifo that nobody reads.
    assert refusal(operation, workspace, "a.txt") in [
        ("NOT_A_FILE", "'a.txt' is a fifo, not a regular file"),
        ("IO_FAILED", f"'a.txt': {os.strerror(errno.ENXIO)}"),
    ]
    assert open_descriptors() == before


@a_file_operation
def test_the_workspace_itself_is_no_file(operation, workspace):
    for path in ["", ".", "./", "./."]:
        assert refusal(operation, workspace, path) == (
            "NOT_A_FILE",
            "the path is the workspace itself, not a file in it",
        )


@any_operation
@pytest.mark.parametrize("path", ["a\0b", "a/\0", "caf\udce9", "\ud800/x"])
def test_a_path_with_a_nul_or_half_a_character_is_refused(operation, path, workspace, root):
    assert refusal(operation, workspace, path)[0] == "INVALID_PATH"
    assert tree(root) == {}


@any_operation
@pytest.mark.parametrize(
    "path", [".beforehand/sessions.db", ".beforehand", "sub/.Beforehand/x", "beforehand.toml", ".beforehand-0a.tmp"]
)
def test_what_the_runtime_keeps_in_the_same_directory_is_out_of_reach(operation, path, workspace, root):
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("ours")
    before = tree(root)

    assert refusal(operation, workspace, path)[0] == "PATH_RESERVED"
    assert tree(root) == before


def test_a_path_built_from_parts_is_checked_like_a_written_one():
    assert refusal(WorkspacePath, ("a", ".."))[0] == "PATH_OUTSIDE_WORKSPACE"
    assert [refusal(WorkspacePath, (part,))[0] for part in ["a/b", "", ".", "\0"]] == ["INVALID_PATH"] * 4


def test_odd_but_legal_names_are_plain_names(workspace, root):
    names = ["..a", "a..", "...", "~", "%2e%2e", "a\\b", "CON", " ", "é", "e\u0301", "A", "a", "-rf", "a\nb", "$HOME"]

    for name in names:
        workspace.write(at(name), name.encode())

    assert {name: read(workspace, name) for name in names} == {name: name.encode() for name in names}
    assert {path.name for path in root.iterdir()} == set(names)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("none.txt", ("NOT_FOUND", "'none.txt': No such file or directory")),
        ("none/a.txt", ("NOT_FOUND", "'none': No such file or directory")),
        ("file/a.txt", ("NOT_A_DIRECTORY", "'file': Not a directory")),
        ("x" * 300, ("INVALID_PATH", f"'{'x' * 300}': File name too long")),
    ],
)
def test_an_error_names_the_part_of_the_path_that_is_wrong(path, answer, workspace, root):
    (root / "file").write_text("")

    assert refusal(read, workspace, path) == answer


def test_a_write_makes_missing_directories_and_says_whether_a_file_was_replaced(workspace, root):
    replaced = [workspace.write(at("a/b/c.txt"), b"1"), workspace.write(at("a//b/./c.txt"), b"22")]

    assert replaced == [False, True]
    assert tree(root) == {"a": None, "a/b": None, "a/b/c.txt": b"22"}


def test_a_replaced_file_keeps_its_permissions_and_a_new_one_gets_the_usual(workspace, root):
    (root / "script").write_text("old")
    (root / "script").chmod(0o4750)
    before = os.umask(0o027)
    try:
        workspace.write(at("script"), b"new")
        workspace.write(at("plain"), b"new")
    finally:
        os.umask(before)

    assert [stat.S_IMODE((root / name).stat().st_mode) for name in ("script", "plain")] == [0o750, 0o640]


def test_a_write_leaves_what_other_names_of_the_old_file_show(workspace, root, outside):
    os.link(outside / "secret.txt", root / "hard")

    workspace.write(at("hard"), b"new")

    assert (read(workspace, "hard"), tree(outside)) == (b"new", {"secret.txt": b"secret"})


@pytest.mark.parametrize("step", ["fsync", "rename", "fchmod"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(step, workspace, root, monkeypatch):
    (root / "a.txt").write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)

    assert refusal(workspace.write, at("a.txt"), b"new") == ("IO_FAILED", "'a.txt': No space left on device")
    assert tree(root) == {"a.txt": b"old"}


def test_a_write_is_synced_before_it_takes_the_name_and_its_directories_after(workspace, root, monkeypatch):
    order = []
    (root / "old").mkdir()

    def record(name):
        really = getattr(os, name)

        def call(*arguments, **keywords):
            target = Path(f"/proc/self/fd/{arguments[0]}").readlink() if name == "fsync" else Path(arguments[0])
            order.append((name, "temporary" if target.suffix == ".tmp" else target.name))
            return really(*arguments, **keywords)

        monkeypatch.setattr(os, name, call)

    for name in ("mkdir", "fsync", "rename"):
        record(name)
    workspace.write(at("old/new/a.txt"), b"1")
    workspace.append(at("old/log.txt"), b"1")

    assert order == [
        ("mkdir", "new"),
        ("fsync", "old"),
        ("fsync", "temporary"),
        ("rename", "temporary"),
        ("fsync", "new"),
        ("fsync", "log.txt"),
        ("fsync", "old"),
    ]


def test_readers_during_a_write_see_the_old_file_or_the_new_one(workspace, root):
    versions = [letter * 300_000 for letter in (b"a", b"b")]
    workspace.write(at("a.txt"), versions[0])
    stop = threading.Event()

    def rewrite():
        while not stop.is_set():
            for version in versions:
                workspace.write(at("a.txt"), version)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        seen = {read(workspace, "a.txt") for _ in range(300)}
    finally:
        stop.set()
        thread.join()

    assert seen <= set(versions)
    assert [path.name for path in root.iterdir()] == ["a.txt"]


def test_an_append_adds_to_the_end_and_tells_the_size(workspace, root):
    sizes = [workspace.append(at("logs/a.txt"), text) for text in (b"one\n", b"", b"two\n")]

    assert sizes == [4, 4, 8]
    assert tree(root) == {"logs": None, "logs/a.txt": b"one\ntwo\n"}


def test_appends_of_several_writers_are_all_there(workspace, root):
    def add(letter: str):
        for _ in range(50):
            workspace.append(at("a.txt"), f"{letter}\n".encode())

    threads = [threading.Thread(target=add, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted((root / "a.txt").read_text().split()) == sorted("abcd" * 50)


def test_an_append_that_comes_to_a_full_disk_says_how_much_is_there(workspace, root, monkeypatch):
    really_write = os.write
    answers = iter([3, None])

    def short_then_full(fd, content):
        size = next(answers)
        if size is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really_write(fd, bytes(content)[:size])

    monkeypatch.setattr(os, "write", short_then_full)

    assert refusal(workspace.append, at("a.txt"), b"12345") == (
        "IO_FAILED",
        "'a.txt': No space left on device after 3 of 5 bytes",
    )
    assert tree(root) == {"a.txt": b"123"}


def test_a_walk_tells_each_directory_before_its_contents_and_enters_no_link_and_nothing_hidden(
    workspace, root, outside
):
    for name in ["b/z.txt", "b/a/deep.txt", ".git/config", "a.txt", ".beforehand/sessions.db", "beforehand.toml"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "c").symlink_to(outside)
    os.mkfifo(root / "d")

    entries = list(workspace.walk(at(""), recursive=True))

    assert entries == [
        Entry(at("."), "directory"),
        Entry(at(".git"), "directory"),
        Entry(at("a.txt"), "file", 5),
        Entry(at("b"), "directory"),
        Entry(at("b/a"), "directory"),
        Entry(at("b/a/deep.txt"), "file", 12),
        Entry(at("b/z.txt"), "file", 7),
        Entry(at("c"), "symlink"),
        Entry(at("d"), "fifo"),
    ]
    assert [str(entry.path) for entry in workspace.walk(at("b"), recursive=False)] == ["b", "b/a", "b/z.txt"]
    assert [str(entry.path) for entry in workspace.walk(at(".git"), recursive=True)] == [".git", ".git/config"]
    assert list(workspace.walk(at("a.txt"), recursive=True)) == [Entry(at("a.txt"), "file", 5)]


def test_a_walk_into_a_deep_tree_holds_few_descriptors_open_and_keeps_none(workspace, root):
    deep = "/".join(["d"] * 200)
    before = open_descriptors()
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        workspace.write(at(f"{deep}/a.txt"), b"found")
        entries = list(workspace.walk(at(""), recursive=True))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    directories = ["/".join(["d"] * depth) for depth in range(1, 201)]
    assert [str(entry.path) for entry in entries] == [".", *directories, f"{deep}/a.txt"]
    assert open_descriptors() == before


def test_a_directory_that_vanishes_or_becomes_a_link_during_a_walk_is_told_and_not_entered(workspace, root, outside):
    for name in ["a/1", "b/2", "c/3"]:
        (root / name).parent.mkdir()
        (root / name).write_text("")
    walk = workspace.walk(at(""), recursive=True)

    assert str(next(walk).path) == "."
    (root / "a").rename(root / "moved")
    (root / "a").symlink_to(outside)
    (root / "b" / "2").unlink()
    (root / "b").rmdir()

    assert [(str(entry.path), entry.problem) for entry in walk] == [
        ("a", "'a' is a symbolic link; links are not followed, as they may leave the workspace"),
        ("b", "'b': No such file or directory"),
        ("c", None),
        ("c/3", None),
    ]


def test_a_directory_with_too_many_entries_says_that_some_are_missing(workspace, root, monkeypatch):
    monkeypatch.setattr(module, "MAX_DIRECTORY_ENTRIES", 3)
    for directory, count in {"exact": 3, "more": 4}.items():
        (root / directory).mkdir()
        for number in range(count):
            (root / directory / str(number)).write_text("")

    problems = {str(entry.path): entry.problem for entry in workspace.walk(at(""), recursive=False)}
    exact, more = (next(workspace.walk(at(name), recursive=False)) for name in ("exact", "more"))

    assert problems == {".": None, "exact": None, "more": None}
    assert (exact.problem, more.problem) == (None, "'more': only 3 of its entries were read")


def test_a_name_that_is_not_utf8_is_shown_escaped_and_what_is_in_it_is_still_walked(workspace, root):
    directory = root / os.fsdecode(b"caf\xe9")
    directory.mkdir()
    (directory / "a.txt").write_text("")

    assert [str(entry.path) for entry in workspace.walk(at(""), recursive=True)] == [".", r"caf\xe9", r"caf\xe9/a.txt"]


@any_operation
def test_a_refused_call_leaves_no_descriptor_open(operation, workspace, root, outside):
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "link").symlink_to(outside)
    os.mkfifo(root / "a" / "fifo")
    (root / "a" / "file").write_text("")
    before = open_descriptors()

    for path in ["a/b/link/x", "a/b/link", "a/b/c\0", "a/file/x"]:
        refusal(operation, workspace, path)
    if operation is not OPERATIONS["walk"]:
        refusal(operation, workspace, "a/fifo")

    assert open_descriptors() == before
