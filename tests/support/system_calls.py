"""The system calls by which the JSONL store changes files, watched or made to fail: nothing else of the process is."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from persistence.jsonl import disk

CHANGES = ("pwrite", "fdatasync", "ftruncate", "fsync", "rename")


class Calls:
    """Stands in the place of `os` there. `wrapped` is given each call of CHANGES by its name, and the real function."""

    def __init__(self, wrapped: Callable[..., Any]) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGES:
            return real
        return lambda *arguments, **named: self._wrapped(name, lambda: real(*arguments, **named), arguments)


def fail(code: int = errno.EIO) -> Any:
    """What a failing call does."""
    raise OSError(code, os.strerror(code))


@contextmanager
def intercepted(wrapped: Callable[[str, Callable[[], Any], tuple[Any, ...]], Any]) -> Iterator[None]:
    """While inside, each call of CHANGES is `wrapped(name, do, arguments)`."""
    with mock.patch.object(disk, "os", Calls(wrapped)):
        yield


@contextmanager
def failing(*names: str, code: int = errno.EIO) -> Iterator[None]:
    """While inside, calls of these names fail, and do nothing."""
    with intercepted(lambda name, do, arguments: fail(code) if name in names else do()):
        yield


@contextmanager
def full_after(pattern: bytes) -> Iterator[None]:
    """While inside, the disk has room to the end of what matches in a write: that one is short, the next one fails."""
    is_full = False

    def wrapped(name: str, do: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal is_full
        if name != "pwrite":
            return do()
        descriptor, data, at = arguments
        if is_full:
            return fail(errno.ENOSPC)
        found = re.search(pattern, data)
        if found is None:
            return do()
        is_full = True
        return os.pwrite(descriptor, data[: found.end()], at)

    with intercepted(wrapped):
        yield
