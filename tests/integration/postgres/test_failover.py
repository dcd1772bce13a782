"""A primary is lost: what was acknowledged is on the next one, what was not is settled there, and nobody goes back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import pytest_asyncio

from app.session.drain import DrainLimits
from app.session.errors import PersistenceUnavailable, StoreRegressed, StoreUnusable
from app.session.ownership import Owner
from app.session.session import Session
from app.session.store import SessionStore
from persistence.postgres import PostgresPersistence
from tests.support.checkpoints import pend
from tests.support.pg_pair import WAITING, Member, Pair, attached, confirm_alone, dsn_of
from tests.support.pg_proxy import PgProxy
from tests.support.pgbouncer import Pooled, Pooler
from tests.support.postgres import Server, connect, run_sql

NO_STANDBY = ("alter system reset synchronous_standby_names", "select pg_reload_conf()")
END_OURS = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'beforehand'"
LIMIT_S = 2
IMPATIENT: dict[str, Any] = {"statement_timeout_ms": 1000, "connect_timeout_ms": 1000}
COUNT = "select count(*) from beforehand.events"


@asynccontextmanager
async def opened(dsn: str, name: str = "anna", **options: Any) -> AsyncIterator[SessionStore]:
    """What a process has: its sessions over a store, by the settings of somebody who runs a pair."""
    store = PostgresPersistence(dsn, migrate_on_start=True, **{"standby": "on", **options})
    await store.open()
    try:
        yield SessionStore(store, Owner(name), drain_limits=DrainLimits(write_behind_ms=None))
    finally:
        await store.close()


@contextmanager
def black_hole() -> Iterator[int]:
    """A port of this machine where not even a handshake is answered: those who wait there already fill its queue."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


async def stored(server: Member, session: Session) -> int:
    """How many events of the session a server holds; fails if they are not its first ones."""
    store = PostgresPersistence(server.dsn())
    await store.open()
    events = (await store.read(session.id)).events
    await store.close()
    assert events == session.events[: len(events)]
    return len(events)


async def flush_until_answered(sessions: SessionStore, session: Session) -> None:
    """Flush again as long as the outcome is unknown."""
    while session.durable < len(session):
        with contextlib.suppress(PersistenceUnavailable):
            await sessions.flush(session)


async def stop_waiting(server: Member) -> None:
    """Return when nothing waits for a standby any more: it is done for this server alone."""
    while await confirm_alone(server):
        pass


async def set_free(server: Member) -> None:
    """Let it commit without any standby, as many do in need."""
    await run_sql(server.dsn(), *NO_STANDBY)
    looking = await connect(server.dsn())
    while await looking.fetchval("select current_setting('synchronous_standby_names') <> ''"):
        pass
    await looking.close()


@pytest.fixture
def dsn_of_pair(way: Any, pair: Pair) -> Iterator[str]:
    """Both servers, or the primary through a pooler, which leads to one."""
    if way is str:
        yield pair.dsn
    else:
        with Pooler(pair.primary.dsn()) as pooler:
            yield Pooled.make(pooler.server, pair.primary.dsn())


@pytest_asyncio.fixture
async def address(pair: Pair) -> AsyncIterator[PgProxy]:
    """One address that leads to the primary, until a test moves it."""
    async with PgProxy(pair.primary.dsn()) as proxy:
        yield proxy


@pytest.fixture
def dsn_of_address(way: Any, address: PgProxy) -> Iterator[str]:
    """That address, or a pooler in front of it."""
    if way is str:
        yield address.dsn
    else:
        with Pooler(address.dsn) as pooler:
            yield pooler.server.dsn


async def test_what_the_standby_lacks_is_not_durable_though_everybody_sees_it(pair: Pair, dsn_of_pair: str) -> None:
    """REP-01: the standby comes back, the batch is confirmed by being repeated, and then it survives the primary."""
    async with opened(dsn_of_pair, **IMPATIENT) as sessions:
        session = await sessions.create("s")
        pend(session, "a")
        await sessions.flush(session)
        pair.standby.stop()
        pend(session, "b", "c")
        for _ in range(2):
            with pytest.raises(PersistenceUnavailable):
                await sessions.flush(session)
            await stop_waiting(pair.primary)
            assert (session.durable, await stored(pair.primary, session)) == (1, 3)
        pair.standby.start()
        await attached(pair.primary)
        await sessions.flush(session)
        assert session.durable == 3
        pair.primary.stop(signal.SIGQUIT)
        pair.standby.promote()
        assert await stored(pair.standby, session) == 3


