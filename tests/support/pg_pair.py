"""A primary and the synchronous standby that confirms its commits: to be lost, promoted, and to come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest_asyncio

from tests.support.postgres import run_sql
from tests.support.postgres_local import LocalServer

_SETTINGS = """
wal_retrieve_retry_interval = 100ms
wal_log_hints = on  # these two are for pg_rewind, which finds them nowhere else
wal_keep_size = 256MB
"""
_DEMAND = ("alter system set synchronous_standby_names = 'ANY 1 (*)'", "select pg_reload_conf()")
_ATTACHED = "select from pg_stat_replication where sync_state = 'quorum'"
WAITING = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


class Member(LocalServer):
    """A server that can follow another one. It begins as a copy of `source`, taken while that runs."""

    def __init__(self, source: LocalServer | None = None) -> None:
        super().__init__()
        self._source = source

    def _fill(self) -> None:
        if self._source is None:
            super()._fill()
            with (self._data / "postgresql.conf").open("a") as settings:
                settings.write(_SETTINGS)
        else:
            where = ("-h", self._source.directory, "-U", "postgres")
            self._run("pg_basebackup", "-D", self._data, *where, "-R", "-X", "stream", "-c", "fast", "-N")

    def promote(self) -> None:
        """Make a standby the primary, on a timeline of its own."""
        self._run("pg_ctl", "promote", "-D", self._data, "-w")

    def forget_primary(self) -> None:
        """Let what is a copy of a server start as if it were that server."""
        (self._data / "standby.signal").unlink()

    def rejoin(self, primary: LocalServer) -> None:
        """Start a server that is stopped as a standby, its own later history undone."""
        source = f"host={primary.directory} user=postgres dbname=postgres"
        self._run("psql", "-c", "checkpoint", source)  # before it, a server older than 16 does not tell of a promotion
        self._run("pg_rewind", "-D", self._data, "--source-server", source, "-R", "-N")
        self.start()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers; the one called standby follows the one called primary until a test changes that."""

    primary: Member
    standby: Member

    @property
    def dsn(self) -> str:
        """Both hosts, the primary first."""
        return dsn_of(self.primary, self.standby)


def dsn_of(*servers: LocalServer) -> str:
    """One DSN with a host for each server."""
    hosts = ",".join(quote(str(server.directory), safe="") for server in servers)
    return f"postgresql://postgres@{hosts}/postgres"


async def attached(primary: LocalServer) -> None:
    """Return when a standby confirms the commits of that server."""
    while not await run_sql(primary.dsn(), _ATTACHED):
        pass


async def confirm_alone(primary: LocalServer) -> int:
    """Have the commits that wait for a standby done for that server alone, as a driver does that gives up. How many."""
    return len(await run_sql(primary.dsn(), f"select pg_cancel_backend(pid) from ({WAITING}) waiting"))


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    """A primary that commits nothing before its standby has it."""
    with Member() as primary:
        await run_sql(primary.dsn(), *_DEMAND)
        with Member(primary) as standby:
            await attached(primary)
            yield Pair(primary, standby)
