"""What an operator should know of the server and the database: each line looked at by itself, so that all are told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from app.session.errors import PersistenceUnavailable, StoreUnusable
from app.session.health import Finding
from persistence.postgres import checking, errors, migrate
from persistence.postgres.connecting import Connection, Connector, Link

_SERVER = """
select current_setting('server_version'), current_database(), current_user,
    current_setting('synchronous_standby_names'),
    (select ssl from pg_stat_ssl where pid = pg_backend_pid()), inet_server_addr() is null,
    (select count(*) from pg_stat_activity where backend_type = 'client backend'), current_setting('max_connections'),
    has_database_privilege(current_database(), 'create')
"""
_PRIVILEGES = """
select array_remove(array_agg(what order by what), null) from (
    select 'usage on schema ' || nspname
    from pg_namespace where nspname = $1 and not has_schema_privilege(oid, 'usage')
    union all
    select privilege || ' on ' || relname
    from (values ('sessions', 'select'), ('sessions', 'insert'), ('sessions', 'update'), ('events', 'select'),
        ('events', 'insert'), ('events', 'delete'), ('migrations', 'select')) as needed (name, privilege)
    join pg_class on relname = needed.name and relnamespace = (select oid from pg_namespace where nspname = $1)
    where not has_table_privilege(pg_class.oid, privilege)
    union all
    select 'execute on ' || proname
    from pg_proc where proname = 'append_batch' and not has_function_privilege(oid, 'execute')
        and pronamespace = (select oid from pg_namespace where nspname = $1)
) as lacking (what)
"""


async def examine(
    connector: Connector, schema: str, standby: checking.Standby | None, *, migrates: bool
) -> AsyncIterator[Finding]:
    """What there is, line by line. `migrates`: starting applies the migrations that are missing."""
    where = str(connector.dsn)
    try:
        link = await connector.connect(cached=False)
    except (StoreUnusable, PersistenceUnavailable) as error:
        advice = "is it running, is persistence.dsn right, and may this machine and user come in?"
        yield Finding.fault("server", StoreUnusable(where, f"{error.reason}; {advice}"))
        return
    try:
        async for finding in _look(link, where, schema, standby, connector.statement_cache_size, migrates=migrates):
            yield finding
    except errors.FOREIGN as error:
        yield Finding.fault("server", StoreUnusable(where, errors.reason(error)))
    finally:
        await link.close()


async def _look(
    link: Link, where: str, schema: str, standby: checking.Standby | None, cache_size: int, *, migrates: bool
) -> AsyncIterator[Finding]:
    connection = link.connection
    row = await connection.fetchrow(_SERVER)
    assert row is not None  # it answers one
    version, database, user, standbys, is_encrypted, is_local, used, most, may_create = row
    way = "encrypted" if is_encrypted else "by a Unix socket" if is_local else "in the clear"
    yield Finding("server", f"{where} {way}: Postgres {version}, database {database}, user {user}; it takes writes")
    yield Finding("connections", f"{used} of {most} are in use", is_note=int(used) > 0.9 * int(most))
    try:
        await checking.check_server(connection, where, standby)
        yield Finding("durability", "fsync, full_page_writes and synchronous_commit are on")
    except StoreUnusable as error:
        yield Finding.fault("durability", error)
    waits = f"a commit waits for {standbys}" if standbys else "none is waited for (persistence.standby asks for one)"
    yield Finding("standby", waits)
    try:
        checking.check_cache(link, where, cache_size)
        stands = "one stands in between, and statement_cache_size is 0" if link.is_pooled else "none stands in between"
        yield Finding("pooler", stands)
    except StoreUnusable as error:
        yield Finding.fault("pooler", error)
    yield await _clock(connection)
    lacking = await connection.fetchval(_PRIVILEGES, schema) or []
    if lacking:
        advice = f"grant them to {user}, or connect as the user who migrated"
        yield Finding.fault("privileges", StoreUnusable(where, f"user {user} lacks {', '.join(lacking)}; {advice}"))
        return
    try:
        missing = await migrate.check(connection, schema)
        if missing and migrates and may_create:
            how = "the next start applies it, or `beforehand migrate`"
            yield Finding("schema", f"{schema} lacks {', '.join(missing)}; {how}", is_note=True)
            return
        await checking.check_schema(connection, where, schema)
        yield Finding("privileges", f"user {user} has all that are needed")
        yield Finding("schema", f"{schema}, with every migration of this build")
    except StoreUnusable as error:
        yield Finding.fault("schema", error)


async def _clock(connection: Connection) -> Finding:
    before, started = time.time(), time.perf_counter()
    there = float(await connection.fetchval("select extract(epoch from clock_timestamp())::float8"))
    took = time.perf_counter() - started
    ahead_ms = (there - before - took / 2) * 1000
    told = f"{abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms >= 0 else 'behind'} this machine's"
    return Finding("clock", f"the database's is {told}, give or take {took * 500:.0f}; leases run on the database's")
