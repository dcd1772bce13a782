"""The SQLite store among processes: what one of them was told is there for the others, also after a SIGKILL."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.session.errors import SequenceConflict, SessionFenced, Stored
from app.session.ownership import Epoch
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.base import contents
from persistence.contract.samples import message, owner
from persistence.sqlite import SqlitePersistence

PREAMBLE = """
import asyncio, sys
from pathlib import Path
from app.session.errors import SessionFenced, SessionHeld
from app.session.ownership import Epoch
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.samples import messages, owner
from persistence.sqlite import SqlitePersistence

path, name = Path(sys.argv[1]), sys.argv[2]

async def opened():
    store = SqlitePersistence(path)
    await store.open()
    return store

async def take(store):
    epoch, log = await store.acquire("s", owner(name), force=True)
    return Writer(store, verify(log, {})[0], epoch, log.head, list(log.events))
"""

APPENDS_FOR_EVER = """
async def main():
    writer = Writer.new(await opened(), "s")
    while True:
        await writer.write(1 + writer.seq % 4)
        print(writer.seq, flush=True)

asyncio.run(main())
"""

TAKES_AND_APPENDS_200 = """
async def main():
    store = await opened()
    done = 0
    print("ready", flush=True)
    sys.stdin.readline()
    while done < 200:
        writer = await take(store)
        try:
            while done < 200:
                await store.renew("s", writer.epoch)  # what a checkpoint does before a request
                print("request", flush=True)
                await writer.write(1, events=[messages(writer.seq, 1, name)[0]])
                done += 1
                print("stored", writer.seq - 1, flush=True)
        except SessionFenced:
            print("fenced", flush=True)
    await store.close()

asyncio.run(main())
"""


@asynccontextmanager
async def process(script: str, path: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs a script; killed at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = (sys.executable, "-c", PREAMBLE + script, str(path), name)
    child = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path) -> None:
    for seed in range(5):
        path = tmp_path / str(seed) / "s.db"
        chance = random.Random(seed)
        acknowledged = 0
        async with process(APPENDS_FOR_EVER, path, "x") as child:
            assert child.stdout is not None
            for _ in range(chance.randint(1, 60)):
                acknowledged = int(await child.stdout.readline())
            child.kill()
            acknowledged = max([acknowledged, *map(int, (await child.stdout.read()).split(b"\n")[:-1])])
        store = SqlitePersistence(path)
        await store.open()
        log = await store.read("s")
        _, fold = verify(log, {})
        assert log.next_seq >= acknowledged
        assert len([end for end in log.ends if end.seq >= acknowledged]) <= 1, "one batch was under way, no more"
        assert log.next_seq == len(log.events)
        assert not fold.state.turn.open_calls
        await store.close()


async def test_two_processes_append_in_turns_and_no_seq_is_missing_or_twice(tmp_path: Path) -> None:
    """APD-07."""
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    await Writer.new(store, "s").write()
    told: dict[str, list[str]] = {}
    both_ready = asyncio.Barrier(2)

    async def run(name: str) -> None:
        async with process(TAKES_AND_APPENDS_200, path, name) as child:
            assert child.stdout is not None
            assert await child.stdout.readline() == b"ready\n"
            await both_ready.wait()
            out, _ = await child.communicate(b"go\n")
            assert child.returncode == 0
            told[name] = out.decode().splitlines()

    await asyncio.gather(run("anna"), run("berta"))
    log = await store.read("s")
    verify(log, {})
    assert [event.seq for event in log.events] == list(range(401))
    for name, lines in told.items():
        assert "fenced" in lines, "they never met"
        mine = [event.seq for event in log.events if event.data["message"]["content"] == name]
        assert mine == [int(line.split()[1]) for line in lines if line.startswith("stored")]
        assert len(mine) == 200
    await store.close()


async def test_an_old_claim_with_an_old_length_leaves_the_new_tail_intact(tmp_path: Path) -> None:
    """ST-15."""
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    old = Writer.new(store, "s")
    await old.write(3)
    async with process(
        """
async def main():
    store = await opened()
    writer = await take(store)
    await writer.write(4)
    await store.close()
    print(writer.epoch.number, writer.epoch.token, flush=True)

asyncio.run(main())
""",
        path,
        "berta",
    ) as child:
        out, _ = await child.communicate()
        assert child.returncode == 0
    before = await contents(store)
    with pytest.raises(SessionFenced) as fenced:
        await old.write(1)
    head = (await store.read("s")).head
    assert fenced.value.stored == Stored(2, 7, head)
    number, token = out.decode().split()
    stale = Writer(store, old.header, Epoch(int(number), token, owner("berta")), old.head, old.events)
    with pytest.raises(SequenceConflict) as conflict:
        await stale.write(1, events=[message(3, "mine")])
    assert conflict.value.stored == Stored(2, 7, head)
    assert await contents(store) == before
    await store.close()
