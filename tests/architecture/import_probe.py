"""Imports modules, each in an interpreter of its own, and tells what each import did to the world.

A script: `import_probe.py FOLDER MODULE...` prints a JSON object from each module to a list of what was seen. Each
interpreter is a fork of one that has loaded FOREIGN and no module of ours: what foreign packages do is not ours, and
loading them once keeps this fast.
"""

import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any
from unittest import mock

FOREIGN = (
    "asyncio",
    "dependency_injector.providers",
    "pydantic_settings",
    "pytest",
    "pytest_asyncio",
    "rich.live",
    "rich.markdown",
    "sqlite3",
    "typer.testing",
)
EFFECTS = ("os.", "shutil.", "signal.", "socket.", "sqlite3.", "subprocess.", "tempfile.", "urllib.")
LOOKS = ("os.listdir", "os.scandir", "os.walk")  # python's own search for modules
CODE = (".py", ".pyc", ".so", ".pth", "METADATA", "entry_points.txt")


class WatchedEnvironment(MutableMapping[str, str]):
    """`os.environ`, writing down who asks for a BEFOREHAND_ variable, walks over all of them, or changes one."""

    def __init__(self, real: MutableMapping[str, str], seen: list[str]) -> None:
        self._real = real
        self._seen = seen

    def __getitem__(self, name: str) -> str:
        if name.startswith("BEFOREHAND_"):
            self._seen.append(f"environment read: {name}")
        return self._real[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._seen.append(f"environment changed: {name}")
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        self._seen.append(f"environment changed: {name}")
        del self._real[name]

    def __iter__(self) -> Iterator[str]:
        self._seen.append("environment walked")
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


def import_watched(module: str) -> list[str]:
    """Import it here and now, and say what was seen meanwhile. This interpreter is of no use afterwards."""
    seen: list[str] = []
    watching = False

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event == "open":
            path, mode, _ = arguments
            if mode not in ("r", "rb") or not str(path).endswith(CODE):
                seen.append(f"open: {path}")
        elif event.startswith(EFFECTS) and event not in LOOKS:
            seen.append(event)

    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.addaudithook(audit)
        with mock.patch.object(os, "environ", WatchedEnvironment(os.environ, seen)):
            watching = True
            try:
                importlib.import_module(module)
            except BaseException as error:  # whatever ends an import, SystemExit too, is a finding about that module
                seen.append(f"raised: {error!r}")
            watching = False
        if threading.active_count() > 1:
            seen.append("thread left running")
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        printed = output.read().decode(errors="replace")
    return [*seen, f"printed: {printed}"] if printed else seen


def import_apart(module: str) -> list[str]:
    """The same in a fork, so that the next module meets a fresh interpreter."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as answer:
            json.dump(import_watched(module), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return list(json.loads(text or '["died"]'))


def main(folder: str, *modules: str) -> None:
    """Probe each module found in `folder`."""
    for name in FOREIGN:
        importlib.import_module(name)
    sys.path.insert(0, folder)
    print(json.dumps({module: import_apart(module) for module in modules}))


if __name__ == "__main__":
    main(*sys.argv[1:])