async def test_an_append_that_the_promotion_lost_is_written_again(pair: Pair) -> None:
    """REP-01: seen by all on the primary, never confirmed, and gone with it; its repetition is what settles it."""
    async with opened(pair.dsn, **IMPATIENT) as sessions:
        session = await sessions.create("s")
        pend(session, "a")
        await sessions.flush(session)
        pair.standby.stop()
        pend(session, "b", "c")
        with pytest.raises(PersistenceUnavailable):
            await sessions.flush(session)
        await stop_waiting(pair.primary)
        assert (session.durable, await stored(pair.primary, session)) == (1, 3)
        pair.primary.stop(signal.SIGQUIT)
        pair.standby.start()
        pair.standby.promote()
        assert await stored(pair.standby, session) == 1
        with pytest.raises(PersistenceUnavailable):  # written, but nobody confirms the new primary's commits yet
            await sessions.flush(session)
        assert session.durable == 1
        pair.primary.rejoin(pair.standby)
        await attached(pair.standby)
        await sessions.flush(session)
        assert (session.durable, await stored(pair.standby, session)) == (3, 3)


async def test_a_wait_for_the_standby_that_an_operator_cancels_confirms_nothing(pair: Pair, dsn_of_pair: str) -> None:
    """REP-02."""
    async with opened(dsn_of_pair) as sessions:
        session = await sessions.create("s")
        pend(session, "a")
        await sessions.flush(session)
        pair.standby.stop()
        pend(session, "b")
        looking = await connect(pair.primary.dsn())
        for _ in range(2):
            flushing = asyncio.create_task(sessions.flush(session))
            while not (waiting := await looking.fetchval(WAITING)):
                pass
            await looking.fetchval("select pg_cancel_backend($1)", waiting)
            with pytest.raises(PersistenceUnavailable) as raised:
                await flushing
            assert raised.value.reason == "the server committed with a warning, perhaps only for itself"
            assert (session.durable, await stored(pair.primary, session)) == (1, 2)
        await looking.close()
        pair.standby.start()
        await attached(pair.primary)
        await sessions.flush(session)
        assert (session.durable, await stored(pair.primary, session)) == (2, 2)


@pytest.mark.parametrize("way", ["pooled"], indirect=True)
async def test_a_setting_that_leaked_into_a_pooled_connection_makes_no_commit_weaker(postgres_dsn: str) -> None:
    """REP-03: another client of the pooler turned synchronous_commit off, and left the connection to us."""
    async with opened(postgres_dsn, standby=None) as sessions:
        session = await sessions.create("s")
        pend(session, "a")
        await sessions.flush(session)
        leaking = await connect(str(postgres_dsn))
        await leaking.execute("set synchronous_commit = off")
        pend(session, "b")
        with pytest.raises(PersistenceUnavailable) as raised:
            await sessions.flush(session)
        assert "synchronous_commit was weakened" in raised.value.reason
        assert [tuple(row) for row in await run_sql(postgres_dsn, COUNT)] == [(1,)]
        await leaking.execute("reset synchronous_commit")
        await leaking.close()
        await sessions.flush(session)
        assert session.durable == 2


async def test_a_host_that_swallows_everything_and_a_standby_are_passed_by(pair: Pair) -> None:
    """REP-04."""
    with black_hole() as port:
        place, _, rest = dsn_of(pair.standby, pair.primary).partition("@")
        began = time.monotonic()
        async with opened(f"{place}@127.0.0.1:{port},{rest}", connect_timeout_ms=LIMIT_S * 1000) as sessions:
            assert time.monotonic() - began < 3 * LIMIT_S  # a limit for each
            session = await sessions.create("s")
            pend(session)
            await sessions.flush(session)
            assert await stored(pair.primary, session) == 1
            began = time.monotonic()
            await asyncio.gather(*(sessions.read_from("s", 0) for _ in range(4)))  # three connections more
            assert time.monotonic() - began < LIMIT_S  # the silent host is not waited for each time


