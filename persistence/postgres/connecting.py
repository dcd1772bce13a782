"""A connection to the server that takes writes, found among all the hosts of the DSN.

The driver's own search over hosts gives one that never answers the whole time there is, stops at one that has too many
clients, and takes for a server the first that writes, an old primary that came back too. So the hosts are asked here,
all at once, each with a time limit of its own, and of those that take writes the one of the newest timeline is taken.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias
from weakref import WeakSet

import asyncpg

from app.session.errors import PersistenceUnavailable, StoreUnusable
from persistence.postgres import errors
from persistence.postgres.dsn import Dsn, Host, Tls
from persistence.postgres.lineage import Identity, Lineage

logger = logging.getLogger(__name__)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_NAME = "beforehand"
_IDLE_TRANSACTION_S = 60
"""How long the server lets a claim be prepared with the session's row locked; then it undoes it."""
_GOODBYE_S = 2.0
_FINAL = ("28", "3D000", "42501")  # it will not get better by asking again: who we are, or which database

# The name of the log's file begins with its timeline; the control file learns of a promotion only later.
_LOOK = """
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on', pg_backend_pid(),
    (select backend_start from pg_stat_activity where pid = pg_backend_pid()),
    (select system_identifier from pg_control_system()),
    case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_lsn()) end
"""
_END = "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2"


