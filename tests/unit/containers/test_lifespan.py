"""Start and stop: opened in order, closed in reverse and in time, whatever fails on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers

from app.agent.agent import Agent
from app.llm.scripted import ScriptedAdapter, call, say
from app.session.errors import AgentClosed, ConfigurationError, PersistenceUnavailable, StoreUnusable
from app.session.persistence import SessionPersistence
from app.tools.schema import tool
from app.tools.tool_set import ToolSet
from app.tools.types import ToolExecution
from containers.application import Application, Built, check
from containers.lifespan import Lifespan, running
from containers.settings import load_settings
from persistence.memory import MemoryPersistence
from persistence.sqlite import SqlitePersistence
from tests.support.faults import DOWN, FailBefore, FaultyPersistence
from tests.support.gates import Gate
from tests.support.house import types
from tests.support.virtual_time import virtual_time


class Watched(FaultyPersistence):
    """A store with faults that also tells when it is opened and closed; both may be held up or fail."""

    opening: Gate | None = None
    closing: Gate | None = None
    refusal: BaseException | None = None

    async def open(self) -> None:
        self.log.append("open")
        await super().open()
        if self.opening is not None:
            await self.opening()
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        self.log.append("close")
        if self.closing is not None:
            await self.closing()
        await super().close()


class Work:
    """A tool's body that tells when it has begun and when it has seen that it is to stop, and ends when it may."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.told = asyncio.Event()
        self.may_end = asyncio.Event()

    async def work(self, execution: ToolExecution) -> str:
        """Work."""
        self.begun.set()
        await execution.signal.wait()
        self.told.set()
        await self.may_end.wait()
        return "worked"


def built(persistence: SessionPersistence, steps: Sequence[Any] = (), work: Work | None = None, **more: Any) -> Built:
    """The application over this store, with a scripted model and perhaps a tool; nothing is written behind."""
    settings = load_settings("test", **{"write_behind_ms": "off", "model": {"adapter": "script", "name": "m"}, **more})
    application = Application(settings=settings)
    application.persistence.override(providers.Object(persistence))
    application.adapters.override(providers.Object([ScriptedAdapter(steps)]))
    application.tool_set.override(providers.Object(ToolSet([] if work is None else [tool(work.work)])))
    return check(application)


async def at_work(application: Built, work: Work, session_id: str = "s") -> Agent:
    """An agent in the middle of its tool's body."""
    agent = await application.agents.create(session_id)
    agent.send("go")
    await work.begun.wait()
    return agent


