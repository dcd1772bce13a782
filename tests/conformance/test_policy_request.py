"""The request checkpoint: the log is durable before an adapter gets to know of a request of its session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.cancel import CancelSignal
from app.llm.scripted import call, say
from app.llm.types import ChunkStream, LlmRequest, OpenStream
from app.middleware import Named
from app.session.errors import AbortedBeforeDispatch, SessionNotLive
from app.tools.schema import tool
from persistence.memory import MemoryPersistence
from tests.support.checkpoints import NotingAdapter, flushes_of, pend, read, request
from tests.support.faults import FailBefore, FaultyPersistence
from tests.support.house import House
from tests.support.virtual_time import virtual_time, waits


class Scene:
    """A house whose store, adapter and middleware note in one list what they do, in order."""

    def __init__(self, *steps: Any, **parts: Any) -> None:
        self.order: list[str] = []
        self.store = FaultyPersistence(MemoryPersistence(), self.order)
        self.adapter = NotingAdapter(self.order, steps or (say("an answer"),))
        self.house = House(persistence=self.store, adapters=[self.adapter], **parts)
        self.flushes = flushes_of(self.house.sessions)


@virtual_time
async def test_the_adapter_is_opened_when_the_flush_has_ended():
    """POL-01: while the flush is held up nothing else happens."""
    scene = Scene()
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        held = scene.store.hold("append")
        reading = asyncio.create_task(read(scene.house, request("s")))
        await held.reached()
        assert await waits(reading)
        assert scene.order == ["append"]
        held.open()
        await reading
        assert scene.order == ["append", "append done", "adapter"]
        assert scene.store.reasons == ["request"]


async def test_a_request_without_a_session_is_passed_on():
    """POL-02: the adapter is opened and nothing is flushed."""
    scene = Scene()
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        await read(scene.house, request())
        assert (scene.order, scene.flushes) == (["adapter"], [])


async def test_a_request_of_a_session_that_is_not_live_is_passed_on():
    """POL-03: whether it is live counts when `stream()` is called, not when the stream is entered."""
    scene = Scene()
    async with scene.house.opened():
        opening = scene.house.llm.stream(request("s"))
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        async with opening as stream:
            assert [chunk async for chunk in stream]
        assert (scene.order, scene.flushes) == (["adapter"], [])


async def test_the_error_of_the_flush_comes_out_as_it_is():
    """POL-04: that very exception, and the adapter is not opened."""
    scene, disk = Scene(), RuntimeError("disk unavailable")
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.store.next("append", FailBefore(disk))
        with pytest.raises(RuntimeError) as raised:
            await read(scene.house, request("s"))
        assert raised.value is disk
        assert scene.adapter.requests == []


async def test_a_stream_that_is_never_entered_costs_nothing():
    """POL-05: neither a flush nor anything further inside is made."""
    built: list[str] = []

    async def build(asked: LlmRequest, call_next: OpenStream) -> ChunkStream:
        built.append("something")
        return await call_next(asked)

    scene = Scene(stream_below=[Named("build", build)])
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        scene.house.llm.stream(request("s"))
        await asyncio.sleep(0)
        assert (scene.order, scene.flushes, built) == ([], [], [])


async def test_a_session_released_before_its_request_is_entered_is_missed():
    """POL-06: it is not live any more, and the adapter is not opened."""
    scene = Scene()
    async with scene.house.opened():
        session = await scene.house.sessions.create("s")
        pend(session)
        opening = scene.house.llm.stream(request("s"))
        await scene.house.sessions.release(session)
        with pytest.raises(SessionNotLive):
            await opening.__aenter__()
        assert scene.adapter.requests == []


async def test_a_side_request_is_checkpointed_like_any_other():
    """POL-25: one that a tool body makes while its turn runs, naming the live session."""

    @tool
    async def ask() -> int:
        pend(scene.house.sessions.live[0], "told-inside")
        return await read(scene.house, request("s"))

    scene = Scene(call("ask", {}, id="c1"), say("a side answer"), say("done"), tools=[ask])
    async with scene.house.agent() as agent:
        await agent.wait(agent.send("go"))
        assert scene.flushes == ["request", "tool", "request", "post-step", "request", "post-step", "final"]
        side = scene.store.written[2]
        assert (side.reason, [event.type for event in side.events]) == ("request", ["inbox/accepted"])
        assert len(scene.adapter.requests) == 3


@virtual_time
async def test_what_stands_below_the_checkpoint_is_called_after_the_flush():
    """POL-38: middleware that builds something when it is called builds nothing before."""

    async def build(asked: LlmRequest, call_next: OpenStream) -> ChunkStream:
        scene.order.append("built")
        return await call_next(asked)

    scene = Scene(stream_below=[Named("build", build)])
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        held = scene.store.hold("append")
        reading = asyncio.create_task(read(scene.house, request("s")))
        await held.reached()
        assert await waits(reading)
        held.open()
        await reading
        assert scene.order == ["append", "append done", "built", "adapter"]


async def test_each_call_from_above_runs_the_checkpoint_again():
    """POL-39: middleware above that opens twice and keeps the second stream: two flushes, two adapters."""
    closed: list[ChunkStream] = []

    async def twice(asked: LlmRequest, call_next: OpenStream) -> ChunkStream:
        first = await call_next(asked)
        await first.aclose()
        closed.append(first)
        pend(scene.house.sessions.live[0])
        return await call_next(asked)

    scene = Scene(say("first"), say("second", chunks=2), stream_above=[Named("twice", twice)])
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        scene.order.clear()
        assert await read(scene.house, request("s")) == 3
        assert scene.order == ["append", "append done", "adapter", "append", "append done", "adapter"]
        assert scene.flushes == ["request", "request"]
        assert len(closed) == 1


@virtual_time
async def test_a_side_request_cancelled_during_its_flush_is_aborted():
    """CAN-32: its own signal counts, the flush is awaited, and the adapter is not opened."""
    scene, signal = Scene(), CancelSignal()
    async with scene.house.opened():
        pend(await scene.house.sessions.create("s"))
        held = scene.store.hold("append")
        reading = asyncio.create_task(read(scene.house, request("s", signal)))
        await held.reached()
        signal.cancel()
        assert await waits(reading)
        held.open()
        with pytest.raises(AbortedBeforeDispatch):
            await reading
        assert (scene.store.reasons, scene.adapter.requests) == (["request"], [])
