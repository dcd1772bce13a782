"""The system calls that change files, each with what the plain one leaves to its caller."""

from __future__ import annotations

import errno
import fcntl
import os
import sys


def write(file: int, data: bytes, at: int) -> None:
    """All of `data`, from that offset on. A disk that fills up writes less first, and says so only the next time."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, at)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest, at = rest[written:], at + written


def read(file: int, at: int, length: int) -> bytes:
    """Up to `length` bytes from that offset on: fewer only where the file ends."""
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(file, length, at)):
        pieces.append(piece)
        at, length = at + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def cut(file: int, size: int) -> None:
    """Let the file end there."""
    os.ftruncate(file, size)


def sync(file: int) -> None:
    """Return once what was written would survive a power cut."""
    if sys.platform == "darwin":  # where a plain sync stops at the disk's cache
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)


def sync_names(directory: int) -> None:
    """Return once the names in a directory would survive a power cut: a file whose name it takes away is no store."""
    os.fsync(directory)


def rename(directory: int, name: str, to: str) -> None:
    """Let a file take the place of another one, if there is one, in one step."""
    os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)


def identity(found: os.stat_result) -> tuple[int, int]:
    """What tells a file from another that takes its place."""
    return found.st_dev, found.st_ino
