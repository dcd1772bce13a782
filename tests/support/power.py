"""Power cuts without losing power: a disk that can be cloned as it is at any moment, and mounted again.

The disk is ext4 on a loop device over an image file, and that file lies on XFS, which clones it in one step. A clone
holds what had been written to the disk, and nothing that was still in memory; mounting it replays the journal, as a
machine does when the power is back. Disks with a cache of their own that loses what it has are not shown.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FICLONE = 0x40049409
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class NotHere(Exception):
    """This machine cannot make such a disk; the text says what is missing."""


class Disk:
    """Mounted at `path`; `clone` is what a power cut would leave now."""

    def __init__(self, directory: Path) -> None:
        """Make one in this empty directory. Raises NotHere. Nothing is undone: the process runs `alone`."""
        self._outer, self.path, self._clone = (directory / name for name in ("outer", "disk", "clone"))
        for path in (self._outer, self.path, self._clone):
            path.mkdir()
        try:
            xfs = _file(directory / "xfs", 400)
            _run("mkfs.xfs", "-q", "-m", "reflink=1", str(xfs))
            _mount(xfs, self._outer)
            self._image = _file(self._outer / "image", 200)
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            _mount(self._image, self.path)
        except subprocess.CalledProcessError as error:
            raise NotHere(f"{error.cmd[0]}: {error.stderr.strip()}") from None

    def clone(self) -> None:
        """Cut the power, in a copy of the world."""
        with self._image.open("rb") as image, (self._outer / "clone").open("wb") as clone:
            fcntl.ioctl(clone, _FICLONE, image.fileno())

    @contextmanager
    def after_the_cut(self) -> Iterator[Path]:
        """While inside, what `clone` left, mounted."""
        _mount(self._outer / "clone", self._clone)
        try:
            yield self._clone
        finally:
            _run("umount", str(self._clone))


def alone() -> list[str]:
    """What to put before a command that makes disks. Raises NotHere.

    It runs in a mount namespace of its own: with the last process in it the kernel unmounts everything and frees the
    loop devices, however that process came to its end.
    """
    if os.geteuid() != 0:
        raise NotHere("mounting takes root")
    for program in ("unshare", "mkfs.xfs", "mkfs.ext4", "mount"):
        if shutil.which(program, path=_PATH) is None:
            raise NotHere(f"there is no {program}")
    if not Path("/dev/loop-control").exists():
        raise NotHere("there are no loop devices")
    return ["unshare", "--mount"]


def _file(path: Path, megabytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(megabytes << 20)
    return path


def _mount(image: Path, at: Path) -> None:
    _run("mount", "-o", "loop,noatime", str(image), str(at))


def _run(*command: str) -> None:
    subprocess.run(command, env={**os.environ, "PATH": _PATH}, check=True, capture_output=True, text=True)