@dataclass(eq=False)
class Link:
    """One connection, and what was noticed about it. `warnings` counts those of the server's since it was made."""

    connection: Connection
    pid: int
    since: datetime | None
    is_pooled: bool
    server: Identity
    warnings: int = 0

    async def close(self) -> None:
        """Say goodbye to the server."""
        try:
            await self.connection.close(timeout=_GOODBYE_S)
        except errors.FOREIGN:  # it was gone already, or does not answer: then without a goodbye
            self.connection.terminate()

    def note(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        """Told of what the server says beside its answers. 01000 to 01999 are warnings, 00000 mere notices."""
        if (message.sqlstate or "").startswith("01"):
            self.warnings += 1


@dataclass(eq=False)
class Connector:
    """Makes connections. What a `lost` one may still be doing on the server is ended before the next is handed out.

    `check` looks at a server that was not used before: one found after a failover may be set up in another way.
    """

    dsn: Dsn
    tls: Tls | None
    connect_timeout_s: float
    statement_timeout_s: float
    statement_cache_size: int
    check: Callable[[Link], Awaitable[None]]
    is_pooled: bool = False
    _lineage: Lineage = field(default_factory=Lineage)
    _lost: list[tuple[int, datetime]] = field(default_factory=list)
    _silent: set[Host] = field(default_factory=set)
    _made: WeakSet[Link] = field(default_factory=WeakSet)
    _checked: Identity | None = None

    async def connect(self, *, cached: bool = True) -> Link:
        """A connection to the server that takes writes. Raises PersistenceUnavailable, saying what each host said.

        StoreUnusable for what waiting does not help. Without `cached` it works behind any pooler, and is not checked.
        """
        trying = {host: asyncio.create_task(self._reach(host, cached)) for host in self.dsn.hosts}
        kept: Link | None = None
        try:
            await self._wait(trying)
            chosen, said = self._choose(trying)
            if chosen is None:
                raise PersistenceUnavailable("", "no server to write to: " + "; ".join(said))
            self._follow(chosen)
            await self._prepare(chosen, is_checked=cached)
            kept = chosen
            return kept
        finally:  # also when the caller is cancelled: nobody else knows of these connections
            for task in trying.values():
                task.cancel()
            for made in await asyncio.gather(*trying.values(), return_exceptions=True):
                if isinstance(made, Link) and made is not kept:
                    made.connection.terminate()

    @property
    def has_lost(self) -> bool:
        """Whether a connection that was given up may still hold a session's row: the next one made ends that."""
        return bool(self._lost)

    def lost(self, link: Link) -> None:
        """This one was given up with its outcome unknown: its backend may still run, and hold a session's row."""
        if link.since is not None and not link.is_pooled:
            self._lost.append((link.pid, link.since))

    async def _wait(self, trying: dict[Host, asyncio.Task[Link]]) -> None:
        """Until every host has answered. One that was silent is not waited for again while another takes writes."""
        waited_for = [task for host, task in trying.items() if host not in self._silent]
        if waited_for:
            await asyncio.wait(waited_for)
        if not any(task.exception() is None for task in waited_for):
            await asyncio.wait(trying.values())
        answered = {host: task.exception() for host, task in trying.items() if task.done()}
        silent = {host for host, error in answered.items() if isinstance(error, TimeoutError)}
        self._silent = self._silent - answered.keys() | silent

    def _choose(self, trying: dict[Host, asyncio.Task[Link]]) -> tuple[Link | None, list[str]]:
        """The connection to keep, and what is to be said of the hosts that have none. Raises StoreUnusable."""
        said: list[str] = []
        found: list[tuple[Host, Link]] = []
        for host, task in trying.items():
            error = task.exception() if task.done() else TimeoutError()
            if error is None:
                found.append((host, task.result()))
            elif not isinstance(error, errors.FOREIGN):
                raise error
            else:
                said.append(f"{host}: {errors.reason(error)}")
                if len(trying) == 1 and (getattr(error, "sqlstate", None) or "").startswith(_FINAL):
                    raise StoreUnusable(str(self.dsn), errors.reason(error)) from None
        chosen: Link | None = None
        for host, link in sorted(found, key=lambda one: one[1].server.timeline, reverse=True):
            if why := self._lineage.refusal(link.server):
                said.append(f"{host}: {why}")
                logger.warning("%s takes writes and is not used: %s", host, why)
            elif chosen is None:
                chosen, self._lineage.newest = link, link.server
        return chosen, said

    def _follow(self, link: Link) -> None:
        """End what still leads to a primary of the past, whether or not that answers."""
        for made in self._made:
            if made.server != link.server:
                made.connection.terminate()
        self._made.add(link)

    async def _prepare(self, link: Link, *, is_checked: bool) -> None:
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await self._end_lost(link.connection)
                if is_checked and self._checked != link.server:
                    await self.check(link)
                    self._checked = link.server
        except errors.FOREIGN as error:
            raise PersistenceUnavailable("", errors.reason(error)) from None
        except StoreUnusable as error:  # it may be set up in a moment: a promotion is not done at once
            raise PersistenceUnavailable("", error.reason) from None

    async def _reach(self, host: Host, cached: bool) -> Link:
        connection = await self._open(host, cached)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                row = await connection.fetchrow(_LOOK)
            assert row is not None  # it answers one
            is_read_only, pid, since, system, log_file = row
            if is_read_only:
                raise ConnectionRefusedError(0, "it is a standby, or told to be read-only")
            # A pooler makes up the pid that it tells its clients.
            is_pooled = pid != connection.get_server_pid()
            link = Link(connection, pid, since, is_pooled, Identity(system, int(log_file[:8], 16)))
            connection.add_log_listener(link.note)
        except BaseException:  # also when the caller is cancelled: nobody else knows of this connection
            connection.terminate()
            raise
        return link

    async def _end_lost(self, connection: Connection) -> None:
        lost, self._lost = self._lost, []
        try:
            for pid, since in lost:
                await connection.execute(_END, pid, since)
        except BaseException:  # also when it is cancelled: the next one does it
            self._lost += lost
            raise

    async def _open(self, host: Host, cached: bool) -> Connection:
        settings = {"application_name": _NAME}
        if not self.is_pooled and cached:  # a pooler refuses every other one
            settings |= {
                "statement_timeout": f"{self.statement_timeout_s * 1000:.0f}",
                "idle_in_transaction_session_timeout": f"{_IDLE_TRANSACTION_S * 1000}",
                "default_transaction_isolation": "read committed",
                "client_connection_check_interval": "5000",  # a statement whose client is gone is not waited for
            }
        connection: Connection = await asyncpg.connect(
            host=host.name,
            port=host.port,
            user=self.dsn.user,
            password=self.dsn.password,
            database=self.dsn.database,
            ssl=self.dsn.encryption(host, self.tls),
            timeout=self.connect_timeout_s,
            command_timeout=self._patience_s,
            statement_cache_size=self.statement_cache_size if cached else 0,
            max_cached_statement_lifetime=0,
            server_settings=settings,
        )
        if not host.is_socket:
            self._keep_alive(connection)
        return connection

    @property
    def _patience_s(self) -> float:
        # The server's own limit comes first and leaves the connection usable, but no pooler lets it be told of one.
        return self.statement_timeout_s + (0 if self.is_pooled else self.connect_timeout_s)

    def _keep_alive(self, connection: Connection) -> None:
        driver: Any = connection  # which sets no option of its socket, and shows it nowhere
        found: socket.socket = driver._transport.get_extra_info("socket")  # noqa: SLF001
        options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
        options["TCP_USER_TIMEOUT"] = round(self._patience_s * 1000)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not every system has each
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
