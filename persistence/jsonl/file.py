"""One session's file, open and locked: read at any place, and added to so that a failure leaves no trace."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field

from persistence.jsonl import disk

_STEP = 4096


@dataclass
class Doubts:
    """Files whose failed write could not even be cut away: how large each is, and how much of it counts."""

    _known: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def size_of(self, found: os.stat_result) -> int:
        """How much of a file counts: all, unless it still is as a failed write of this process left it."""
        size, counts = self._known.get(disk.identity(found), (-1, 0))
        return counts if found.st_size == size else found.st_size

    def add(self, found: os.stat_result, counts: int) -> None:
        self._known[disk.identity(found)] = found.st_size, counts

    def clear(self, found: os.stat_result) -> None:
        self._known.pop(disk.identity(found), None)


class LogFile:
    """`size` is how much of it counts: what is beyond may be the rest of a write that failed."""

    def __init__(self, descriptor: int, name: str, directory: int, doubts: Doubts) -> None:
        self.name = name
        self.directory = directory
        self._descriptor = descriptor
        self._doubts = doubts
        self._found = os.fstat(descriptor)
        self.size = doubts.size_of(self._found)

    @property
    def mode(self) -> int:
        """Who may read and write it."""
        return self._found.st_mode & 0o777

    def read(self, at: int, end: int) -> bytes:
        """The bytes from one offset up to another, as far as they count."""
        return disk.read(self._descriptor, at, min(end, self.size) - at)

    def line_at(self, at: int) -> bytes | None:
        """The line that begins there, without its newline; None if it has none."""
        line, step = b"", _STEP
        while at < self.size:
            piece = self.read(at, at + step)
            newline = piece.find(b"\n")
            if newline >= 0:
                return line + piece[:newline]
            line, at, step = line + piece, at + len(piece), step * 4
            if not piece:
                break
        return None

    def last_line(self) -> tuple[int, bytes] | None:
        """The offset of the last line, and the line without its newline; None if the file does not end with one."""
        step = _STEP
        while True:
            start = max(0, self.size - step)
            piece = self.read(start, self.size)
            if not piece.endswith(b"\n"):
                return None
            newline = piece.rfind(b"\n", 0, -1)
            if newline >= 0 or start == 0:
                return start + newline + 1, piece[newline + 1 : -1]
            step *= 4

    def add(self, data: bytes, at: int, *, new: bool = False) -> None:
        """Let the file go on with `data` at that offset, whatever stood there, and return once that is durable.

        With `new` its name is made durable too. If anything fails, the file ends at `at`: what a failed sync has left
        in memory must not be taken for stored by whoever looks next.
        """
        try:
            if os.fstat(self._descriptor).st_size != at:
                disk.cut(self._descriptor, at)
            # fp: jsonl.at_end
            disk.write(self._descriptor, data, at)
            # fp: jsonl.written
            disk.sync(self._descriptor)
            # fp: jsonl.synced
            if new:
                disk.sync_names(self.directory)
        except BaseException:
            self._undo(at)
            raise
        self._doubts.clear(self._found)

    def unlock(self) -> None:
        """Let others write. What counts now can still be read: nobody ever changes it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _undo(self, at: int) -> None:
        try:
            disk.cut(self._descriptor, at)
            self._doubts.clear(self._found)
        except OSError:  # whoever uses it next tries again; the error that led here is the one to tell
            self._doubts.add(os.fstat(self._descriptor), at)
