"""A process that has the product imported with its failpoints, and forks children which are killed at one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.support import failpoints

if TYPE_CHECKING:
    from tests.crash.child import Part


@dataclass(frozen=True, slots=True)
class Life:
    """How a child ended: killed, or its part was played to the end, having come by failpoints so often."""

    is_killed: bool
    passed: Counter[str] = field(default_factory=Counter)


class WarmParent:
    """From outside: starts such a process, and has it fork one child after the other."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-W", "error", "-m", "tests.crash.warm"]
        self._process = subprocess.Popen(
            command, cwd=failpoints.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def live(self, part: Part, kill_at: tuple[str, int] | None = None) -> Life:
        """Have a child play its part, or be killed where it comes by a failpoint for the nth time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"part": asdict(part), "kill_at": kill_at}) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        assert said["error"] is None, f"the child failed:\n{said['error']}"
        return Life(said["is_killed"], Counter(said["passed"]))


# ---------------------------------------------------------------------------------------- inside


def main() -> None:
    """Fork a child for each line that comes in."""
    failpoints.install()
    import tests.crash.child  # with all of the product

    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _play(tests.crash.child, json.loads(line), writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = json.loads(said) if said else {"error": None if code == -9 else f"it ended with {code}", "passed": {}}
        print(json.dumps({"is_killed": code == -9, **told}), flush=True)


def _play(child: Any, order: dict[str, Any], writing: int) -> None:
    """The whole life of a child: it never returns."""
    error, passed = None, Counter[str]()
    try:
        order["part"]["place"] = tuple(order["part"]["place"])
        failpoints.arm(failpoints.kill_at(*order["kill_at"]) if order["kill_at"] else partial(_count, passed))
        child.live(child.Part(**order["part"]))
    except BaseException:  # whatever it was, the parent is the one to tell
        error = traceback.format_exc()
    os.write(writing, json.dumps({"error": error, "passed": passed}).encode())
    os._exit(0)


def _count(passed: Counter[str], name: str) -> None:
    passed[name] += 1


if __name__ == "__main__":
    main()
