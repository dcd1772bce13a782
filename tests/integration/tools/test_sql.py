"""sql_read on a real Postgres: one query, read-only, bounded; and roles that could do more are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from app.session.errors import ConfigurationError
from app.tools.service import ToolService
from app.tools.types import ToolResult
from containers.settings import Settings, load_settings
from containers.tool_parts import tool_set
from tests.support.postgres import Server
from tests.unit.tools.calls import call, failure

ROLE = "sql_reader"


@pytest_asyncio.fixture
async def dsn(postgres_server: Server, empty_postgres_dsn: str) -> str:
    """A database with a table, for a role that may do no more than most."""
    database = empty_postgres_dsn.partition("?")[0].rpartition("/")[2]
    await postgres_server.run(
        f"do $$ begin create role {ROLE} login password 'sesame'; exception when duplicate_object then null; end $$",
        "create table things (id int, name text, at timestamptz, price numeric, ok bool, more jsonb)",
        """insert into things values (1, 'one', '2020-01-01T00:00:00Z', 1.50, true, '{"a": [1]}'), (2, null, null, null,
            false, null)""",
        f"grant select, insert, update, delete on things to {ROLE}",
        database=database,
    )
    return as_role(empty_postgres_dsn)


def as_role(dsn: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}user={ROLE}&password=sesame"


def settings(dsn: str | None, **options: Any) -> Settings:
    sql = {"timeout_s": 30.0} | options | ({} if dsn is None else {"dsn": dsn})
    return load_settings("test", tools={"enabled": ["sql_read"], "sql": sql})


@asynccontextmanager
async def opened(dsn: str, **options: Any) -> AsyncIterator[ToolService]:
    tools = tool_set(settings(dsn, **options))
    try:
        await tools.open()
        yield ToolService(tools)
    finally:
        await tools.close()


async def ask(service: ToolService, query: str) -> ToolResult:
    return await service.execute(call("sql_read", json.dumps({"query": query})))


async def refused(dsn: str) -> str:
    with pytest.raises(ConfigurationError) as error:
        async with opened(dsn):
            pass
    return str(error.value)


async def test_rows_come_as_json_and_everything_else_as_text(dsn: str) -> None:
    async with opened(dsn) as service:
        result = await ask(service, "select id, name, at, price, ok, more, id from things order by id -- all of them;")
        assert result == ToolResult(
            {
                "columns": ["id", "name", "at", "price", "ok", "more", "id"],
                "rows": [
                    [1, "one", result.value["rows"][0][2], "1.50", True, '{"a": [1]}', 1],
                    [2, None, None, None, False, None, 2],
                ],
                "truncated": False,
            }
        )
        assert (await ask(service, "with a as (select 1.5::float8) table a")).value["rows"] == [[1.5]]
        assert (await ask(service, "values ('nan'::float8), ('inf')")).value["rows"] == [["NaN"], ["Infinity"]]
        assert (await ask(service, "select ')' as \"),(\" -- ;")).value["rows"] == [[")"]]


async def test_rows_and_bytes_are_bounded(dsn: str) -> None:
    async with opened(dsn, max_rows=3, max_bytes=1000) as service:
        rows = (await ask(service, "select generate_series(1, 1000000000)")).value
        assert (rows["rows"], rows["truncated"]) == ([[1], [2], [3]], True)
        wide = (await ask(service, "select repeat('x', 100000000), 1")).value
        assert ([[len(wide["rows"][0][0]), wide["rows"][0][1]]], wide["truncated"]) == ([[500, 1]], True)
        long = (await ask(service, "select repeat('x', 600) from generate_series(1, 3)")).value
        assert (len(long["rows"]), long["truncated"]) == (1, True)
        assert not (await ask(service, "select * from generate_series(1, 3)")).value["truncated"]


@pytest.mark.parametrize(
    "query",
    [
        "insert into things values (3)",
        "with gone as (delete from things returning id) select * from gone",
        "select 1; delete from things",
        "commit; delete from things",
        "select 1) as q (c0); delete from things; --",
        "select 1) as q (c0) union all select repeat('x', 10) from (select 2",
        "set transaction read write",
        "select set_config('transaction_read_only', 'off', false)",
        "copy things to program 'true'",
        "copy things to stdout",
        "create table more (id int)",
        "do $$ begin delete from things; end $$",
        "select lo_import('/etc/passwd')",
        "select pg_read_file('/etc/passwd')",
        "select pg_reload_conf()",
        "begin",
        "rollback",
        "explain analyze delete from things",
        "",
        ";",
        "no sql at all",
    ],
)
async def test_whatever_is_no_reading_query_is_refused_and_changes_nothing(dsn: str, query: str) -> None:
    async with opened(dsn) as service:
        assert failure(await ask(service, query))[0] == "SQL_FAILED"
        assert (await ask(service, "select count(*) from things")).value["rows"] == [[2]]


async def test_what_a_query_sets_is_gone_with_its_connection(dsn: str) -> None:
    async with opened(dsn) as service:
        await ask(service, "select set_config('statement_timeout', '1', false), set_config('search_path', 'x', false)")
        assert (await ask(service, "select count(*) from things")).value["rows"] == [[2]]


async def test_a_query_that_takes_too_long_is_ended_on_the_server(
    dsn: str, postgres_server: Server, empty_postgres_dsn: str
) -> None:
    async with opened(dsn, timeout_s=0.5) as service:
        assert failure(await ask(service, "select pg_sleep(600)")) == (
            "SQL_TIMEOUT",
            "the query took longer than 0.5 s",
        )
    running = "select count(*) from pg_stat_activity where usename = $$sql_reader$$ and state = $$active$$"
    assert [tuple(row) for row in await postgres_server.run(running)] == [(0,)]


async def test_the_error_says_what_is_wrong_with_the_query(dsn: str) -> None:
    async with opened(dsn) as service:
        assert failure(await ask(service, "select nothing from things")) == (
            "SQL_FAILED",
            'column "nothing" does not exist',
        )


async def test_a_superuser_is_refused_and_so_is_who_can_become_one(
    postgres_server: Server, empty_postgres_dsn: str, dsn: str
) -> None:
    told = "tools.sql.dsn: its role is, or can become, a superuser or one that reaches the server's files"
    assert (await refused(empty_postgres_dsn)).startswith(told)
    for mighty in ("pg_execute_server_program", "pg_read_server_files"):
        await postgres_server.run(f"grant {mighty} to {ROLE}")
        try:
            assert (await refused(dsn)).startswith(told)
        finally:
            await postgres_server.run(f"revoke {mighty} from {ROLE}")
    async with opened(dsn):
        pass


async def test_rights_that_come_after_the_start_are_seen_at_the_next_query(postgres_server: Server, dsn: str) -> None:
    async with opened(dsn) as service:
        await postgres_server.run(f"grant pg_read_server_files to {ROLE}")
        try:
            assert failure(await ask(service, "select 1"))[0] == "SQL_REFUSED"
        finally:
            await postgres_server.run(f"revoke pg_read_server_files from {ROLE}")


async def test_a_database_that_holds_sessions_is_refused(dsn: str, postgres_dsn: str) -> None:
    told = await refused(as_role(postgres_dsn))
    assert told.startswith("tools.sql.dsn: this database holds sessions of the runtime")


async def test_a_database_that_cannot_be_reached_stops_the_start_without_its_password() -> None:
    told = await refused("postgresql://u:sesame-open@127.0.0.1:9/d")
    assert told.startswith("tools.sql.dsn: no server lets us in: 127.0.0.1:9: it cannot be reached")
    assert "sesame" not in told


def test_without_a_dsn_the_tool_cannot_be_had() -> None:
    with pytest.raises(ConfigurationError, match=r"^tools\.sql\.dsn: not set; the tool sql_read needs it"):
        tool_set(settings(None))


async def test_a_cancelled_call_leaves_no_connection(dsn: str, postgres_server: Server) -> None:
    async with opened(dsn) as service:
        asking = asyncio.ensure_future(ask(service, "select pg_sleep(600)"))
        count = "select count(*) from pg_stat_activity where usename = $$sql_reader$$ and query like $$%pg_sleep%$$"
        while [tuple(row) for row in await postgres_server.run(count)] == [(0,)]:
            pass  # each look waits for the server
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while [tuple(row) for row in await postgres_server.run(count)] != [(0,)]:
            pass  # each look waits for the server