async def test_an_old_primary_that_comes_back_is_not_used_beside_the_new_one(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """REP-05: not by a process that was there, and not by one that starts, though the old one stands first."""
    async with opened(pair.dsn, standby=None) as sessions:
        session = await sessions.create("s")
        pend(session)
        await sessions.flush(session)
        pair.primary.stop(signal.SIGQUIT)
        pair.standby.promote()
        await set_free(pair.standby)
        pend(session)
        await sessions.flush(session)
        pair.primary.start()
        await set_free(pair.primary)
        await run_sql(pair.standby.dsn(), END_OURS)
        pend(session)
        await sessions.flush(session)
        assert "is an old primary that came back, on timeline 1 where 2 is known" in caplog.text
        async with opened(pair.dsn, "berta", standby=None) as others:
            taken = await others.resume("s", force=True)
            assert taken.events == session.events
            pend(taken)
            await others.flush(taken)
        assert (await stored(pair.primary, taken), await stored(pair.standby, taken)) == (1, 4)


async def test_connections_to_an_old_primary_that_never_went_away_end_when_the_new_one_is_met(pair: Pair) -> None:
    """REP-05: idle ones of the pool, which were good when they were put there."""
    async with opened(pair.dsn, standby=None, writers=1) as sessions:
        session = await sessions.create("s")
        pend(session)
        await sessions.flush(session)
        pair.standby.promote()
        await set_free(pair.standby)
        await asyncio.gather(*(sessions.read_from("s", 0) for _ in range(2)))  # one more than there are connections
        pend(session)
        await sessions.flush(session)
        assert (await stored(pair.primary, session), await stored(pair.standby, session)) == (1, 2)


async def test_an_address_that_leads_back_to_an_old_primary_or_elsewhere_is_refused(
    pair: Pair, address: PgProxy, postgres_server: Server
) -> None:
    """REP-05: one address for all of them; the server behind it is known by its timeline and system identifier."""
    async with opened(address.dsn, standby=None, pool_timeout_ms=300) as sessions:
        session = await sessions.create("s")
        pend(session)
        await sessions.flush(session)
        pair.primary.stop(signal.SIGQUIT)
        pair.standby.promote()
        await set_free(pair.standby)
        address.lead_to(pair.standby.dsn())
        pend(session)
        await sessions.flush(session)
        pair.primary.start()
        await set_free(pair.primary)
        pend(session)
        wrong = {pair.primary.dsn(): "timeline 1 where 2 is known", postgres_server.dsn: "no copy of the server"}
        for dsn, why in wrong.items():
            address.lead_to(dsn)
            for attempt in (sessions.flush(session), sessions.read_from("s", 0)):
                with pytest.raises(PersistenceUnavailable) as raised:
                    await attempt
                assert why in raised.value.reason
        address.lead_to(pair.standby.dsn())
        await sessions.flush(session)
    assert (await stored(pair.primary, session), await stored(pair.standby, session)) == (1, 3)


async def test_an_older_copy_of_the_same_server_is_found_out_by_what_it_lacks(
    pair: Pair, address: PgProxy, dsn_of_address: str
) -> None:
    """REP-05: its timeline is the same, or a pooler hides it: `StoreRegressed`, before anything is written."""
    async with opened(dsn_of_address, standby=None) as sessions:
        session = await sessions.create("s")
        pend(session)
        await sessions.flush(session)
        await set_free(pair.primary)
        pair.standby.stop()
        pend(session)
        await sessions.flush(session)
        pair.standby.forget_primary()
        pair.standby.start()
        await set_free(pair.standby)
        address.lead_to(pair.standby.dsn())
        pend(session)
        for _ in range(2):
            with pytest.raises(StoreRegressed) as raised:
                await flush_until_answered(sessions, session)  # it may meet the connections that broke, one by one
            assert (raised.value.acknowledged, raised.value.found) == (2, "1")
    assert (await stored(pair.primary, session), await stored(pair.standby, session)) == (2, 1)


async def test_a_new_primary_is_held_to_what_the_old_one_was(pair: Pair) -> None:
    """A standby was asked for; the promoted server that commits without one is not written to until it waits too."""
    async with opened(pair.dsn, pool_timeout_ms=300) as sessions:
        session = await sessions.create("s")
        pend(session)
        await sessions.flush(session)
        pair.primary.stop(signal.SIGQUIT)
        pair.standby.promote()
        await set_free(pair.standby)
        pend(session)
        with pytest.raises(PersistenceUnavailable) as raised:
            await sessions.flush(session)
        assert "no standby has to confirm a commit" in raised.value.reason
        assert await stored(pair.standby, session) == 1


async def test_a_standby_that_was_asked_for_has_to_be_there(postgres_dsn: str) -> None:
    with pytest.raises(StoreUnusable) as raised:
        await PostgresPersistence(postgres_dsn, standby="on").open()
    assert raised.value.reason == "no standby has to confirm a commit; set synchronous_standby_names = 'ANY 1 (...)'"
    with pytest.raises(StoreUnusable) as weak:
        await PostgresPersistence(postgres_dsn, standby="remote_apply").open()
    assert "has to be remote_apply" in weak.value.reason
