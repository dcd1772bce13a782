"""A server whose connections others hold: one is waited for within the limit, then that is said; nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

from app.session.errors import PersistenceUnavailable
from persistence.contract import Writer
from persistence.postgres import PostgresPersistence
from tests.support.counting import count
from tests.support.postgres import connect
from tests.support.postgres_local import LocalServer

TIMES = 3
END_ALL = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where backend_type = 'client backend' and pid <> pg_backend_pid()
"""


async def test_a_connection_that_others_hold_is_waited_for_within_the_limit_and_no_longer() -> None:
    """The connections that were there are ended, and cannot be made anew."""
    with LocalServer({"max_connections": "5"}) as server:
        patient = PostgresPersistence(server.dsn(), migrate_on_start=True, pool_timeout_ms=60_000)
        impatient = PostgresPersistence(server.dsn(), pool_timeout_ms=300)
        for store in (patient, impatient):
            await store.open()
        waiting, failing = Writer.new(patient), Writer.new(impatient)
        looking = await connect(server.dsn())
        for _ in range(TIMES):
            await waiting.write(2)
            await failing.write(2)
            await looking.execute(END_ALL)
            others = []
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:  # those kept for superusers too, since it is one who asks here
                    others.append(await connect(server.dsn()))
            writing = asyncio.create_task(waiting.write(2))
            batch = failing.batch(2)
            with pytest.raises(PersistenceUnavailable) as raised:
                await failing.send(batch)
            assert "the server has no connection left (53300)" in raised.value.reason
            assert not writing.done()
            await looking.execute(END_ALL)
            await asyncio.gather(writing, failing.send(batch))
            for other in others:
                other.terminate()
        for writer in (waiting, failing):
            await writer.check()
        await looking.close()
        for store in (patient, impatient):
            await store.close()
    count("connections all taken, postgres", runs=TIMES, acknowledged=waiting.seq + failing.seq)
