"""What must not get out, and what must not be talked to: secrets in errors, and servers elsewhere in the clear."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback

import pytest

from app.session.errors import StoreUnusable
from persistence.contract import Writer
from persistence.contract.samples import ALREADY_OVER, message, owner
from persistence.postgres import PostgresPersistence
from persistence.postgres.dsn import Dsn
from tests.support.pg_proxy import PgProxy
from tests.support.postgres import run_sql

CANARY = "c4n4ry"


def elsewhere() -> str:
    """An address of this machine that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("not run: this machine has no address but its loopback")
        name: str = probe.getsockname()[0]
        return name


async def test_a_server_beyond_this_machine_without_tls_is_sent_nothing() -> None:
    received: list[bytes] = []
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readexactly(8))
        writer.write(b"N")  # what a server says that has no TLS
        received.append(await reader.read())
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(refuse, elsewhere(), 0)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(StoreUnusable) as raised:
        await PostgresPersistence(f"postgresql://a:{CANARY}@{host}:{port}/d").open()
    await ended.wait()
    server.close()
    await server.wait_closed()
    assert "it offers no TLS" in raised.value.reason
    assert received[:1] == [b"\x00\x00\x00\x08\x04\xd2\x16\x2f"]  # the question for TLS, and then nothing
    assert b"".join(received[1:]) == b""


async def test_no_error_and_no_log_line_shows_the_password_or_what_is_stored(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    async with PgProxy(postgres_dsn) as proxy:
        port, database = Dsn.parse(proxy.dsn).hosts[0].port, Dsn.parse(postgres_dsn).database
        store = PostgresPersistence(f"postgresql://postgres:{CANARY}@127.0.0.1:{port}/{database}")
        await store.open()
        writer = Writer.new(store, meta={"secret": CANARY}, lease_s=ALREADY_OVER)
        await writer.write(events=[message(0, CANARY)])
        for fault in ("lose", "cut", "lose"):
            proxy.next(fault, times=2)
            batch = writer.batch(events=[message(writer.seq, CANARY)])
            with pytest.raises(Exception) as lost:  # whichever: its text is the point
                await writer.send(batch)
            said += traceback.format_exception(lost.value)
            await writer.send(batch)
        await run_sql(
            postgres_dsn,
            """create function public.fault() returns trigger language plpgsql as
                $$ begin raise 'refused: %', new.data; end $$""",
            "create trigger fault before insert on beforehand.events for each row execute function public.fault()",
        )
        for attempt in (
            lambda: writer.write(events=[message(writer.seq, CANARY)]),
            lambda: store.acquire(
                writer.id, owner(), repair=lambda log, epoch: writer.batch(events=[message(4, CANARY)])
            ),
        ):
            with pytest.raises(Exception) as refused:
                await attempt()
            said += traceback.format_exception(refused.value)
        await run_sql(
            postgres_dsn, "drop function public.fault() cascade", "update beforehand.events set data = 'ü' || data"
        )
        with pytest.raises(Exception) as damaged:
            await store.read(writer.id)
        said += traceback.format_exception(damaged.value)
        said.append(repr(store))
        await store.close()
    for place in (f"127.0.0.1:{port}/{database}", f"127.0.0.1:1/{database}", "127.0.0.1:1/nothing"):
        with pytest.raises(StoreUnusable) as gone:
            await PostgresPersistence(f"postgresql://postgres:{CANARY}@{place}", connect_timeout_ms=200).open()
        said += traceback.format_exception(gone.value)
    assert len(said) > 20
    assert CANARY not in "".join(line for line in said if not line.lstrip().startswith("File"))
    assert CANARY not in caplog.text
