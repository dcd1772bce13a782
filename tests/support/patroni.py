"""Three Postgres servers kept by Patroni, which promotes one by itself when the primary is lost.

Patroni and etcd are taken where they are installed. All of it runs on loopback ports from one directory, as the account
that servers run as, and ends with this process however that dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.forwarding import Forwarder
from tests.support.postgres_local import NotAvailable, binaries_for, unprivileged

Found = TypeVar("Found")
_LIMIT_S = 120.0
_WATCHDOG = """
import os, shutil, signal, sys, time
os.setsid()
for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
root = sys.argv[1]
sys.stdin.buffer.read()  # its only writer is the process that runs the tests: at its end that one is gone
def ours():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if root in words and int(pid) != os.getpid():
            yield int(pid)
while pids := list(ours()):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.05)
while os.path.exists(root):  # what the servers started sees that they are gone, and still writes until then
    shutil.rmtree(root, ignore_errors=True)
"""


def programs() -> tuple[str, str]:
    """Patroni and etcd. Raises NotAvailable."""
    own = Path(__file__).parents[2] / ".venv-patroni" / "bin" / "patroni"
    patroni = os.environ.get("BEFOREHAND_TEST_PATRONI") or (str(own) if own.exists() else shutil.which("patroni"))
    etcd = shutil.which("etcd")
    if patroni is None or etcd is None:
        missing = [name for name, path in (("patroni", patroni), ("etcd", etcd)) if path is None]
        raise NotAvailable(f"{' and '.join(missing)} not installed")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise NotAvailable("setpriv is not installed")
    return patroni, etcd


class Node:
    """One server and the Patroni that keeps it. Others reach it, and it reaches etcd, through forwarders."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"n{number}"
        self.directory = cluster.root / self.name
        self.port, self.rest_port = free_port(), free_port()
        self.ways: dict[str, Forwarder] = {}
        self._cluster = cluster
        self._patroni: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []

    async def start(self) -> None:
        """Start Patroni, which starts the server."""
        if not self.ways:
            ports = {"etcd": self._cluster.etcd_port, "server": self.port, "rest": self.rest_port}
            self.ways = {name: await Forwarder(port).open() for name, port in ports.items()}
            self._cluster.make(self.directory)
        file = self.directory / "patroni.json"  # JSON is YAML
        file.write_text(json.dumps(self._settings()))
        self._patroni = self._cluster.spawn([self._cluster.patroni, str(file)], self.directory / "log")

    def kill(self, *, server_alone: bool) -> None:
        """SIGKILL to the server, and before that to Patroni."""
        assert self._patroni is not None
        if not server_alone:
            self._patroni.kill()
            self._patroni.wait()
        os.kill(self._server_pid(), signal.SIGKILL)

    def freeze(self, *, patroni_alone: bool) -> None:
        """SIGSTOP to Patroni, and to all processes of the server."""
        assert self._patroni is not None
        self._stop(self._patroni.pid)
        if not patroni_alone:
            first = self._server_pid()
            self._stop(first)  # before the others: it starts no more then
            for pid in Path(f"/proc/{first}/task/{first}/children").read_text().split():
                self._stop(int(pid))

    def thaw(self) -> None:
        while self._frozen:
            os.kill(self._frozen.pop(), signal.SIGCONT)

    def leads(self) -> bool:
        """Whether it says so itself."""
        return bool(_asked(self.rest_port, "primary"))

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._frozen.append(pid)

    def _server_pid(self) -> int:
        return int((self.directory / "data" / "postmaster.pid").read_text().splitlines()[0])

    def _settings(self) -> dict[str, Any]:
        data, hosts = self.directory / "data", "127.0.0.1/32 trust"
        user = {"username": "postgres"}
        return {
            "scope": "beforehand",
            "name": self.name,
            "etcd3": {"hosts": [f"127.0.0.1:{self.ways['etcd'].port}"], "use_proxies": True},
            "restapi": {
                "listen": f"127.0.0.1:{self.rest_port}",
                "connect_address": f"127.0.0.1:{self.ways['rest'].port}",
            },
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "primary_start_timeout": 0,
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, "no-locale"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.ways['server'].port}",
                "data_dir": str(data),
                "bin_dir": str(self._cluster.binaries),
                "pgpass": str(self.directory / "pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "parameters": {"unix_socket_directories": str(self.directory), "wal_retrieve_retry_interval": "100ms"},
                "pg_hba": ["local all all trust", f"host all all {hosts}", f"host replication all {hosts}"],
            },
        }


