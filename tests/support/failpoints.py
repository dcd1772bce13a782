"""Failpoints: comments in the product, such as `# fp: batch.stored`, that an import hook of tests turns into calls.

To whoever does not `install` the hook they are comments. Modules that come through it keep their line numbers, and no
compiled file is read or written.
"""

from __future__ import annotations

import importlib.abc
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("app", "containers", "persistence", "policy")
HIT = "__failpoint__"
_COMMENT = re.compile(r"^([ \t]*)# fp: ([\w.]+)$", re.MULTILINE)

_armed: list[Callable[[str], None]] = []


def listed() -> list[tuple[str, str]]:
    """Every failpoint of the sources and where it stands, `app/session/drain.py:97`, in the order of the files."""
    return [
        (match[2], f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in [path.read_text()]
        for match in _COMMENT.finditer(text)
    ]


def without(text: str) -> str:
    """A source without its failpoints, and without their lines."""
    return re.sub(rf"{_COMMENT.pattern}\n", "", text, flags=re.MULTILINE)


def hooked(text: str) -> str:
    """A source with its failpoints as calls, each in its line."""
    return _COMMENT.sub(rf"\1{HIT}('\2')", text)


def arm(do: Callable[[str], None]) -> None:
    """From now on call this at every failpoint, with its name, in whichever thread comes by."""
    _armed.append(do)


def kill_at(name: str, nth: int) -> Callable[[str], None]:
    """For `arm`: SIGKILL to this process when it comes by there for the nth time, counted from 1."""
    left = nth

    def pass_by(passed: str) -> None:
        nonlocal left
        left -= passed == name
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def install() -> None:
    """Import the product with its failpoints from now on. Raises RuntimeError if some of it is there already."""
    if early := [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        raise RuntimeError(f"imported without failpoints: {', '.join(early)}")
    sys.meta_path.insert(0, _Finder())


def _hit(name: str) -> None:
    for do in _armed:
        do(name)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path).decode()
        return compile(hooked(text), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[HIT] = _hit
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
