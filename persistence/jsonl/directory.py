"""The directory of the store: whose it is, which file belongs to which session, and who has it to himself."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from app.session.errors import CorruptLog, StoreUnusable
from persistence.jsonl import disk, errors
from persistence.jsonl.file import Doubts, LogFile

_NAME = re.compile(r"[0-9a-f]{64}\.jsonl")
_ANY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last for a pipe that somebody put there
_OPEN = os.O_RDWR | _ANY
_OPEN_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY

_opening = threading.Lock()
_locked: set[int] = set()


def name_of(session_id: str) -> str:
    """The name of a session's file: no id leads elsewhere, and none meets another, whatever the file system folds."""
    return f"{hashlib.blake2b(session_id.encode('utf-8'), digest_size=32).hexdigest()}.jsonl"


def is_name(text: str) -> bool:
    """Whether the file of a session may be called that."""
    return _NAME.fullmatch(text) is not None


class Directory:
    """Opened once, and used by its descriptor; again only when another one stands at its path (a restored backup)."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path.absolute()
        self._busy_timeout_s = busy_timeout_s
        self._descriptors: list[int] = []
        self._opening = threading.Lock()
        self._doubts = Doubts()

    def open(self) -> None:
        """Make the directory if there is none. Raises StoreUnusable if it cannot be locked or synced."""
        _let_go_when_forking()
        try:
            _make(self.path)
            self._descriptors.append(os.open(self.path, _OPEN_DIRECTORY))
            _check(self._descriptors[-1])
        except OSError as error:
            self.close()
            raise StoreUnusable(str(self.path), errors.reason(error)) from error
        except _DoesNotExclude:
            self.close()
            reason = "a lock on a file in it does not exclude a second one; choose a directory on a local disk"
            raise StoreUnusable(str(self.path), reason) from None

    def close(self) -> None:
        """Let go of it."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def files(self) -> dict[str, int]:
        """The names of all sessions' files, with what tells each from one that takes its place."""
        descriptor = os.open(".", _OPEN_DIRECTORY, dir_fd=self._current())
        try:
            with os.scandir(descriptor) as entries:
                return {entry.name: entry.inode() for entry in entries if is_name(entry.name)}
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(
        self, session_id: str, *, exclusive: bool, create: bool = False, name: str | None = None
    ) -> Iterator[LogFile | None]:
        """The file of a session while nobody else writes it or, if `exclusive`, reads it; None if there is none.

        Raises OSError, and CorruptLog for something else than a file.
        """
        directory, name = self._current(), name or name_of(session_id)
        flags = (_OPEN if exclusive else os.O_RDONLY | _ANY) | (os.O_CREAT if create else 0)
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            descriptor = _open(session_id, directory, name, flags)
            if descriptor is None:
                yield None
                return
            try:
                _lock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, deadline)
                if _stands_at(descriptor, directory, name):
                    yield LogFile(descriptor, name, directory, self._doubts)
                    return
            finally:
                _close(descriptor)

    def replace(self, file: LogFile, content: bytes) -> None:
        """Let a new file, durable as a whole, take the place of one that is locked exclusively; its mode is kept."""
        temporary = f"{file.name}.new"
        descriptor = os.open(temporary, _OPEN | os.O_CREAT, 0o600, dir_fd=file.directory)
        try:
            os.fchmod(descriptor, file.mode)
            disk.cut(descriptor, 0)  # of somebody who died here
            disk.write(descriptor, content, 0)
            disk.sync(descriptor)
        except BaseException:
            os.unlink(temporary, dir_fd=file.directory)
            raise
        finally:
            os.close(descriptor)
        # fp: jsonl.tombstone_made
        disk.rename(file.directory, temporary, file.name)
        # fp: jsonl.tombstone_there

    def _current(self) -> int:
        found = disk.identity(self.path.stat())
        with self._opening:
            if found != disk.identity(os.fstat(self._descriptors[-1])):
                self._descriptors.append(os.open(self.path, _OPEN_DIRECTORY))  # the old one may be in use yet
            return self._descriptors[-1]


# -- locks ---------------------------------------------------------------------------------------


def _open(session_id: str, directory: int, name: str, flags: int) -> int | None:
    with _opening:  # so that no fork comes between, and the child knows of every descriptor
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise CorruptLog(session_id, f"the file {name}", "it is not a regular file") from None
            raise
        _locked.add(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        _close(descriptor)
        raise CorruptLog(session_id, f"the file {name}", "it is not a regular file")
    return descriptor


def _close(descriptor: int) -> None:
    with _opening:
        _locked.discard(descriptor)
        os.close(descriptor)


def _lock(descriptor: int, kind: int, deadline: float) -> None:
    """Wait for a lock by asking every millisecond: there is no other way to stop waiting for a stopped process."""
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.001)


def _stands_at(descriptor: int, directory: int, name: str) -> bool:
    """Whether the file is still the one of that name, now that it is locked."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return disk.identity(found) == disk.identity(os.fstat(descriptor))


@cache
def _let_go_when_forking() -> None:
    """A lock lasts until the last copy of its descriptor is closed, and a child gets copies of all."""

    def in_child() -> None:
        for descriptor in _locked:
            os.close(descriptor)
        _locked.clear()
        _opening.release()

    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=in_child)


# -- opening -------------------------------------------------------------------------------------


class _DoesNotExclude(Exception):
    pass


def _make(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        parent = os.open(folder.parent, _OPEN_DIRECTORY)
        try:
            disk.sync_names(parent)
        finally:
            os.close(parent)


def _check(directory: int) -> None:
    """Lock and sync a file of its own making, which is gone afterwards."""
    name = f"check-{secrets.token_hex(8)}"
    one = os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    two = None
    try:
        two = os.open(name, _OPEN, dir_fd=directory)
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            disk.sync(one)
            disk.sync_names(directory)
        else:
            raise _DoesNotExclude
    finally:
        for descriptor in (one, two):
            if descriptor is not None:
                os.close(descriptor)
        os.unlink(name, dir_fd=directory)