async def nothing_runs() -> None:
    """Fails if a task is left besides the test's own."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ------------------------------------------------------------------------------------------------ stop


async def test_stopping_ends_turns_awaits_bodies_flushes_releases_and_then_closes_the_store() -> None:
    """LIF-10."""
    store, work = Watched(MemoryPersistence()), Work()
    lifespan = Lifespan(built(store, [call("work", id="c1")], work))
    async with lifespan as application:
        agent = await at_work(application, work)
        store.log.clear()
        stopping = asyncio.create_task(lifespan.stop())
        await work.told.wait()
        with pytest.raises(AgentClosed):
            agent.send("more")
        assert (store.log, agent.status) == ([], "running")
        work.may_end.set()
        await stopping
        assert agent.status == "closed"
    assert store.log == ["append", "append done", "append", "append done", "release", "release done", "close"]
    assert store.reasons == ["request", "tool", "post-step", "final"]
    ended = ["tool/call", "tool/result", "session/title", "step/end", "turn/end{aborted}"]
    assert types(agent.session)[-5:] == ended
    assert agent.session.events[-1].data["cause"] == "shutdown"
    assert (agent.session.durable, lifespan.unwritten) == (len(agent.session), {})
    await nothing_runs()


async def test_a_window_that_has_not_ended_is_written_and_leaves_no_timer() -> None:
    """LIF-10: pending windows."""
    store = Watched(MemoryPersistence())
    async with Lifespan(built(store, write_behind_ms=60_000)) as application:
        agent = await application.agents.create("s")
        agent.inject("by the way")
    assert store.reasons == ["final"]
    stored = await store.read("s")
    assert [event.type for event in stored.events] == ["inbox/accepted"]
    assert stored.holder.owner is None


async def test_a_session_without_an_agent_is_released_too() -> None:
    store = Watched(MemoryPersistence())
    async with Lifespan(built(store)) as application:
        agent = await application.agents.create("s")
        agent.inject("by the way")
        await agent.close()
        session = await application.sessions.resume("s")
        store.log.clear()
    assert store.log == ["release", "release done", "close"]
    assert (session.is_live, application.sessions.live) == (False, ())


async def test_pending_messages_are_kept_and_run_when_the_session_is_resumed() -> None:
    store, work = Watched(MemoryPersistence()), Work()
    work.may_end.set()
    async with Lifespan(built(store, [call("work", id="c1")], work)) as application:
        agent = await at_work(application, work)
        later = agent.send("and then")
    async with Lifespan(built(store, [say("then")], work)) as application:
        agent = await application.agents.resume("s")
        assert (await agent.wait(later)).reason == "completed"


async def test_stopping_twice_is_one_stop_for_which_both_wait() -> None:
    """LIF-11."""
    store, work = Watched(MemoryPersistence()), Work()
    lifespan = Lifespan(built(store, [call("work", id="c1")], work))
    async with lifespan as application:
        await at_work(application, work)
        both = [asyncio.create_task(lifespan.stop()) for _ in range(2)]
        await work.told.wait()
        assert [task.done() for task in both] == [False, False]
        work.may_end.set()
        await asyncio.gather(*both)
        await lifespan.stop()
    await lifespan.stop()
    assert store.log.count("close") == 1
    await nothing_runs()


async def test_whoever_stops_waiting_for_the_stop_does_not_end_it() -> None:
    store, work = Watched(MemoryPersistence()), Work()
    lifespan = Lifespan(built(store, [call("work", id="c1")], work))
    async with lifespan as application:
        await at_work(application, work)
        impatient = asyncio.create_task(lifespan.stop())
        await work.told.wait()
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        work.may_end.set()
    assert store.log[-3:] == ["release", "release done", "close"]


async def test_a_store_that_is_down_is_told_by_session_and_events_and_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """LIF-14: a store that refuses."""
    store = Watched(MemoryPersistence())
    application = built(store)
    lifespan = Lifespan(application)
    await lifespan.start()
    for session_id, messages in (("a", 1), ("b", 2)):
        agent = await application.agents.create(session_id)
        for number in range(messages):
            agent.inject(f"number {number}")
    agentless = await application.sessions.create("agentless")
    store.always("append", FailBefore(DOWN))
    with pytest.raises(PersistenceUnavailable) as caught:
        await lifespan.stop()
    assert caught.value is DOWN
    assert lifespan.unwritten == {"a": 1, "b": 2}
    assert [line for line in caplog.messages if "never stored" in line] == [
        "session a: 1 events were never stored",
        "session b: 2 events were never stored",
    ]
    assert (store.log[-1], agentless.is_live) == ("close", False)
    await nothing_runs()


@virtual_time
async def test_a_store_that_never_answers_is_left_when_the_time_is_over() -> None:
    """LIF-14: a store that hangs, also while it is closed."""
    store = Watched(MemoryPersistence())
    store.closing = Gate()
    application = built(store, shutdown_timeout_s=10)
    lifespan = Lifespan(application)
    await lifespan.start()
    agent = await application.agents.create("s")
    agent.inject("by the way")
    held = store.hold("append")
    now = asyncio.get_running_loop().time
    started_at = now()
    with pytest.raises(TimeoutError) as caught:
        await lifespan.stop()
    assert str(caught.value) == "stopping took longer than it may (shutdown_timeout_s)"
    assert now() - started_at <= 10
    assert (lifespan.unwritten, store.log[-1]) == ({"s": 1}, "close")
    held.open()


@virtual_time
async def test_a_turn_that_does_not_end_in_time_is_left_to_recovery() -> None:
    store, work = Watched(MemoryPersistence()), Work()
    application = built(store, [call("work", id="c1")], work, shutdown_timeout_s=10)
    lifespan = Lifespan(application)
    await lifespan.start()
    await at_work(application, work)
    now = asyncio.get_running_loop().time
    started_at = now()
    with pytest.raises(TimeoutError):
        await lifespan.stop()
    assert (now() - started_at <= 10, store.log[-1]) == (True, "close")
    stored = await store.read("s")
    assert stored.events[-1].type == "tool/call"
    work.may_end.set()


async def test_an_error_in_the_body_is_not_hidden_by_one_of_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    store = Watched(MemoryPersistence())

    async def fail() -> None:
        async with Lifespan(built(store)) as application:
            agent = await application.agents.create("s")
            agent.inject("by the way")
            store.always("append", FailBefore(DOWN))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert f"stopping failed as well: {DOWN}" in caplog.messages
    assert store.log[-1] == "close"


# ------------------------------------------------------------------------------------------------ start


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


async def test_a_start_that_fails_while_the_store_opens_leaves_nothing_and_a_second_one_works(here: Path) -> None:
    """LIF-15: the store cannot be opened."""
    path = here / "sessions.db"
    path.write_text("this is no database, but long enough to look like a file of something")
    settings = load_settings(persistence={"path": path})
    before = threads()
    with pytest.raises(StoreUnusable):
        async with running(settings):
            pytest.fail("it started")
    await nothing_runs()
    assert threads() == before
    path.unlink()
    async with running(settings) as application:
        await application.sessions.list()
    assert threads() == before


async def test_a_start_that_fails_when_the_store_is_half_open_closes_it() -> None:
    """LIF-15: the store opens, and refuses then."""
    store = Watched(MemoryPersistence())
    store.refusal = StoreUnusable("here", "it is old")
    with pytest.raises(StoreUnusable):
        async with Lifespan(built(store)):
            pytest.fail("it started")
    assert store.log == ["open", "close"]


async def test_a_start_that_is_cancelled_closes_what_is_open() -> None:
    """LIF-15: cancelled while the store opens."""
    store = Watched(MemoryPersistence())
    store.opening = Gate()
    starting = asyncio.create_task(Lifespan(built(store)).start())
    await store.opening.reached.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert store.log == ["open", "close"]
    await nothing_runs()


def test_a_start_that_fails_before_anything_is_opened_makes_no_file(here: Path) -> None:
    """LIF-15: the application cannot be built."""
    with pytest.raises(ConfigurationError):
        running(load_settings(guards={"order": ["x"]}))
    assert list(here.iterdir()) == []


async def test_what_was_never_started_has_nothing_to_stop() -> None:
    store = Watched(MemoryPersistence())
    await Lifespan(built(store)).stop()
    assert store.log == []


async def test_an_application_is_started_once() -> None:
    lifespan = Lifespan(built(Watched(MemoryPersistence())))
    async with lifespan:
        with pytest.raises(RuntimeError, match="started once"):
            await lifespan.start()
    with pytest.raises(RuntimeError, match="started once"):
        await lifespan.start()


# ------------------------------------------------------------------------------------------------ around


def test_two_event_loops_one_after_the_other_both_work(here: Path) -> None:
    """LIF-17: with the default backend and the shipped listeners."""

    async def turn(prompt: str, session_id: str, is_new: bool) -> list[str]:
        store = SqlitePersistence(here / "sessions.db")
        async with Lifespan(built(store, [say("yes")])) as application:
            agents = application.agents
            agent = await (agents.create(session_id) if is_new else agents.resume(session_id))
            agent.send(prompt)
            await agent.wait_idle()
            return types(agent.session)

    once = ["inbox/accepted", "turn/start", "user/message", "step/start", "request/header", "chunk*"]
    first = [*once, "assistant/message", "session/title", "step/end", "turn/end{completed}"]
    second = [*once, "assistant/message", "step/end", "turn/end{completed}"]
    assert asyncio.run(turn("one", "s", True)) == first
    assert asyncio.run(turn("two", "s", False)) == [*first, *second]


async def test_a_start_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings("test")
    monkeypatch.setenv("BEFOREHAND_PERSISTENCE__KIND", "sqlite")
    async with running(settings) as application:
        assert application.persistence.kind == "memory"
