"""What a checkpoint costs, against the least that a durable step can cost, measured in the same run.

On SQLite, the default: what it adds to a turn, against one bare durable commit through a worker thread. A turn of one
tool call and an answer makes six checkpoints. Its time over SQLite with the semantic policy, less the same turn's over
memory without checkpoints, divided by six, is one checkpoint; they take turns, so that a machine whose speed drifts
does so for all. Sessions of 10, 1,000 and 10,000 events show whether the log's length matters.

On Postgres: against bare inserts into a throw-away server. On JSON lines: only whether the log's length matters.
"""

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.agent.agent import Agent
from app.agent.agents import Agents
from app.agent.loop import AgentLoop
from app.agent.turn import ModelConfig
from app.llm.scripted import ScriptedAdapter, Step, call, say
from app.llm.service import LlmService
from app.middleware import CHECKPOINT, Named
from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import this_owner
from app.session.persistence import SessionPersistence
from app.session.store import SessionStore
from app.tools.schema import tool
from app.tools.service import ToolService
from app.tools.tool_set import ToolSet
from benchmarks import _postgres
from benchmarks._parts import flatness
from persistence.jsonl import JsonlPersistence
from persistence.memory import MemoryPersistence
from persistence.sqlite import SqlitePersistence
from policy.checkpoint import CheckpointPolicy, SemanticCheckpointPolicy, TurnEndCheckpointPolicy
from policy.retry import BackoffRetryPolicy

NOTE = ev.ExtensionType("bench/note", ignorable=True)
CHECKPOINTS = 6
TURNS = 150
WARM_UP = 30
LENGTHS = (10, 1_000, 10_000)


@tool(effects="side_effect")
def act() -> str:
    """Do nothing."""
    return "done"


class Floor:
    """The least that a durable step can cost: one INSERT of the same size, committed, on the same kind of file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE log (place INTEGER PRIMARY KEY, data TEXT)")
        self._thread = ThreadPoolExecutor(max_workers=1)

    def commit(self) -> None:
        self._connection.execute("INSERT INTO log (data) VALUES (?)", ("x" * 400,))

    async def through_a_thread(self) -> float:
        """Seconds for one commit that is awaited."""
        start = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(self._thread, self.commit)
        return time.perf_counter() - start

    def at_once(self) -> float:
        """Seconds for one commit without a thread between."""
        start = time.perf_counter()
        self.commit()
        return time.perf_counter() - start

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


async def agent_with(persistence: SessionPersistence, is_semantic: bool, length: int) -> Agent:
    sessions = SessionStore(
        persistence, this_owner(), extensions=[NOTE], drain_limits=DrainLimits(write_behind_ms=None)
    )
    policy: CheckpointPolicy = SemanticCheckpointPolicy(sessions) if is_semantic else TurnEndCheckpointPolicy()
    adapter = ScriptedAdapter(
        [Step([call("act", {})], contains="go", repeat=True), Step([say("done")], repeat=True)], strict=False
    )
    llm = LlmService([adapter], [Named(CHECKPOINT, policy.before_request)], sessions)
    tools = ToolService(ToolSet([act]), middleware=[Named(CHECKPOINT, policy.before_tool)])
    loop = AgentLoop(llm, tools, [Named(CHECKPOINT, policy.after_step)], BackoffRetryPolicy())
    agent = await Agents(sessions, loop, ModelConfig("script", "bench"), policy.after_append).create()
    for n in range(length):
        agent.session.append(ev.Extension(NOTE, {"n": n, "text": "x" * 200}))
    await sessions.flush(agent.session)
    return agent


async def turn(agent: Agent) -> float:
    """Seconds for one whole turn."""
    start = time.perf_counter()
    await agent.wait(agent.send("go"))
    return time.perf_counter() - start


async def measure(directory: Path, length: int) -> tuple[float, float, float, float]:
    """Medians in seconds: a turn with checkpoints, one without, one commit through a thread, one commit at once."""
    sqlite_store, memory = SqlitePersistence(directory / f"{length}.db"), MemoryPersistence()
    await sqlite_store.open()
    await memory.open()
    floor = Floor(directory / f"floor-{length}.db")
    durable, bare = await agent_with(sqlite_store, True, length), await agent_with(memory, False, length)
    samples: tuple[list[float], list[float], list[float], list[float]] = ([], [], [], [])
    for _ in range(WARM_UP):
        await turn(durable)
        await turn(bare)
    for _ in range(TURNS):
        samples[0].append(await turn(durable))
        samples[1].append(await turn(bare))
        samples[2].extend([await floor.through_a_thread() for _ in range(CHECKPOINTS)])
        samples[3].extend([floor.at_once() for _ in range(CHECKPOINTS)])
    await durable.close()
    await bare.close()
    floor.close()
    await sqlite_store.close()
    await memory.close()
    with_checkpoints, without, through_thread, at_once = (statistics.median(sample) for sample in samples)
    return with_checkpoints, without, through_thread, at_once


async def on_sqlite() -> None:
    print(f"a turn of {CHECKPOINTS} checkpoints, medians of {TURNS} turns, times in us")
    print(f"{'events':>8} {'turn':>8} {'without':>8} {'checkpoint':>11} {'commit*':>8} {'commit':>8} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as directory:
        for length in LENGTHS:
            durable, bare, through_thread, at_once = await measure(Path(directory), length)
            checkpoint = (durable - bare) / CHECKPOINTS
            row = [f"{value * 1e6:.0f}" for value in (durable, bare, checkpoint, through_thread, at_once)]
            print(
                f"{length:>8,} {row[0]:>8} {row[1]:>8} {row[2]:>11} {row[3]:>8} {row[4]:>8}"
                f" {checkpoint / through_thread:>6.2f}"
            )
    print("commit*: one bare INSERT, durably committed, awaited through one worker thread; commit: the same at once")


async def on_jsonl() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = JsonlPersistence(Path(directory))
        await store.open()
        await flatness(store)
        await store.close()


STORES = {"sqlite": on_sqlite, "jsonl": on_jsonl, "postgres": _postgres.main}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    asyncio.run(STORES[parser.parse_args().store]())
