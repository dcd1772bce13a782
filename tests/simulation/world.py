"""One world: a few processes that want the same session, everything that may befall them, and peace at the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from app.session.errors import SessionDeleted, SessionNotFound
from app.session.persistence import StoredLog
from app.session.record import SessionEvent
from tests.simulation.checking import Known, of_copy, violations
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Process, SimulatedLoop, run
from tests.simulation.service import Promises, Service
from tests.simulation.store import Server


@dataclass
class Outcome:
    """What came of a world. `trace` is what the log says, without what is never the same twice."""

    seed: int
    kill_at: int | None
    violations: list[str]
    acknowledged: int = 0
    requests: int = 0
    bodies: int = 0
    steps: int = 0
    trace: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)


def play(seed: int, kill_at: int | None = None) -> Outcome:
    """A world of this seed. With `kill_at` nothing befalls it but that its one process is killed at that step."""
    try:
        return run(lambda loop: _play(loop, seed, kill_at), seed)
    except Exception as error:  # of the last process, or a bug of any: in peace nothing may fail
        return Outcome(seed, kill_at, [f"{type(error).__name__}: {error}"])


async def _play(loop: SimulatedLoop, seed: int, kill_at: int | None) -> Outcome:
    lots = loop.random
    server = Server(loop.time, random.Random(f"network {seed}"))
    ledger, promises = Ledger(server), Promises()

    def service(name: str) -> Service:
        return Service(name, server, ledger, promises, random.Random(f"{name} {seed}"))

    first = Process(loop, "first")
    if kill_at is None:
        await _trouble(loop, lots, server, service, first)
    else:
        first.kill_at = kill_at
        await _until_it_ends(first.spawn(service("first").live(6)), first)
    server.fault_rate = 0.0
    healer = Process(loop, "healer")
    await asyncio.sleep(5)  # what was sent late arrives before there is peace
    await healer.spawn(service("healer").finish())
    log = await _stored(server, "s")
    origin = None if server.happened["fail over"] else log  # what was read, and not durable, may be gone there
    wrong = [*server.violations]
    for copy, fate in promises.copies.items():
        wrong += of_copy(fate, await _stored(server, copy), origin)
    acknowledged = server.acknowledged.get("s", {})
    refused = [digest for digest, times in server.refused.items() if times == server.sent[digest]]
    known = Known(acknowledged, refused, promises.acknowledged, ledger.entered, ledger.ended)
    steps = first.steps if kill_at is not None else loop.steps
    return Outcome(
        seed,
        kill_at,
        [*wrong, *violations(known, log)],
        len(acknowledged),
        ledger.requests,
        ledger.entered.total(),
        steps,
        [] if log is None else [_told(event) for event in log.events],
        server.happened + Counter(_kind(event) for event in (log.events if log else ())),
    )


async def _trouble(
    loop: SimulatedLoop, lots: random.Random, server: Server, service: Callable[[str], Service], first: Process
) -> None:
    server.fault_rate = lots.choice([0.0, 0.02, 0.1, 0.3])
    living: list[tuple[Process, asyncio.Task[None]]] = []
    for n in range(lots.randint(1, 4)):
        process = first if n == 0 else Process(loop, f"process {n}")
        living.append((process, process.spawn(service(process.name).live(lots.randint(2, 12)))))
        for _ in range(lots.randint(1, 4)):
            await asyncio.sleep(lots.expovariate(1))
            process, task = lots.choice(living)
            trouble = lots.choices(["kill", "pause", "end", "fail over", "nothing"], [2, 2, 1, 1, 4])[0]
            server.happened[trouble] += trouble != "fail over"
            match trouble:
                case "kill":
                    process.kill()
                case "pause":
                    process.pause(lots.choice([0.1, 1, 15]))
                case "end":
                    task.cancel()
                case "fail over":
                    server.fail_over()
    await asyncio.sleep(lots.expovariate(0.2))
    for process, task in living:
        if lots.random() < 0.3:
            process.kill()
        await _until_it_ends(task, process)


async def _until_it_ends(task: asyncio.Task[None], process: Process) -> None:
    """Wait for a life to end. One that goes on for two minutes is ended; one that was killed never does by itself."""
    for _ in range(1200):
        if task.done() or process.is_dead:
            break
        await asyncio.sleep(0.1)
    process.kill()
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def _stored(server: Server, session_id: str) -> StoredLog | None:
    try:
        return await server.visible.read(session_id)
    except (SessionNotFound, SessionDeleted):
        return None


def _kind(event: SessionEvent) -> str:
    """Its type, and of what ends something also how it ended."""
    how = event.data.get("error", {}).get("code") or event.data.get("reason")
    return f"{event.type} {how}" if how else event.type


def _told(event: SessionEvent) -> str:
    return f"{event.seq} {event.type} {event.time}"
