"""Keeps the built-in tools inside one directory: each path is walked from its root, part by part, following no link."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, NoReturn, TypeAlias

from app.tools.types import ToolError
from app.tools.workspace_path import OUTSIDE, WorkspacePath, is_reserved

Kind: TypeAlias = Literal["file", "directory", "symlink", "fifo", "socket", "device"]

MAX_DIRECTORY_ENTRIES = 100_000

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a fifo without a writer must not hold us up
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
_CODES = {
    errno.ENOENT: "NOT_FOUND",
    errno.ENOTDIR: "NOT_A_DIRECTORY",
    errno.EISDIR: "NOT_A_FILE",
    errno.EACCES: "ACCESS_DENIED",
    errno.EPERM: "ACCESS_DENIED",
    errno.EROFS: "ACCESS_DENIED",
    errno.ENAMETOOLONG: "INVALID_PATH",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Something found in the workspace. `size` is in bytes and None for all but files.

    `problem` says why a directory could not be listed, or not wholly.
    """

    path: WorkspacePath
    kind: Kind
    size: int | None = None
    problem: str | None = None


class Workspace:
    """One directory, and what the tools may do in it. Methods are synchronous and keep nothing open between two calls.

    They raise ToolError: `PATH_OUTSIDE_WORKSPACE` for a symbolic link anywhere below the root, wherever it points.

    A path is never checked and then opened by name: each part is opened below the descriptor of the one before, so
    exchanging a directory for a link meanwhile changes nothing. The root itself may be a link; who sets it is trusted.
    A hard link to a file outside cannot be told from a file of our own.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @contextmanager
    def reading(self, path: WorkspacePath) -> Iterator[BinaryIO]:
        """The regular file at `path`, opened to be read."""
        with self._directory(path.parent) as directory:
            file = _open_regular(directory, path, os.O_RDONLY)
        with _errors_named(path), os.fdopen(file, "rb") as stream:
            yield stream

    def write(self, path: WorkspacePath, content: bytes) -> bool:
        """Make `content` the whole file, durable at return; missing directories are made. True if a file was replaced.

        Readers, and a crash at any instant, see the old file or the new one; a crash may leave a temporary file.
        """
        with self._directory(path.parent, create=True) as directory, _errors_named(path):
            mode = _mode_of_writable(directory, path)
            temporary = f".beforehand-{secrets.token_hex(16)}.tmp"
            try:
                file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=directory)
                with os.fdopen(file, "wb") as stream:
                    if mode is not None:
                        os.fchmod(file, mode)
                    stream.write(content)
                    stream.flush()
                    os.fsync(file)
                os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            os.fsync(directory)
        return mode is not None

    def append(self, path: WorkspacePath, content: bytes) -> int:
        """Add `content` to the end of the file, durable at return; makes it if need be. Returns the size afterwards.

        Not atomic: a full disk or a crash may leave a first part of it; the error of the former says how much.
        """
        with self._directory(path.parent, create=True) as directory, _errors_named(path):
            file = _open_regular(directory, path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(file, "wb"):
                _write_all(file, path, content)
                os.fsync(file)
                os.fsync(directory)  # always: the file may be another writer's, made a moment ago
                return os.fstat(file).st_size

    def walk(self, path: WorkspacePath, *, recursive: bool) -> Iterator[Entry]:
        """The entry of `path`, then what is in it by name, each directory before its contents.

        Links and hidden directories (a name with a leading dot) are told of but not entered, unless `path` itself is
        the hidden one. Reserved names are left out. A directory that cannot be listed has a `problem`; `path` raises.
        """
        top = self._look(path)
        pending = [top]
        while pending:
            entry = pending.pop()
            children: list[Entry] = []
            if entry.kind == "directory" and (entry is top or (recursive and not entry.path.name.startswith("."))):
                try:
                    children, problem = self._children(entry.path)
                except ToolError as error:
                    if entry is top:
                        raise
                    problem = error.message
                entry = replace(entry, problem=problem)
            yield entry
            pending.extend(reversed(children))

    def _look(self, path: WorkspacePath) -> Entry:
        if not path.parts:
            return Entry(path, "directory")
        with self._directory(path.parent) as directory, _errors_named(path):
            entry = _entry(path, os.stat(path.name, dir_fd=directory, follow_symlinks=False))
        if entry.kind == "symlink":
            _refuse_link(path)
        return entry

    def _children(self, path: WorkspacePath) -> tuple[list[Entry], str | None]:
        found = []
        with self._directory(path) as directory, _errors_named(path), os.scandir(directory) as names:
            for item in islice(names, MAX_DIRECTORY_ENTRIES):
                if not is_reserved(item.name):
                    with suppress(FileNotFoundError):  # deleted since the directory was read: it is not there
                        child = WorkspacePath((*path.parts, item.name))
                        found.append(_entry(child, item.stat(follow_symlinks=False)))
            problem = f"'{path}': only {MAX_DIRECTORY_ENTRIES} of its entries were read" if next(names, None) else None
        return sorted(found, key=lambda entry: entry.path.parts), problem

    @contextmanager
    def _directory(self, path: WorkspacePath, *, create: bool = False) -> Iterator[int]:
        try:
            current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolError("WORKSPACE_UNAVAILABLE", f"workspace {str(self.root)!r}: {error.strerror}") from error
        try:
            for depth in range(len(path.parts)):
                below = _enter(current, path, depth, create=create)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)


def _entry(path: WorkspacePath, status: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
    return Entry(path, kind, status.st_size if kind == "file" else None)


def _refuse_link(path: WorkspacePath) -> NoReturn:
    raise ToolError(OUTSIDE, f"'{path}' is a symbolic link; links are not followed, as they may leave the workspace")


@contextmanager
def _errors_named(path: WorkspacePath) -> Iterator[None]:
    """The one table that makes the system's errors ours."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            _refuse_link(path)
        raise ToolError(_CODES.get(error.errno or 0, "IO_FAILED"), f"'{path}': {error.strerror}") from error


