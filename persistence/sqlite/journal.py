"""The -wal file that a crash left: SQLite reads it up to the first frame that is wrong, and says nothing of the rest.

That is right for a transaction that was under way. But a frame that was altered later takes along, silently, all that
was committed after it. The two can be told apart: each transaction is synced before the next one begins. So where one
ends and the next begins, at or behind a wrong frame, that frame was right once.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO, TypeAlias

from app.session.errors import StoreUnusable

_MAGIC = 0x377F0682  # one more where words are summed as big-endian ones
_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_SECTOR, _PAGE_SIZE = 512, 4096

Sum: TypeAlias = tuple[int, int]


def check(path: Path) -> None:
    """Raises StoreUnusable if opening the database would lose what had been committed. Changes nothing; OSError."""
    wal = path.with_name(f"{path.name}-wal")
    wrong = _altered(wal)
    if wrong is not None and wrong == _altered(wal):  # not only for a moment, in which another process wrote
        what = f"frame {wrong}" if wrong else "its header"
        raise StoreUnusable(
            str(wal),
            f"{what} was altered after it was written, and what was committed from there on cannot be read any more; "
            "restore the database from a backup, or open it with sqlite3 once to go on without that",
        )


def _altered(path: Path) -> int | None:
    """The first wrong frame, 0 for the header, if a transaction ends and another one begins there or later."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            return None if len(header) < _HEADER.size else _altered_behind(header, file)
    except FileNotFoundError:
        return None


def _altered_behind(header: bytes, file: BinaryIO) -> int | None:
    magic, _, size, _, *salts, first, second = _HEADER.unpack(header)
    order = ">" if magic & 1 else "<"
    sums = [(first, second)]  # from which the next frame may go on: what stands there, and what should
    wrong: int | None = None
    if magic & ~1 != _MAGIC or _sum(header[:24], (0, 0), order) not in sums:
        order, size, salts, sums, wrong = ">" if sys.byteorder == "big" else "<", _PAGE_SIZE, [], [], 0
    number = 0
    has_ended = False
    while len(frame := file.read(_FRAME.size + size)) == _FRAME.size + size:
        number += 1
        _, pages, *own, first, second = _FRAME.unpack_from(frame)
        salts = salts or own
        due = [_sum(frame[:8] + frame[24:], start, order) for start in sums] if own == salts else []
        is_right = (first, second) in due
        if has_ended and is_right:
            return wrong
        if not is_right and wrong is None:
            wrong = number
        # The header of a wrong frame can be believed where it cannot be half that of an earlier one.
        at = file.tell() - len(frame)
        is_known = is_right or at // _SECTOR == (at + _FRAME.size - 1) // _SECTOR
        has_ended = wrong is not None and pages != 0 and is_known
        sums = [(first, second)] if is_right else [(first, second), *due[:1]]
    return None


def _sum(content: bytes, start: Sum, order: str) -> Sum:
    first, second = start
    for one, other in struct.iter_unpack(f"{order}II", content):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
