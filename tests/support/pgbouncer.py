"""A transaction pooler in front of the tests' server, where its program is installed (Debian: package pgbouncer)."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest

from persistence.postgres.dsn import Dsn
from tests.support.postgres import Server

_SETTINGS = """
[databases]
* = host={host} port={port} user={user}{password}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
listen_port = 6432
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
max_db_connections = 0
logfile = {folder}/log
pidfile = {folder}/pid
ignore_startup_parameters = extra_float_digits
server_idle_timeout = 5
"""


DIRECTLY = pytest.mark.parametrize("way", ["direct"], indirect=True)
"""For a test from which a pooler would take the meaning; why stands beside it."""


class Pooled(str):
    """The DSN of a database through a pooler; `direct` leads past it, for those who look or disturb."""

    direct: str

    @classmethod
    def make(cls, pooler: Server, direct: str) -> Pooled:
        pooled = cls(pooler.to(Dsn.parse(direct).database or ""))
        pooled.direct = direct
        return pooled


def _program() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class Pooler:
    """One in transaction mode before the server that this DSN leads to. Left, it is gone.

    `server` is the way through it. Where the program is missing, the test that asks says that it did not run.
    """

    def __init__(self, server: str) -> None:
        program = _program()
        if program is None:
            pytest.skip("not run: there is no pgbouncer on this machine")
        self._folder = Path(tempfile.mkdtemp(prefix="pgb-", dir="/tmp"))
        self.server = Server(
            f"postgresql://postgres@/postgres?host={quote(str(self._folder), safe='')}&port=6432", "pgbouncer"
        )
        dsn = Dsn.parse(server)
        place = {"host": dsn.hosts[0].name, "port": dsn.hosts[0].port, "user": dsn.user}
        place["password"] = f" password={dsn.password}" if dsn.password else ""
        settings = self._folder / "settings.ini"
        settings.write_text(_SETTINGS.format(**place, folder=self._folder))
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # it ends however we end
        self._command = [*with_us, program, "-q", str(settings)]
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        if self._user:
            for path in (self._folder, settings):
                os.chown(path, pwd.getpwnam(self._user).pw_uid, -1)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # also when it is interrupted: nothing is left behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it, and return when it listens."""
        socket = self._folder / ".s.PGSQL.6432"
        socket.unlink(missing_ok=True)  # left by one that was killed
        self._process = subprocess.Popen(self._command, user=self._user, cwd="/")
        deadline = time.monotonic() + 20
        while not socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                with contextlib.suppress(OSError):
                    print((self._folder / "log").read_text())
                raise RuntimeError("pgbouncer did not start")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Server) -> Iterator[Server]:
    """The tests' server through a pooler. Where there is none, its tests say they did not run."""
    with Pooler(postgres_server.dsn) as pooler:
        yield pooler.server
