"""A real Postgres for tests, wherever one can be had, and a database of its own for each test.

An explicit DSN (BEFOREHAND_TEST_PG_DSN), else a container engine through testcontainers, else binaries on this machine.
BEFOREHAND_TEST_PG=dsn|docker|local takes one of them and no other. Which it was stands in pytest's summary. None at all
is an error, never a skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
import pytest
import pytest_asyncio

from persistence.postgres import PostgresPersistence
from persistence.postgres.dsn import Dsn
from tests.support import engine
from tests.support.postgres_local import LocalServer, NotAvailable

T = TypeVar("T")

WHICH, DSN, IMAGE = "BEFOREHAND_TEST_PG", "BEFOREHAND_TEST_PG_DSN", "BEFOREHAND_TEST_PG_IMAGE"

_used: list[str] = []


@dataclass(frozen=True, slots=True)
class Server:
    """A server that tests may do with as they like. `dsn` leads to a database from which others are made."""

    dsn: str
    found: str
    outlives_tests: bool = False

    def to(self, database: str) -> str:
        """The DSN of another database on it."""
        before, _, options = self.dsn.partition("?")
        scheme, _, rest = before.partition("://")
        authority = rest.partition("/")[0]
        return f"{scheme}://{authority}/{database}{'?' if options else ''}{options}"

    async def drop(self, database: str) -> None:
        """Leave nothing behind. On a server that goes as a whole that would take longer than most tests."""
        if self.outlives_tests:
            await self.run(f"drop database {database} with (force)")

    async def run(self, *statements: str, database: str | None = None) -> list[Any]:
        """Run statements, as another client would; the rows of the last one."""
        return await run_sql(self.to(database) if database else self.dsn, *statements)


async def run_sql(dsn: str, *statements: str) -> list[Any]:
    """Run statements in a database; the rows of the last one."""
    connection = await connect(dsn)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        found: list[Any] = await connection.fetch(statements[-1])
        return found
    finally:
        await connection.close()


async def connect(dsn: str) -> Any:
    """A connection of a test's own, to look or to disturb, past the pooler if there is one."""
    return await asyncpg.connect(getattr(dsn, "direct", dsn))


# ------------------------------------------------------------------------------------------------ the rungs


@contextlib.contextmanager
def _explicit() -> Iterator[Server]:
    dsn = os.environ.get(DSN)
    if not dsn:
        raise NotAvailable(f"{DSN} is not set")
    yield Server(dsn, f"dsn, {Dsn.parse(dsn)}", outlives_tests=True)


@contextlib.contextmanager
def _container() -> Iterator[Server]:
    version = engine.version()
    import docker  # type: ignore[import-untyped]
    from testcontainers.community.postgres import PostgresContainer

    image = os.environ.get(IMAGE, "postgres:18-alpine")
    container = PostgresContainer(image, driver=None)
    try:
        container.start()
    except docker.errors.APIError as error:  # an engine without a way to a registry, most often
        raise NotAvailable(f"engine {version} has no {image} and cannot get it ({error.explanation})") from error
    try:
        url = f"{container.get_connection_url(driver=None)}?sslmode=disable"  # its host may be a bridge, not loopback
        yield Server(url, f"docker, {image} on engine {version}")
    finally:
        container.stop()


@contextlib.contextmanager
def _local() -> Iterator[Server]:
    with LocalServer({"max_connections": "200"}) as server:
        yield Server(server.dsn(), f"local, {server.version} from {server.binaries}")


RUNGS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "dsn": _explicit,
    "docker": _container,
    "local": _local,
}


@contextlib.contextmanager
def provided() -> Iterator[Server]:
    """A server by the first rung that has one. Raises NotAvailable, telling why each had none."""
    wanted = os.environ.get(WHICH)
    if wanted and wanted not in RUNGS:
        raise NotAvailable(f"{WHICH} is {wanted!r}; it is one of {', '.join(RUNGS)}")
    why: list[str] = []
    for name in [wanted] if wanted else RUNGS:
        with contextlib.ExitStack() as stack:
            try:
                server = stack.enter_context(RUNGS[name]())
            except NotAvailable as error:
                why.append(f"{name}: {error}")
                continue
            _used.append(server.found)
            yield server
            return
    raise NotAvailable("no Postgres to test with:\n  " + "\n  ".join(why))


# ------------------------------------------------------------------------------------------------ fixtures


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for all tests of this run."""
    with provided() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Server) -> Iterator[str]:
    """The name of a database that was migrated and is copied, which takes a tenth of the time."""
    name = f"template_{secrets.token_hex(4)}"

    async def make() -> None:
        await postgres_server.run(f"create database {name} template template0 encoding 'UTF8'")
        await PostgresPersistence(postgres_server.to(name)).migrate()

    apart(make())
    yield name
    apart(postgres_server.drop(name))


@pytest_asyncio.fixture
async def postgres_dsn(postgres_server: Server, postgres_template: str) -> AsyncIterator[str]:
    """A migrated database for this test alone."""
    name = f"test_{secrets.token_hex(6)}"
    await postgres_server.run(f"create database {name} template {postgres_template}")
    yield postgres_server.to(name)
    await postgres_server.drop(name)


@pytest_asyncio.fixture
async def empty_postgres_dsn(postgres_server: Server) -> AsyncIterator[str]:
    """An empty database for this test alone."""
    name = f"test_{secrets.token_hex(6)}"
    await postgres_server.run(f"create database {name} template template0 encoding 'UTF8'")
    yield postgres_server.to(name)
    await postgres_server.drop(name)


@pytest.fixture(scope="session")
def postgres_places(postgres_server: Server) -> Iterator[str]:
    """A database in which tests take a schema each: one is made in a tenth of the time, and room, of a copy."""
    name = f"places_{secrets.token_hex(4)}"
    apart(postgres_server.run(f"create database {name} template template0 encoding 'UTF8'"))
    yield postgres_server.to(name)
    apart(postgres_server.drop(name))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which Postgres it was."""
    for found in _used:
        terminalreporter.write_line(f"Postgres: {found}")


def apart(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, run to its end on an event loop of its own, beside that of the tests."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
