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


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Server) -> Iterator[Server]:
    """The tests' server through a pooler. Where there is none, its tests say they did not run."""
    with pooling(postgres_server.dsn) as pooler:
        yield pooler


@contextlib.contextmanager
def pooling(server: str) -> Iterator[Server]:
    """The server that this DSN leads to, through a pooler in transaction mode of its own."""
    program = _program()
    if program is None:
        pytest.skip("not run: there is no pgbouncer on this machine")
    dsn = Dsn.parse(server)
    place = {"host": dsn.hosts[0].name, "port": dsn.hosts[0].port, "user": dsn.user}
    place["password"] = f" password={dsn.password}" if dsn.password else ""
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with tempfile.TemporaryDirectory(prefix="pgb-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "settings.ini").write_text(_SETTINGS.format(**place, folder=folder))
        if user:
            for path in (folder, *folder.iterdir()):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # it ends however we end
        pooler = subprocess.Popen([*with_us, program, "-q", str(folder / "settings.ini")], user=user, cwd="/")
        try:
            deadline = time.monotonic() + 20
            while not (folder / ".s.PGSQL.6432").exists():
                if pooler.poll() is not None or time.monotonic() > deadline:
                    with contextlib.suppress(OSError):
                        print((folder / "log").read_text())
                    raise RuntimeError("pgbouncer did not start")
                time.sleep(0.01)
            yield Server(f"postgresql://postgres@/postgres?host={quote(name, safe='')}&port=6432", "pgbouncer")
        finally:
            pooler.kill()
            pooler.wait()
