"""For stores on one machine: a claim of a process that has ended need not be waited for, a living one's holds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from app.session.errors import SessionHeld, Stored
from app.session.ownership import Epoch, this_owner
from persistence.contract.base import Contract, Stores
from persistence.contract.ownership import check_powerless
from persistence.contract.samples import LONG, Writer, owner

_CHILD = """
import asyncio, importlib, json, sys
from pathlib import Path
from app.session.ownership import Epoch, this_owner
from persistence.contract.samples import LONG, Writer

async def main(module, factory, folder):
    store = getattr(importlib.import_module(module), factory)(Path(folder))
    await store.open()
    writer = Writer.new(store, "s")
    writer.epoch = Epoch.first(this_owner("the child", LONG))
    await writer.write(3)
    print(json.dumps([writer.epoch.number, writer.epoch.token]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class LocalClaimsContract(Contract):
    """Claims that end with their process. `factory` names, as "module:function", what makes a store of a folder."""

    factory: ClassVar[str]

    @asynccontextmanager
    async def child(self, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[object]]]:
        """A process that holds session "s" under a long lease, and what proves its claim: number and token."""
        command = (sys.executable, "-c", _CHILD, *self.factory.split(":"), str(folder))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        child = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        try:
            assert child.stdout is not None
            yield child, json.loads(await child.stdout.readline())
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def test_a_claim_ends_with_its_process(self, stores: Stores, tmp_path: Path) -> None:
        """RUL-01."""
        async with self.child(tmp_path) as (child, claim):
            store = await stores.open()
            with pytest.raises(SessionHeld) as raised:
                await store.acquire("s", this_owner("berta"))
            assert raised.value.owner == "the child"
            assert raised.value.seconds_left is not None
            assert LONG - 100 < raised.value.seconds_left <= LONG
            child.kill()
            await child.wait()
            epoch, log = await store.acquire("s", this_owner("berta"))
            assert (epoch.number, log.next_seq) == (2, 3)
            number, token = claim
            assert isinstance(number, int)
            assert isinstance(token, str)
            dead = Writer.new(store, "s")
            dead.epoch = Epoch(number, token, owner("the child"))
            dead.head, dead.events = log.head, list(log.events)
            await check_powerless(store, dead, Stored(2, 3, log.head))

    async def test_a_claim_of_this_very_process_holds(self, stores: Stores) -> None:
        store = await stores.open()
        writer = Writer.new(store)
        writer.epoch = Epoch.first(this_owner("anna", LONG))
        await writer.write()
        for other in (store, await stores.open()):
            with pytest.raises(SessionHeld) as raised:
                await other.acquire(writer.id, this_owner("anna"))
            assert raised.value.owner == "anna"
