"""Opening a request's stream: when, in which order, by whom, and with what."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.llm.checked import AdapterStream
from app.llm.types import LlmError, LlmRequest
from app.messages import AssistantMessage, Finish, ModelRef, TextBlock, TextDelta
from app.session.errors import ConfigurationError
from tests.unit.llm.parts import ASK, HELLO, Live, Source, TracedAdapter, read, request, service, session


async def test_a_stream_that_is_never_entered_costs_a_look_up_and_nothing_else():
    """POL-05"""
    trace = []

    async def checkpoint(request, call_next):
        trace.append("checkpoint")
        return await call_next(request)

    live = Live(session("s"))
    llm = service(TracedAdapter(trace=trace), live=live, checkpoint=checkpoint)
    llm.stream(request(session_id="s"))
    assert (live.looked_up, trace) == (["s"], [])


async def test_the_session_is_the_one_live_at_the_call_whatever_comes_after():
    ours = session("s")
    live = Live(ours)
    adapter = TracedAdapter()
    llm = service(adapter, live=live)
    named, absent = llm.stream(request(session_id="s")), llm.stream(request(session_id="t"))
    live.sessions = {"t": session("t")}
    for stream in (named, absent, llm.stream(request())):
        async with stream:
            pass
    assert [(seen.session_id, seen.session) for seen in adapter.requests] == [("s", ours), ("t", None), (None, None)]
    assert live.looked_up == ["s", "t"]


async def test_a_caller_cannot_name_the_live_session_himself():
    adapter = TracedAdapter()
    await read(service(adapter), request(session=session("s")))
    assert adapter.requests[0].session is None


async def test_middleware_opens_outermost_first_and_the_adapter_last():
    trace = []

    def noting(name):
        async def call(request, call_next):
            trace.append(f"{name} before")
            stream = await call_next(request)
            trace.append(f"{name} after")
            return stream

        return call

    llm = service(TracedAdapter(trace=trace), outer=noting("outer"), inner=noting("inner"))
    async with llm.stream(request()) as stream:
        trace.append("read")
        assert [chunk async for chunk in stream] == list(HELLO)
    assert trace == [
        "outer before",
        "inner before",
        "open a",
        "inner after",
        "outer after",
        "read",
        "close a",
    ]


async def test_nothing_below_a_waiting_middleware_exists():
    trace = []
    flushing, gate = asyncio.Event(), asyncio.Event()

    async def checkpoint(request, call_next):
        trace.append("flush starts")
        flushing.set()
        await gate.wait()
        trace.append("flush ends")
        return await call_next(request)

    async def below(request, call_next):
        trace.append("built")
        return await call_next(request)

    llm = service(TracedAdapter(trace=trace), checkpoint=checkpoint, below=below)
    reading = asyncio.create_task(read(llm, request()))
    await flushing.wait()
    for _ in range(10):  # whatever would run now, could
        await asyncio.sleep(0)
    assert trace == ["flush starts"]
    gate.set()
    assert await reading == list(HELLO)
    assert trace == ["flush starts", "flush ends", "built", "open a", "close a"]


async def test_the_adapters_own_chunks_are_read_through_one_layer_however_much_middleware_there_is():
    async def passing(request, call_next):
        return await call_next(request)

    one, many = service(TracedAdapter()), service(TracedAdapter(), p=passing, q=passing, r=passing)
    async with one.stream(request()) as short, many.stream(request()) as long:
        chunks: list[Any] = [aiter(short), aiter(long)]
        assert [(type(layer), type(layer._source)) for layer in chunks] == [(AdapterStream, Source)] * 2


async def test_a_chunk_can_be_awaited_in_a_task_of_its_own():
    async with service(TracedAdapter()).stream(request()) as stream:
        assert await asyncio.create_task(anext(aiter(stream))) == HELLO[0]


async def test_nothing_is_read_after_the_finish():
    adapter = TracedAdapter([*HELLO, TextDelta(0, "more")])
    assert await read(service(adapter), request()) == list(HELLO)
    assert adapter.sources[0].reads == 3


async def test_a_stream_without_finish_just_ends():
    assert await read(service(TracedAdapter(HELLO[:1])), request()) == [HELLO[0]]


async def test_two_adapters_with_one_name_are_refused():
    """LLM-07"""
    with pytest.raises(ConfigurationError) as refused:
        service(TracedAdapter(name="a"), TracedAdapter(name="b"), TracedAdapter(name="a"))
    assert str(refused.value) == "adapters need names of their own; there twice: 'a'"


async def test_what_the_service_holds_can_be_listed():
    async def passing(request, call_next):
        return await call_next(request)

    llm = service(TracedAdapter(name="b"), TracedAdapter(name="a"), first=passing, second=passing)
    assert (llm.adapters, [entry.name for entry in llm.middleware]) == (("b", "a"), ["first", "second"])


async def test_replay_state_goes_back_only_to_the_model_that_made_it():
    """LLM-09"""
    made_by = [ModelRef("a", "m"), ModelRef("a", "other"), ModelRef("b", "m")]
    messages = tuple(AssistantMessage((TextBlock("x"),), model, '"state"') for model in made_by)
    asked = request(messages=(*ASK, *messages))
    adapter = TracedAdapter()
    await read(service(adapter), asked)
    assert adapter.requests[0].messages == (
        *ASK,
        messages[0],
        replace(messages[1], replay_state=None),
        replace(messages[2], replay_state=None),
    )
    assert [message.replay_state for message in messages] == ['"state"'] * 3


async def test_replay_state_follows_the_request_to_where_middleware_sends_it():
    message = AssistantMessage((TextBlock("x"),), ModelRef("b", "n"), '"state"')

    async def route(request, call_next):
        return await call_next(replace(request, model=ModelRef("b", "n")))

    other = TracedAdapter(name="b")
    await read(service(TracedAdapter(), other, route=route), request(messages=(*ASK, message)))
    assert other.requests[0].messages == (*ASK, message)


async def test_the_model_that_answers_is_named():
    async def route(request, call_next):
        return await call_next(replace(request, model=ModelRef("b", "n")))

    llm = service(TracedAdapter(), TracedAdapter(name="b"), route=route)
    async with llm.stream(request()) as stream:
        assert stream.model == ModelRef("b", "n")


async def test_of_two_opened_streams_the_one_returned_names_the_model():
    async def first_of_two(request, call_next):
        first = await call_next(request)
        second = await call_next(replace(request, model=ModelRef("b", "n")))
        await second.aclose()
        return first

    llm = service(TracedAdapter(), TracedAdapter(name="b"), first_of_two=first_of_two)
    async with llm.stream(request()) as stream:
        assert stream.model == ModelRef("a", "m")


async def test_a_middleware_that_reads_two_streams_names_the_one_that_finished():
    async def race(request, call_next):
        winner = await call_next(request)
        loser = await call_next(replace(request, model=ModelRef("b", "n")))

        async def chunks():
            async for chunk in winner:
                yield chunk
            await loser.aclose()

        return chunks()

    llm = service(TracedAdapter(), TracedAdapter(name="b"), race=race)
    async with llm.stream(request()) as stream:
        assert [chunk async for chunk in stream] == list(HELLO)
        assert stream.model == ModelRef("a", "m")


async def test_a_middleware_that_fell_back_names_the_model_opened_last():
    async def fall_back(request, call_next):
        first = await call_next(request)

        async def chunks():
            try:
                async for chunk in first:
                    yield chunk
            except LlmError:
                async for chunk in await call_next(replace(request, model=ModelRef("b", "n"))):
                    yield chunk

        return chunks()

    llm = service(TracedAdapter([OSError("reset")]), TracedAdapter(name="b"), fall_back=fall_back)
    async with llm.stream(request()) as stream:
        assert await anext(aiter(stream)) == HELLO[0]
        assert stream.model == ModelRef("b", "n")


async def test_a_middleware_that_answers_itself_answers_as_the_model_asked():
    async def cached(request, call_next):
        async def chunks():
            for chunk in HELLO:
                yield chunk

        return chunks()

    adapter = TracedAdapter()
    async with service(adapter, cached=cached).stream(request()) as stream:
        assert [chunk async for chunk in stream] == list(HELLO)
        assert (stream.model, adapter.trace) == (ModelRef("a", "m"), [])


async def test_a_request_that_middleware_builds_anew_keeps_its_session():
    async def anew(request, call_next):
        return await call_next(LlmRequest(request.model, request.messages))

    ours = session("s")
    seen = []

    async def checkpoint(request, call_next):
        seen.append(request.session)
        return await call_next(request)

    llm = service(TracedAdapter(), live=Live(ours), anew=anew, checkpoint=checkpoint)
    await read(llm, request(session_id="s"))
    assert seen == [ours]


async def test_middleware_may_run_the_inner_chain_twice():
    trace = []

    async def twice(request, call_next):
        await (await call_next(request)).aclose()
        return await call_next(request)

    async def checkpoint(request, call_next):
        trace.append("flush")
        return await call_next(request)

    llm = service(TracedAdapter(trace=trace), twice=twice, checkpoint=checkpoint)
    assert await read(llm, request()) == list(HELLO)
    assert trace == ["flush", "open a", "close a", "flush", "open a", "close a"]


async def test_a_stream_is_read_inside_its_context_and_entered_once():
    stream = service(TracedAdapter()).stream(request())
    with pytest.raises(RuntimeError) as unopened:
        aiter(stream)
    assert str(unopened.value) == "the stream is not open: read it inside `async with`"
    async with stream:
        with pytest.raises(RuntimeError) as again:
            await stream.__aenter__()
    assert str(again.value) == "a stream is entered once; ask the service for another"


async def test_after_leaving_nothing_more_is_read():
    async with service(TracedAdapter()).stream(request()) as stream:
        chunks = aiter(stream)
    assert [chunk async for chunk in chunks] == []


async def test_usage_and_failure_of_a_finish_are_handed_on_as_they_came():
    finish = Finish("error", replay_state={"x": [1]})
    assert await read(service(TracedAdapter([finish])), request()) == [finish]
