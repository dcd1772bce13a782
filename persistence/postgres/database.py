"""The way to one database: checked when it is opened, then connections for those who append and for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from app.session.errors import PersistenceUnavailable, StoreUnusable
from app.session.health import Finding
from persistence.postgres import checking, errors, health, migrate
from persistence.postgres.connecting import Connection, Connector, Link
from persistence.postgres.dsn import Dsn, Tls
from persistence.postgres.group import GroupCommit
from persistence.postgres.locked import until_unlocked
from persistence.postgres.pool import Pool
from persistence.postgres.writing import Writer

T = TypeVar("T")
Job = Callable[[Connection], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, and how long each thing may take, as the settings give them."""

    writers: int
    pool_size: int
    group_max_bytes: int
    pool_timeout_ms: int
    statement_timeout_ms: int
    connect_timeout_ms: int
    statement_cache_size: int


@dataclass(frozen=True, slots=True)
class _Open:
    writers: Pool
    readers: Pool
    group: GroupCommit


class Database:
    """Runs jobs on connections, each for one job at a time. Errors of the driver come out as errors of ours."""

    def __init__(
        self, dsn: Dsn, tls: Tls | None, schema: str, standby: checking.Standby | None, limits: Limits
    ) -> None:
        self.dsn = dsn
        self.schema = schema
        self._standby: checking.Standby | None = standby
        self._limits = limits
        timeouts_s = limits.connect_timeout_ms / 1000, limits.statement_timeout_ms / 1000
        self._connector = Connector(dsn, tls, *timeouts_s, limits.statement_cache_size, self._check_server)
        self._open: _Open | None = None
        self._changing = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    async def open(self, writer: Writer, *, migrates: bool) -> None:
        """Check the server and the schema, migrated before if it `migrates`. Raises StoreUnusable."""
        async with self._changing:
            if self._open is None:
                if migrates:
                    await self.migrate()
                await self._directly(self._check)
                limits, wait_s = self._limits, self._limits.pool_timeout_ms / 1000
                writers = Pool(self._connector, limits.writers, wait_s)
                group = GroupCommit(writers, writer, limits.writers, limits.group_max_bytes, wait_s)
                self._open = _Open(writers, Pool(self._connector, limits.pool_size, wait_s), group)

    async def close(self) -> None:
        """Finish what was asked for, then say goodbye."""
        async with self._changing:
            if self._open is not None:
                opened, self._open = self._open, None
                await opened.group.drain()
                await opened.writers.close()
                await opened.readers.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of what was applied. Raises StoreUnusable."""
        return await self._directly(lambda link: migrate.migrate(link.connection, self.schema))

    async def missing_migrations(self) -> list[str]:
        """The names of what is not applied yet. Raises StoreUnusable."""
        return await self._directly(lambda link: migrate.check(link.connection, self.schema))

    def examine(self, *, migrates: bool) -> AsyncIterator[Finding]:
        """What there is to tell an operator."""
        return health.examine(self._connector, self.schema, self._standby, migrates=migrates)

    def group(self, session_id: str) -> GroupCommit:
        """Where appends go. Raises PersistenceUnavailable when it is not open."""
        return self._opened(session_id).group

    async def write(self, session_id: str, job: Job[T]) -> T:
        """What `job` returns, done on a connection that nobody reads by; again as long as it raises Locked."""
        writers = self._opened(session_id).writers
        patience_s = self._limits.pool_timeout_ms / 1000
        return await until_unlocked(lambda: self._run(writers, session_id, job), session_id, patience_s)

    async def read(self, session_id: str, job: Job[T]) -> T:
        """What `job` returns."""
        return await self._run(self._opened(session_id).readers, session_id, job)

    # ---------------------------------------------------------------------------------------- inside

    def _opened(self, session_id: str) -> _Open:
        if self._open is None:
            raise PersistenceUnavailable(session_id, "the store is not open")
        return self._open

    async def _run(self, pool: Pool, session_id: str, job: Job[T]) -> T:
        try:
            async with pool.use(session_id) as link:
                warnings = link.warnings
                result = await job(link.connection)
                if link.warnings != warnings:
                    raise PersistenceUnavailable(session_id, "the server committed with a warning")
                return result
        except errors.FOREIGN as error:
            raise errors.meaning(error, session_id) from None

    async def _directly(self, job: Callable[[Link], Awaitable[T]]) -> T:
        """What `job` returns, on a connection of its own that works whatever stands in between."""
        try:
            link = await self._connector.connect(cached=False)
            try:
                return await job(link)
            finally:
                await link.close()
        except PersistenceUnavailable as error:
            raise StoreUnusable(str(self.dsn), error.reason) from None
        except errors.FOREIGN as error:
            raise StoreUnusable(str(self.dsn), errors.reason(error)) from None

    async def _check(self, link: Link) -> None:
        where = str(self.dsn)
        self._connector.is_pooled = link.is_pooled
        checking.check_cache(link, where, self._limits.statement_cache_size)
        await self._check_server(link)
        await checking.check_schema(link.connection, where, self.schema)

    async def _check_server(self, link: Link) -> None:
        await checking.check_server(link.connection, str(self.dsn), self._standby)
