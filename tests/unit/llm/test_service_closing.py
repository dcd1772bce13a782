"""Closing a request's stream: once, on every path, and whose fault it is when that fails."""

import asyncio
import gc
import logging

import pytest

from app.llm.types import LlmError
from app.messages import TextDelta
from app.middleware import MiddlewareFailed
from tests.unit.llm.parts import HELLO, TracedAdapter, read, request, service

OPENED_AND_CLOSED_ONCE = ["open a", "close a"]


class Halt(BaseException):
    pass


async def read_one(llm):
    async with llm.stream(request()) as stream:
        async for _ in stream:
            break


async def read_until_it_raises(llm, error):
    async with llm.stream(request()) as stream:
        async for _ in stream:
            raise error


async def test_read_to_the_end():
    adapter = TracedAdapter()
    assert await read(service(adapter), request()) == list(HELLO)
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_the_consumer_stops_early():
    """LLM-05"""
    adapter = TracedAdapter()
    await read_one(service(adapter))
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_the_consumer_never_reads():
    adapter = TracedAdapter()
    async with service(adapter).stream(request()):
        pass
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


@pytest.mark.parametrize(
    "error", [ValueError("ours"), asyncio.CancelledError(), Halt()], ids=lambda e: type(e).__name__
)
async def test_the_consumer_raises_and_that_is_what_comes_out(error):
    """LLM-05"""
    adapter = TracedAdapter()
    with pytest.raises(type(error)) as raised:
        await read_until_it_raises(service(adapter), error)
    assert raised.value is error
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_an_async_generator_of_an_adapter_is_finished_when_the_consumer_stops_early():
    """LLM-05: -W error makes a test of an unfinished generator's warning."""
    ended = []

    async def chunks():
        try:
            yield TextDelta(0, "hel")
            yield TextDelta(0, "lo")
        finally:
            ended.append(True)

    class Plain:
        name = "a"

        def stream(self, request):
            return chunks()

    await read_one(service(Plain()))
    assert ended == [True]
    gc.collect()


async def test_the_adapter_fails_while_streaming():
    adapter = TracedAdapter([HELLO[0], OSError("reset")])
    with pytest.raises(LlmError):
        await read(service(adapter), request())
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_the_reader_is_cancelled_while_it_waits_for_a_chunk():
    waits = asyncio.Event()

    async def never():
        waits.set()
        await asyncio.Event().wait()

    adapter = TracedAdapter([HELLO[0], never])
    reading = asyncio.create_task(read(service(adapter), request()))
    await waits.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_a_middleware_raises_after_it_had_the_stream_opened():
    async def careless(request, call_next):
        await call_next(request)
        raise ValueError("forgot what it was doing")

    adapter = TracedAdapter()
    with pytest.raises(MiddlewareFailed):
        await read(service(adapter, careless=careless), request())
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_entering_is_cancelled_after_the_stream_was_opened():
    opened = asyncio.Event()

    async def slow(request, call_next):
        stream = await call_next(request)
        opened.set()
        await asyncio.Event().wait()
        return stream

    adapter = TracedAdapter()
    entering = asyncio.create_task(read(service(adapter, slow=slow), request()))
    await opened.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


@pytest.mark.parametrize("reads", [0, 1, 99])
async def test_a_middleware_reads_the_stream_inside_its_own(reads):
    async def shouting(request, call_next):
        inner = await call_next(request)

        async def chunks():
            async for chunk in inner:  # a break out of here does not close `inner`
                yield chunk

        return chunks()

    adapter = TracedAdapter()
    async with service(adapter, shouting=shouting).stream(request()) as stream:
        chunks = aiter(stream)
        for _ in range(reads):
            await anext(chunks, None)
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_a_middleware_closes_the_stream_that_it_drops_without_having_read_it():
    async def picky(request, call_next):
        first = await call_next(request)
        await first.aclose()
        await first.aclose()
        adapter.trace.append("dropped")
        return await call_next(request)

    adapter = TracedAdapter()
    await read(service(adapter, picky=picky), request())
    assert adapter.trace == ["open a", "close a", "dropped", "open a", "close a"]


async def test_a_middleware_forgets_the_stream_that_it_drops():
    async def forgetful(request, call_next):
        await call_next(request)
        return await call_next(request)

    adapter = TracedAdapter()
    await read(service(adapter, forgetful=forgetful), request())
    assert adapter.trace == ["open a", "open a", "close a", "close a"]


async def test_an_adapter_that_cannot_say_goodbye_spoils_nothing(caplog):
    def refuse():
        raise OSError("already gone")

    adapter = TracedAdapter()
    async with service(adapter).stream(request()) as stream:
        adapter.sources[0]._closed = refuse
        assert [chunk async for chunk in stream] == list(HELLO)
    assert caplog.record_tuples == [
        ("app.llm.checked", logging.WARNING, "closing a stream of adapter 'a' failed: OSError: already gone")
    ]


def ending_badly(after):
    async def call(request, call_next):
        inner = await call_next(request)

        async def chunks():
            try:
                async for chunk in inner:
                    yield chunk
            finally:
                raise ValueError(after)

        return chunks()

    return call


async def test_a_middleware_that_fails_when_its_stream_is_closed_has_failed():
    adapter = TracedAdapter()
    with pytest.raises(MiddlewareFailed) as failed:
        await read_one(service(adapter, audit=ending_badly("no room")))
    assert str(failed.value) == "middleware 'audit' failed: no room"
    assert adapter.trace == OPENED_AND_CLOSED_ONCE


async def test_what_the_consumer_raised_is_not_lost_to_a_middleware_that_fails_on_closing(caplog):
    error = KeyError("ours")
    with pytest.raises(KeyError) as raised:
        await read_until_it_raises(service(TracedAdapter(), audit=ending_badly("no room")), error)
    assert raised.value is error
    assert caplog.messages == ["middleware 'audit' failed: no room, while closing a stream after: KeyError: 'ours'"]


async def test_every_stream_is_closed_though_closing_another_is_cancelled():
    def cancel():
        adapter.trace.append("cancelled")
        raise asyncio.CancelledError

    async def forgetful(request, call_next):
        await call_next(request)
        return await call_next(request)

    adapter = TracedAdapter()
    stream = await service(adapter, forgetful=forgetful).stream(request()).__aenter__()
    adapter.sources[1]._closed = cancel
    with pytest.raises(asyncio.CancelledError):
        await stream.__aexit__(None, None, None)
    assert adapter.trace == ["open a", "open a", "cancelled", "close a"]


async def test_a_thrown_error_closes_the_stream_and_comes_out():
    adapter = TracedAdapter()
    error = ValueError("thrown")
    async with service(adapter).stream(request()) as stream:
        with pytest.raises(ValueError, match="thrown") as raised:
            await aiter(stream).athrow(error)
    assert raised.value is error
    assert adapter.trace == OPENED_AND_CLOSED_ONCE