def _enter(directory: int, path: WorkspacePath, depth: int, *, create: bool) -> int:
    name = path.parts[depth]
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        shown = WorkspacePath(path.parts[: depth + 1])  # only now: a walk comes by here for each part of each path
        with _errors_named(shown):
            if create and error.errno == errno.ENOENT:
                with suppress(FileExistsError):  # made by somebody else in between; opening it tells what it is
                    os.mkdir(name, dir_fd=directory)
                os.fsync(directory)
                return os.open(name, _DIRECTORY, dir_fd=directory)
            # Linux answers so for a link, too: look again, only to say which it is.
            if error.errno == errno.ENOTDIR and _is_link(directory, name):
                _refuse_link(shown)
            raise


def _is_link(directory: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)


def _require_regular(path: WorkspacePath, status: os.stat_result) -> None:
    kind = _entry(path, status).kind
    if kind == "symlink":
        _refuse_link(path)
    if kind != "file":
        raise ToolError("NOT_A_FILE", f"'{path}' is a {kind}, not a regular file")


def _open_regular(directory: int, path: WorkspacePath, flags: int) -> int:
    with _errors_named(path):
        with suppress(FileNotFoundError):  # looked at first, because opening a device may already act on it
            _require_regular(path, os.stat(path.name, dir_fd=directory, follow_symlinks=False))
        file = os.open(path.name, flags | _FILE, 0o666, dir_fd=directory)
        try:
            _require_regular(path, os.fstat(file))  # and what was really opened decides
        except BaseException:
            os.close(file)
            raise
        return file


def _mode_of_writable(directory: int, path: WorkspacePath) -> int | None:
    """Permission bits of the file to be replaced, None if there is none. Replacing needs the right to write it."""
    try:
        file = _open_regular(directory, path, os.O_WRONLY)
    except ToolError as error:
        if error.code == "NOT_FOUND":
            return None
        raise
    with os.fdopen(file, "wb"):
        return stat.S_IMODE(os.fstat(file).st_mode) & 0o777


def _write_all(file: int, path: WorkspacePath, content: bytes) -> None:
    written = 0
    while written < len(content):
        try:
            written += os.write(file, memoryview(content)[written:])
        except OSError as error:
            done = f"{error.strerror} after {written} of {len(content)} bytes"
            raise ToolError("IO_FAILED", f"'{path}': {done}") from error
