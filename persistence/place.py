"""What an operator should know of a place on a disk: who may read and write there, and how much room is left."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.session.errors import StoreUnusable
from app.session.health import Finding

LITTLE = 256 * 1024 * 1024
"""Bytes that are little to be left."""


def is_empty(path: Path) -> bool:
    """Whether nothing stands there; not if that cannot be told: opening will say what is in the way."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # the one that opening meets too
        pass
    return False


def survey(what: str, path: Path, inside: Iterable[Path] = ()) -> Iterator[Finding]:
    """Permissions and room of a file or directory, and of what is `inside`; of where it would be made if it is not."""
    paths = [path, *inside]
    try:
        found = [(one, one.lstat()) for one in paths]
    except FileNotFoundError:
        there = next(folder for folder in path.parents if folder.exists())
        yield Finding(what, f"{path} is not there yet")
        yield _permissions(there, [])
        yield _room(there)
        return
    except OSError as error:
        yield Finding.fault(what, StoreUnusable(str(path), f"{path}: {error.strerror}"))
        return
    size = sum(status.st_size for _, status in found if stat.S_ISREG(status.st_mode))
    yield Finding(what, f"{path}, {_bytes(size)}")
    yield _permissions(path, found)
    yield _room(path)


def _permissions(path: Path, found: list[tuple[Path, os.stat_result]]) -> Finding:
    needed = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    if not os.access(path, needed, effective_ids=True):
        reason = f"user {_user(os.geteuid())} may not read and write {path}; give it that right, or run as its owner"
        return Finding.fault("permissions", StoreUnusable(str(path), reason))
    owners = {status.st_uid for _, status in found}
    if others := sorted(map(_user, owners - {os.geteuid()})):
        return Finding(
            "permissions", f"it belongs to {', '.join(others)}, not to this user, who may use it", is_note=True
        )
    if shared := [one for one, status in found if status.st_mode & 0o077]:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        return Finding(
            "permissions",
            f"others than its owner may use {shared[0]}{more}; chmod go= unless that is meant",
            is_note=True,
        )
    whose = f"user {_user(os.geteuid())}"
    return Finding("permissions", f"for {whose} alone" if found else f"{whose} may make it in {path}")


def _room(path: Path) -> Finding:
    try:
        left = shutil.disk_usage(path).free
    except OSError as error:
        return Finding("room", f"cannot be told ({errno.errorcode.get(error.errno or 0)})", is_note=True)
    if left < LITTLE:
        advice = "make room: on a full disk no checkpoint succeeds, so no turn goes on"
        return Finding("room", f"only {_bytes(left)} are left; {advice}", is_note=True)
    return Finding("room", f"{_bytes(left)} are left on its disk")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a number without a name, as in many containers
        return str(uid)


def _bytes(number: int) -> str:
    size, unit = float(number), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
