"""What is secret stays so: passwords and stored text are in no error, no log line and no repr, whatever fails."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from app.llm.scripted import call, say
from app.session.batch import Batch
from app.session.errors import SessionError
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence, StoredLog
from persistence.contract import Writer
from persistence.contract.samples import ALREADY_OVER, message, owner, title
from persistence.jsonl.directory import name_of
from persistence.sqlite.file import connect
from tests.integration.cli.command import Command
from tests.support.faults import DOWN, FailAfter, FailBefore, FaultyPersistence
from tests.support.house import House
from tests.support.postgres import run_sql
from tests.support.stores import Place

CANARY = "c4n4ry"


def told(error: BaseException) -> str:
    """All that an error says, by itself and in a traceback, without the lines of source that one quotes."""
    lines = traceback.format_exception(error)
    return f"{error} {error!r} " + "".join(line for line in lines if not line.lstrip().startswith("File"))


async def spoil(place: Place, session_id: str) -> None:
    """Damage the last event's text, in the middle of which the canary stands."""
    match place.kind.name:
        case "postgres":
            dsn, schema = place.database
            await run_sql(dsn, f"update {schema}.events set data = 'ü' || data where seq = 1")
        case "sqlite":
            connection = connect(place.directory / "sessions.db", "rw", 5)
            connection.execute("UPDATE events SET data = CAST(x'ff' AS TEXT) || data WHERE seq = 1")
            connection.close()
        case "jsonl":
            path = place.directory / "sessions" / name_of(session_id)
            await asyncio.to_thread(lambda: path.write_bytes(path.read_bytes().replace(b'{"seq":1', b'{"sex":1')))


@asynccontextmanager
async def open_store(place: Place) -> AsyncIterator[SessionPersistence]:
    store = place.persistence()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_no_refusal_shows_what_is_stored(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Fenced, held, in conflict, taken, deleted, with a gap, damaged, closed: the events hold the canary each time."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    async def refused(attempt: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises((SessionError, ValueError)) as raised:
            await attempt()
        said.append(told(raised.value))

    def secret(writer: Writer, *, seq: int | None = None) -> Batch:
        return writer.batch(events=[message(writer.seq if seq is None else seq, CANARY)])

    def broken(log: StoredLog, epoch: Epoch) -> Batch:
        return replace(secret(writer), previous=bytes(32))

    async with open_store(place) as store:
        writer = Writer.new(store, "s", meta={"secret": CANARY}, lease_s=ALREADY_OVER)
        await writer.write(events=[message(0, CANARY), title(1, CANARY)])
        other = Writer.new(store, "s", meta={"another": CANARY})
        forged = replace(writer.epoch, token=CANARY)
        await refused(lambda: store.append(writer.header, secret(writer, seq=7), writer.epoch))
        await refused(lambda: store.append(writer.header, secret(writer), forged))
        await refused(lambda: store.append(other.header, other.batch(events=[message(0, CANARY)]), other.epoch))
        await refused(lambda: store.append(other.header, secret(writer), writer.epoch))
        await refused(
            lambda: store.append(writer.header, writer.batch(events=[message(2), message(9, CANARY)]), forged)
        )
        await refused(lambda: store.acquire("s", owner(), repair=broken))
        await refused(lambda: store.renew("s", forged))
        await refused(lambda: store.check_free("s"))
        await store.acquire("s", owner("berta"))
        await refused(lambda: store.acquire("s", owner("clara")))
        await refused(lambda: writer.send(secret(writer)))
        if place.kind.is_durable:
            await spoil(place, "s")
            await refused(lambda: House(persistence=store).sessions.resume("s", force=True))
            await refused(lambda: inspected(store))
        await store.delete("s")
        await refused(lambda: writer.send(secret(writer)))
        said.append(repr(store))
    if place.kind.is_durable:
        await refused(lambda: writer.send(secret(writer)))
    assert len(said) >= 11
    assert CANARY not in "".join(said) + caplog.text


async def inspected(store: SessionPersistence) -> None:
    """Raises what inspecting reports, or what keeps it from reading."""
    problem = (await House(persistence=store).sessions.inspect("s")).problem
    assert problem is not None
    raise problem


async def test_a_turn_on_a_store_that_fails_logs_nothing_of_it(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Before and after the write, in prompts, calls and results; and the reprs of what is live."""
    caplog.set_level(logging.DEBUG)
    store = FaultyPersistence(place.persistence())
    steps = [[say(CANARY), call("tell", {"text": CANARY}, id=CANARY)], say(CANARY), say(CANARY)]
    house = House(steps, [tell], store)
    shown: list[str] = []
    async with house.agent() as agent:
        for fault in (FailBefore(DOWN), FailAfter(DOWN)):
            store.next("append", fault)
            outcome = await agent.wait(agent.send(CANARY))
            shown += [
                str(outcome.error and outcome.error["message"]),
                repr(agent.session),
                repr(agent),
                repr(store.inner),
            ]
        store.heal()
        await agent.wait(agent.send(CANARY))
        assert any(CANARY in event.text for event in agent.session.events)
    assert CANARY not in " ".join(shown) + caplog.text


def tell(text: str) -> str:
    """Say it again."""
    return text


PASSWORDS = [CANARY, f"{CANARY}#x", f"{CANARY}/x", f"x#/{CANARY}?@", f"{CANARY}@{CANARY}"]
COMMANDS = ("sessions", "doctor", "doctor --json", "config show", "config show --json", "config check", "explain",
    "migrate", "verify --all", "show s", "run hi --model script:s.json", "resume s --json")  # fmt: skip


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_command_prints_the_password(tmp_path: Path, password: str) -> None:
    """Of a server that is not there, of one that cannot be meant, and quoted as a DSN should have it."""
    script = Command(tmp_path).script({"say": "Hello"}, name="s")
    assert script == "script:s.json"
    dsns = [f"postgresql://me:{secret}@{place}/d" for secret in {password, quote(password, safe="")} for place in
        ("127.0.0.1:1", "127.0.0.1:port")]  # fmt: skip
    for dsn in [*dsns, f"postgresql://127.0.0.1:1/d?user=me&password={quote(password, safe='')}"]:
        command = Command(tmp_path, persistence__kind="postgres", persistence__dsn=dsn)
        for words in COMMANDS:
            done = command.inside(*words.split())
            assert CANARY not in done.out + done.err, (words, dsn)
            assert words.startswith(("config", "explain")) or done.code in (2, 3)