class Cluster:
    """Three nodes, one the leader, and at least one of the others the synchronous standby. Left, all of it is gone."""

    def __init__(self) -> None:
        self.patroni, self._etcd = programs()
        self._user = unprivileged()
        self.binaries = binaries_for(self._user)
        self.root = Path(tempfile.mkdtemp(prefix="patroni-", dir="/tmp"))
        self.etcd_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-c", _WATCHDOG, str(self.root)], stdin=subprocess.PIPE, cwd="/"
        )
        self.nodes = [Node(self, number) for number in (1, 2, 3)]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # also when it is interrupted: nothing is left behind
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        self.root.chmod(0o755)
        self.make(self.root / "etcd")
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        self.spawn(
            [
                *(self._etcd, "--data-dir", str(self.root / "etcd"), "--initial-cluster", f"default={peer}"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            ],
            self.root / "etcd.log",
        )
        await self.until(self._etcd_version, "etcd does not answer")
        for node in self.nodes:
            await node.start()
        await self.until_whole()

    async def __aexit__(self, *_: object) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        await asyncio.to_thread(self._watchdog.wait)  # it ends all of them
        for process in self._processes:
            process.wait()
        for node in self.nodes:
            for way in node.ways.values():
                await way.close()

    @property
    def dsn(self) -> str:
        """All hosts, by the addresses that no forwarder stands before."""
        return f"postgresql://postgres@{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/postgres"

    def make(self, directory: Path) -> None:
        """A directory that its account owns."""
        directory.mkdir(mode=0o700, exist_ok=True)
        if self._user:
            os.chown(directory, pwd.getpwnam(self._user).pw_uid, -1)

    def spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        if self._user:  # which may read what it runs, though that lies in the home of who runs the tests
            reads = "+dac_read_search"
            account = f"--reuid={self._user}", "--clear-groups", f"--inh-caps={reads}", f"--ambient-caps={reads}"
            command = ["setpriv", *account, *command]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._processes.append(process)
        return process

    async def leader(self) -> Node:
        """The node that leads, once there is one."""
        return await self.until(self._leader, "nobody leads")

    async def until_whole(self) -> Node:
        """The leader, once the two others follow it and one confirms its commits."""

        def look() -> Node | None:
            leader = self._leader()
            members = _asked(leader.rest_port, "cluster").get("members", []) if leader else []
            standbys = [member for member in members if member.get("state") == "streaming"]
            is_whole = len(standbys) == 2 and any(member["role"] == "sync_standby" for member in standbys)
            return leader if is_whole else None

        return await self.until(look, "the cluster is not whole")

    async def until_another(self, lost: Node) -> Node:
        """The node that leads instead of that one."""
        others = [node for node in self.nodes if node is not lost]
        return await self.until(lambda: next((node for node in others if node.leads()), None), "nobody else leads")

    async def until(self, look: Callable[[], Found | None], otherwise: str) -> Found:
        """What `look` finds, asked again and again. Raises TimeoutError with all logs after two minutes."""
        deadline = time.monotonic() + _LIMIT_S
        while (found := await asyncio.to_thread(look)) is None:
            if time.monotonic() > deadline:
                logs = [path.read_text()[-1500:] for path in sorted(self.root.rglob("*log")) if path.is_file()]
                raise TimeoutError("\n\n".join([otherwise, *logs]))
            await asyncio.sleep(0.1)
        return found

    def _etcd_version(self) -> str | None:
        version = _asked(self.etcd_port, "version").get("etcdcluster", "not_decided")
        return None if version == "not_decided" else version  # with which Patroni would not start

    def _leader(self) -> Node | None:
        return next((node for node in self.nodes if node.leads()), None)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _asked(port: int, question: str) -> dict[str, Any]:
    """What is answered at a port, with success; nothing otherwise."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{question}", timeout=2) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, HTTPException):  # it is not there, is frozen, or says no
        return {}
    return told
