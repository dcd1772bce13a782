"""A connection to the server that takes writes, found among the DSN's hosts one after another.

The driver's own search over hosts gives one that never answers the whole time there is, stops at one that has too many
clients, and takes a standby for a server. So each host is asked here on its own, with a time limit of its own.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg

from app.session.errors import PersistenceUnavailable, StoreUnusable
from persistence.postgres import errors
from persistence.postgres.dsn import Dsn, Host, Tls

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_NAME = "beforehand"
_IDLE_TRANSACTION_S = 60
"""How long the server lets a claim be prepared with the session's row locked; then it undoes it."""
_GOODBYE_S = 2.0
_FINAL = ("28", "3D000", "42501")  # it will not get better by asking again: who we are, or which database

_LOOK = """
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on', pg_backend_pid(),
    (select backend_start from pg_stat_activity where pid = pg_backend_pid())
"""
_END = "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and backend_start = $2"


@dataclass(eq=False)
class Link:
    """One connection, and what was noticed about it. `warnings` counts those of the server's since it was made."""

    connection: Connection
    pid: int
    since: datetime | None
    is_pooled: bool
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
    """Makes connections. What a `lost` one may still be doing on the server is ended before the next is handed out."""

    dsn: Dsn
    tls: Tls | None
    connect_timeout_s: float
    statement_timeout_s: float
    statement_cache_size: int
    is_pooled: bool = False
    _lost: list[tuple[int, datetime]] = field(default_factory=list)

    async def connect(self, *, cached: bool = True) -> Link:
        """A connection to the first host that takes writes. Raises PersistenceUnavailable, saying what each host said.

        StoreUnusable for what waiting does not help. Without `cached` it works behind any pooler.
        """
        said: list[str] = []
        for host in self.dsn.hosts:
            try:
                return await self._reach(host, cached)
            except errors.FOREIGN as error:
                said.append(f"{host}: {errors.reason(error)}")
                if len(self.dsn.hosts) == 1 and (getattr(error, "sqlstate", None) or "").startswith(_FINAL):
                    raise StoreUnusable(str(self.dsn), errors.reason(error)) from None
        raise PersistenceUnavailable("", "no server to write to: " + "; ".join(said)) from None

    @property
    def has_lost(self) -> bool:
        """Whether a connection that was given up may still hold a session's row: the next one made ends that."""
        return bool(self._lost)

    def lost(self, link: Link) -> None:
        """This one was given up with its outcome unknown: its backend may still run, and hold a session's row."""
        if link.since is not None and not link.is_pooled:
            self._lost.append((link.pid, link.since))

    async def _reach(self, host: Host, cached: bool) -> Link:
        connection = await self._open(host, cached)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                is_read_only, pid, since = await connection.fetchrow(_LOOK) or (True, 0, None)
                if is_read_only:
                    raise ConnectionRefusedError(0, "it is a standby, or told to be read-only")
                # A pooler makes up the pid that it tells its clients.
                link = Link(connection, pid, since, is_pooled=pid != connection.get_server_pid())
                await self._end_lost(connection)
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
            # The server's own limit comes first and leaves the connection usable; this one is for a silent network.
            command_timeout=self.statement_timeout_s + self.connect_timeout_s,
            statement_cache_size=self.statement_cache_size if cached else 0,
            max_cached_statement_lifetime=0,
            server_settings=settings,
        )
        if not host.is_socket:
            self._keep_alive(connection)
        return connection

    def _keep_alive(self, connection: Connection) -> None:
        driver: Any = connection  # which sets no option of its socket, and shows it nowhere
        found: socket.socket = driver._transport.get_extra_info("socket")  # noqa: SLF001
        options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
        options["TCP_USER_TIMEOUT"] = round((self.statement_timeout_s + self.connect_timeout_s) * 1000)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not every system has each
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
