"""The contract of app.session.persistence, kept with a Postgres database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from app.session.batch import Batch, Header
from app.session.errors import NoStore, PersistenceError, PersistenceUnavailable, SessionNotFound, StoreUnusable
from app.session.health import Finding
from app.session.identifiers import check_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence import rules
from persistence.postgres import reading
from persistence.postgres.checking import Standby, levels
from persistence.postgres.connecting import Connection
from persistence.postgres.database import Database, Limits
from persistence.postgres.dsn import Dsn, Tls
from persistence.postgres.migrate import migrations
from persistence.postgres.pool import SNAPSHOT, transaction
from persistence.postgres.queries import Queries
from persistence.postgres.writing import Writer, Writing


class PostgresPersistence:
    """Every session in one schema of the database that `dsn` leads to.

    Checkpoints go through `writers` connections of their own, so that nobody who reads holds them up; everything else
    shares `pool_size`. `pool_timeout_ms` bounds the wait for a connection, to a server that starts anew too, and for
    a session's row that another transaction holds; `statement_timeout_ms` each statement; `connect_timeout_ms` each
    try of a host. Behind a transaction pooler, `statement_cache_size` is 0. `standby` asks that the server has a
    synchronous standby: "on" that it keeps what is acknowledged, "remote_apply" that it shows it. `tls` overrules the
    DSN's sslmode; without either, only this machine is talked to in the clear.
    """

    kind = "postgres"
    durable = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "beforehand",
        pool_size: int = 8,
        pool_timeout_ms: int = 5_000,
        statement_timeout_ms: int = 10_000,
        connect_timeout_ms: int = 3_000,
        statement_cache_size: int = 100,
        writers: int = 2,
        group_max_bytes: int = 1024 * 1024,
        migrate_on_start: bool = False,
        standby: Standby | None = None,
        tls: Tls | None = None,
    ) -> None:
        limits = Limits(
            *(writers, pool_size, group_max_bytes),
            *(pool_timeout_ms, statement_timeout_ms, connect_timeout_ms, statement_cache_size),
        )
        self._queries = Queries.of(schema)
        self._writer = Writer(self._queries, levels(standby))
        self._database = Database(Dsn.parse(dsn), tls, schema, standby, limits)
        self._migrates = migrate_on_start

    def __repr__(self) -> str:
        database = self._database
        return f"<PostgresPersistence {database.dsn} {database.schema}{'' if database.is_open else ', not open'}>"

    async def open(self) -> None:
        """See the contract. Opening what is open does nothing. It migrates only if it was made to."""
        await self._database.open(self._writer, migrates=self._migrates)

    async def close(self) -> None:
        """See the contract."""
        await self._database.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of what was applied. Raises StoreUnusable. Needs not be open."""
        return await self._database.migrate()

    async def missing_migrations(self) -> list[str]:
        """The names of the migrations that are not applied yet. Raises StoreUnusable. Needs not be open."""
        return await self._database.missing_migrations()

    async def missing(self) -> StoreUnusable | None:
        """See app.session.health: what opening would migrate."""
        if not self._migrates or not (names := await self.missing_migrations()):
            return None
        where, advice = f"{self._database.dsn} {self._database.schema}", "`beforehand run` or `beforehand migrate`"
        if len(names) == len(migrations()):
            return NoStore(where, f"{advice} makes one")
        return StoreUnusable(where, f"it lacks {', '.join(names)}; {advice} applies it")

    def examine(self) -> AsyncIterator[Finding]:
        """See app.session.health."""
        return self._database.examine(migrates=self._migrates)

    async def faults(self) -> Sequence[str]:
        """See app.session.health. Damaged pages are the server's to tell, which it does by their checksums."""
        rows = await self._database.read("", lambda connection: connection.fetch(self._queries.strays))
        return [f"events of session {session_id!r}: there is none" for (session_id,) in rows]

    async def check_free(self, session_id: str) -> None:
        """See the contract."""
        check_id(session_id)
        rules.check_free(
            await self._database.read(session_id, lambda connection: self._find(connection, session_id)), session_id
        )

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        """See the contract. One statement and one round trip, which it may share with other sessions."""
        check_id(header.id)
        batch.check()
        _ = batch.digest  # the hashing is not to hold up those it is written with
        await self._database.group(header.id).append(Writing(header, batch, epoch))

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        """See the contract. The session's row stays locked from the first look to the commit.

        When the answer of the commit is lost, renewing tells whether the claim was made: its token is nobody else's.
        """
        sent: list[tuple[Epoch, StoredLog]] = []

        async def take(connection: Connection) -> None:
            async with transaction(connection):
                found = await reading.find(connection, self._queries.find_for_update, session_id)
                row = rules.check_takeable(found, session_id, force=force)
                log = await reading.read_log(connection, self._queries, session_id, row)
                epoch = Epoch.after(row.epoch, owner)
                batch = None if repair is None else await asyncio.to_thread(repair, log, epoch)
                rules.check_repair(batch, row)
                claim = session_id, epoch.number, epoch.token, owner.name, owner.lease_s
                await connection.execute(self._queries.claim, *claim)
                # fp: postgres.claiming
                if batch is not None:
                    await self._writer.one(connection, Writing(Header(session_id, row.header_text, 0), batch, epoch))
                sent.append((epoch, log))

        check_id(session_id)
        try:
            await self._database.read(session_id, take)
        except PersistenceUnavailable:
            if not sent:
                raise
            try:
                await self.renew(session_id, sent[0][0])
            except PersistenceError:  # it was not made, or that cannot be told either
                pass
            else:
                return sent[0]
            raise
        return sent[0]

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        claim = epoch.number, epoch.token, epoch.owner.lease_s
        found = await self._database.write(
            session_id, lambda connection: reading.find(connection, self._queries.renew, session_id, *claim)
        )
        rules.check_claim(found, session_id, epoch)

    async def release(self, session_id: str, epoch: Epoch) -> None:
        """See the contract."""
        check_id(session_id)
        claim = epoch.number, epoch.token
        found = await self._database.write(
            session_id, lambda connection: reading.find(connection, self._queries.release, session_id, *claim)
        )
        rules.check_claim(found, session_id, epoch)

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        """See the contract."""

        async def look(connection: Connection) -> StoredLog:
            async with transaction(connection, SNAPSHOT):
                row = rules.present(await self._find(connection, session_id), session_id)
                return await reading.read_log(connection, self._queries, session_id, row, before)

        check_id(session_id)
        return await self._database.read(session_id, look)

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        """See the contract."""
        check_id(session_id)
        rules.check_page(limit, seq)
        return await self._database.read(
            session_id, lambda connection: reading.read_page(connection, self._queries, session_id, seq, limit)
        )

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        """See the contract."""
        rules.check_page(limit)
        if after is not None:
            check_id(after[1])
        return await self._database.read(
            "", lambda connection: reading.read_list(connection, self._queries, limit, after)
        )

    async def delete(self, session_id: str) -> None:
        """See the contract. The events go in a statement of their own, which sees all that was written before."""

        async def bury(connection: Connection) -> None:
            async with transaction(connection):
                await connection.execute(self._queries.bury, session_id)
                await connection.execute(self._queries.drop_events, session_id)
                if not await connection.fetchval(self._queries.is_known, session_id):
                    raise SessionNotFound(session_id)

        check_id(session_id)
        await self._database.read(session_id, bury)

    # ---------------------------------------------------------------------------------------- inside

    async def _find(self, connection: Connection, session_id: str) -> rules.Found:
        return await reading.find(connection, self._queries.find, session_id)
