"""An append that breaks at any message of the protocol is stored whole or not at all, and the next flush finds out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from typing import get_args

import pytest

from app.session.drain import DrainLimits
from app.session.errors import FlushTimeout, PersistenceUnavailable
from app.session.ownership import Owner
from app.session.session import Session
from app.session.store import SessionStore
from app.session.verification import verify
from persistence.postgres import PostgresPersistence
from tests.support import counting
from tests.support.checkpoints import pend
from tests.support.pg_proxy import Break, How, PgProxy, Side, When
from tests.support.pgbouncer import DIRECTLY
from tests.support.postgres import run_sql

LANES = 8  # most of the time is spent on waiting for connections that are silent
UNKNOWN = (PersistenceUnavailable, FlushTimeout)
IN_A_TRANSACTION = """
select state, query from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
"""


@dataclass
class Lane:
    """Where one append after another breaks: a store behind a proxy. `direct` leads past that.

    `acknowledged` counts the events of the sessions in which nothing was wrong.
    """

    proxy: PgProxy
    store: PostgresPersistence
    direct: PostgresPersistence
    acknowledged: int = 0

    async def append(self, count: int, planned: Break | None = None) -> tuple[dict[Side, str], set[bool]]:
        """What each side sent for the third batch of `count` new sessions, which breaks as planned.

        With it, of those left without an answer: whether their batch was stored.
        """
        sessions = SessionStore(self.store, Owner("test"), drain_limits=DrainLimits(write_behind_ms=None))
        live = [await sessions.create() for _ in range(count)]
        for ids in ("a", "bc"):  # the second prepares the statement, where that is done
            await flush_until_answered(sessions, live, ids)
        for session in live:
            pend(session, "d", "e")
        seen = self.proxy.watch(planned)
        answers = await asyncio.gather(*(sessions.flush(session) for session in live), return_exceptions=True)
        were_stored = set()
        for session, answer in zip(live, answers, strict=True):
            stored = await self.direct.read(session.id)
            assert stored.events == session.events[: stored.next_seq]
            if answer is None:
                assert (session.durable, stored.next_seq) == (5, 5)
            else:
                assert isinstance(answer, UNKNOWN)
                assert session.durable == 3
                assert stored.next_seq in (3, 5)
                were_stored.add(stored.next_seq == 5)
        self.proxy.watch()
        await flush_until_answered(sessions, live, "f")
        for session in live:
            stored = await self.direct.read(session.id)
            verify(stored, sessions.extensions)
            assert [event.line for event in stored.events] == [event.line for event in session.events]
            assert [end.seq for end in stored.ends] == [0, 2, 4, 5]
            self.acknowledged += session.durable
        return seen, were_stored


async def flush_until_answered(sessions: SessionStore, live: Iterable[Session], ids: str) -> None:
    """Have these messages in each session, and all of it stored."""

    async def flush(session: Session) -> None:
        for tries_left in reversed(range(20)):
            try:
                await sessions.flush(session)
            except UNKNOWN:
                if not tries_left:
                    raise
            else:
                return

    for session in live:
        pend(session, *ids)
    await asyncio.gather(*(flush(session) for session in live))


@DIRECTLY  # what a pooler makes of a break is another break
@pytest.mark.parametrize("stays", [False, True], ids=["for a moment", "until later"])
@pytest.mark.parametrize(
    ("count", "cache", "messages"),
    [
        (1, 100, {"client": "BES", "server": "2CZ"}),
        (1, 0, {"client": "PDHPBES", "server": "1tn12CZ"}),
        (2, 100, {"client": "BES", "server": "2DDCZ"}),
    ],
    ids=["alone", "not prepared", "together"],
)
async def test_an_append_breaks_at_each_message_in_every_way(
    postgres_dsn: str, count: int, cache: int, messages: dict[Side, str], stays: bool
) -> None:
    """PG-03 and APD-05 at every place there is; and what was given up holds no row for long."""
    places = [(side, n) for side, sent in messages.items() for n in range(1, len(sent) + 1)]
    breaks = [Break(*place, how, when, stays) for place, how, when in product(places, get_args(How), get_args(When))]
    left = list(breaks)
    outcomes: set[bool] = set()
    violations: list[tuple[Break, Exception]] = []

    async def work(lane: Lane) -> None:
        while left:
            planned = left.pop()
            try:
                seen, were_stored = await lane.append(count, planned)
                assert seen[planned.side][: planned.n] == messages[planned.side][: planned.n]
                outcomes.update(were_stored)
            except Exception as error:  # whatever it is: it belongs to this break, and the others are tried too
                violations.append((planned, error))

    async with AsyncExitStack() as stack:
        direct = PostgresPersistence(postgres_dsn)
        lanes = []
        for _ in range(LANES):
            proxy = await stack.enter_async_context(PgProxy(postgres_dsn))
            store = PostgresPersistence(
                proxy.dsn,
                writers=1,
                statement_cache_size=cache,
                pool_timeout_ms=500,
                statement_timeout_ms=500,
                connect_timeout_ms=500,
            )
            lanes.append(Lane(proxy, store, direct))
        for opened in (direct, *(lane.store for lane in lanes)):
            await opened.open()
            stack.push_async_callback(opened.close)
        assert await lanes[0].append(count) == (messages, set())
        await asyncio.gather(*(work(lane) for lane in lanes))
        acknowledged = sum(lane.acknowledged for lane in lanes)
        name = "protocol messages of an append broken, postgres"
        counting.count(name, runs=len(breaks), acknowledged=acknowledged, violations=len(violations))
        assert violations == []
        assert sum(lane.proxy.fired for lane in lanes) == len(breaks)
        assert outcomes == {False, True} or not stays  # what breaks for a moment may be repeated before anybody hears
        for _ in range(100):  # a backend that was told to end takes a moment
            if not (running := await run_sql(postgres_dsn, IN_A_TRANSACTION)):
                break
        assert running == []
