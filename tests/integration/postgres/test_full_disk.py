"""A server whose disk is full: it says so or stops, nothing is lost, and with room again the same sessions go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from persistence.postgres import PostgresPersistence
from tests.integration.postgres.load import SESSIONS, Load
from tests.support.counting import amount
from tests.support.postgres import run_sql
from tests.support.postgres_local import LocalServer

TIMES = amount("FULL_DISKS", 2)
TOLD = "the server's disk is full (53100)"
NEXT_SEGMENT = (
    "select pg_logical_emit_message(true, '', 'something, or there is nothing to switch for')",
    "select pg_switch_wal()",
)

pytestmark = pytest.mark.timeout(60 + 10 * TIMES)


class SmallServer(LocalServer):
    """A server whose data have a file system of their own. Where none can be mounted, its test did not run."""

    def _fill(self) -> None:
        if self._user is None:
            pytest.skip("not run: mounting takes root")
        self._data.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=256m", "none", str(self._data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"not run: {done.stderr.strip()}")
        shutil.chown(self._data, self._user)
        super()._fill()

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def fill_disk(self) -> None:
        """Leave no room at all."""
        with self._ballast.open("wb") as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):  # as soon as there is no room for one more
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)

    def empty_disk(self) -> None:
        """Have room again."""
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        return self._data / "ballast"


@asynccontextmanager
async def loaded() -> AsyncIterator[tuple[SmallServer, Load]]:
    """A small server, and sessions that write to it; at the end they are looked at, and counted."""
    with SmallServer() as server:
        store = PostgresPersistence(server.dsn(), migrate_on_start=True, pool_timeout_ms=60_000)
        await store.open()
        load = Load(store)
        async with load:
            yield server, load
            await load.until(2 * SESSIONS)
        await load.check(server.dsn())
        await store.close()
    load.conclude("disk of the server full, postgres", TIMES)


async def test_an_append_that_finds_no_room_says_so_and_comes_with_the_next() -> None:
    async with loaded() as (server, load):
        for _ in range(TIMES):
            await load.until(load.chance.randint(1, 400))
            await run_sql(server.dsn(), *NEXT_SEGMENT)  # which is whole before the room ends, or the server would
            await asyncio.to_thread(server.fill_disk)
            await load.until(2 * SESSIONS, TOLD)
            server.empty_disk()
            await load.until(2 * SESSIONS)


async def test_a_server_that_stops_because_its_log_has_no_room_has_lost_nothing() -> None:
    async with loaded() as (server, load):
        for _ in range(TIMES):
            await load.until(load.chance.randint(1, 400))
            await asyncio.to_thread(server.fill_disk)
            while server.is_running:
                with contextlib.suppress(asyncpg.PostgresError, OSError):  # it stops in the middle of this
                    await run_sql(server.dsn(), *NEXT_SEGMENT)
            server.empty_disk()
            await asyncio.to_thread(server.start)
