"""A container engine for tests: the one that answers, else Docker's own, started for them in namespaces of its own.

Every process, mount, network and image of the second is inside those namespaces, and ends with the process that runs
the tests, however that ends. It reaches no registry: its images are made by tests/support/stand_ins.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.postgres_local import NotAvailable

_START = """
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs "$1/data" && ip link set lo up && exec dockerd \
--config-file "$1/daemon.json" --data-root "$1/data" --exec-root /run/docker --pidfile /run/docker.pid \
--host "unix://$1/socket"
"""
_PARTS = ("dockerd", "iptables", "ip", "nsenter", "setpriv", "unshare")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that answers. `is_own`: it was started for these tests, and has no images but theirs."""

    version: str
    compose: tuple[str, ...]
    environment: Mapping[str, str]
    inside: tuple[str, ...] = ()
    is_own: bool = False

    def command(self, *words: str) -> list[str]:
        """The command, run where it can connect to the ports that containers publish."""
        return [*self.inside, *words]

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """Docker's own client of it."""
        import docker  # type: ignore[import-untyped]

        with contextlib.closing(docker.from_env(environment=self.environment)) as client:
            yield client


def version(environment: Mapping[str, str] = os.environ) -> str:
    """The version of the engine that answers, asked with a limit of its own: a deaf one costs a minute otherwise."""
    import docker

    host = environment.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("unix://"):  # its client leaves a socket open when there is nobody to connect to
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
            try:
                probe.connect(host.removeprefix("unix://"))
            except OSError as error:
                raise NotAvailable(f"no container engine at {host} ({error.strerror})") from None
    try:
        with contextlib.closing(docker.from_env(timeout=2, environment=environment)) as client:
            client.ping()
            return str(client.version().get("Version", "of unknown version"))
    except (docker.errors.DockerException, OSError) as error:
        raise NotAvailable(f"no container engine answers ({type(error).__name__})") from error


@contextlib.contextmanager
def found(place: Path) -> Iterator[Engine]:
    """An engine; `place` is an empty directory, for one that has to be started. Raises NotAvailable, telling why."""
    try:
        answered = version()
    except NotAvailable as error:
        with _started(place, str(error)) as engine:
            yield engine
    else:
        yield Engine(answered, _compose(), os.environ)


@contextlib.contextmanager
def _started(place: Path, why: str) -> Iterator[Engine]:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [name for name in _PARTS if shutil.which(name, path=path) is None]
    if os.geteuid() != 0 or missing:
        wanted = f"{', '.join(missing)} to be installed" if missing else "root"
        raise NotAvailable(f"{why}; to start one takes {wanted}: see `python3 dev.py services`")
    compose = _compose()
    (place / "data").mkdir()
    (place / "daemon.json").write_text(json.dumps({"deprecated-key-path": f"{place}/key.json"}))
    # The reaper of testcontainers is an image, and nothing outlives this engine anyway.
    own = {"PATH": path, "DOCKER_HOST": f"unix://{place}/socket", "TESTCONTAINERS_RYUK_DISABLED": "true"}
    environment = {**os.environ, **own}
    namespaces = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net"]
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", _START, "sh", str(place)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        inside = ("nsenter", f"--net=/proc/{daemon.pid}/ns/net")
        yield Engine(_wait_for(daemon, environment, place / "log"), compose, environment, inside, is_own=True)
    finally:
        try:  # the first process in there: all others end with it
            os.kill(int(Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()), signal.SIGKILL)
        except (OSError, ValueError):  # it has ended, or it has not begun
            daemon.kill()
        daemon.wait()


def _wait_for(daemon: subprocess.Popen[bytes], environment: Mapping[str, str], log: Path) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            return version(environment)
        except NotAvailable as error:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise NotAvailable(f"dockerd cannot run here: {log.read_text()[-300:]}") from error
            time.sleep(0.05)


def _compose() -> tuple[str, ...]:
    """The command of a compose implementation."""
    for command in (("docker", "compose"), ("docker-compose",)):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
                return command
    raise NotAvailable("there is neither `docker compose` nor `docker-compose`")
