"""Whose fault a failed request is: the adapter's (LlmError), a middleware's (MiddlewareFailed), or the checkpoint's."""

import asyncio
from dataclasses import replace

import pytest

from app.llm.types import LlmError
from app.messages import BlockEnd, Failure, Finish, ModelRef, TextDelta
from app.middleware import MiddlewareFailed
from tests.unit.llm.parts import HELLO, TracedAdapter, read, request, service

BUSY = LlmError(Failure("too many requests", "RATE_LIMIT", status=429, retry_after_ms=1500))


async def passing(request, call_next):
    return await call_next(request)


async def rereading(request, call_next):
    """Reads the inner stream inside one of its own."""
    inner = await call_next(request)

    async def chunks():
        async for chunk in inner:
            yield chunk

    return chunks()


async def peeking(request, call_next):
    """Reads the first chunk before it returns."""
    inner = await call_next(request)
    first = await anext(inner)

    async def chunks():
        yield first
        async for chunk in inner:
            yield chunk

    return chunks()


async def late(request, call_next):
    """Opens the inner stream when its own is read."""

    async def chunks():
        async for chunk in await call_next(request):
            yield chunk

    return chunks()


async def catching(request, call_next):
    """Lets a failed request be raised on, the way one does who only looks at it."""
    try:
        return await call_next(request)
    except LlmError:
        raise


WRAPPERS = [passing, rereading, peeking, late, catching]


def opening(error):
    adapter = TracedAdapter()
    adapter.refusal = error
    return adapter


def streaming(error):
    return TracedAdapter([error])


# -- the adapter's ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [opening, streaming])
@pytest.mark.parametrize("middleware", WRAPPERS, ids=lambda m: m.__name__)
async def test_an_adapters_failure_comes_through_any_middleware_as_it_is(when, middleware):
    llm = service(when(BUSY), outer=middleware, inner=middleware)
    with pytest.raises(LlmError) as raised:
        await read(llm, request())
    assert raised.value is BUSY


class Vendor(Exception):
    code = "RATE_LIMIT"


@pytest.mark.parametrize("when", [opening, streaming])
@pytest.mark.parametrize("middleware", WRAPPERS, ids=lambda m: m.__name__)
async def test_a_foreign_exception_of_an_adapter_has_no_code_that_is_believed(when, middleware):
    """LLM-12"""
    error = Vendor("slow down")
    with pytest.raises(LlmError) as raised:
        await read(service(when(error), outer=middleware), request())
    assert raised.value.failure == Failure("Vendor: slow down", "UNKNOWN")
    assert raised.value.__cause__ is error


def chained():
    try:
        try:
            raise OSError("no route")
        except OSError as inner:
            raise ConnectionError("cannot connect") from inner
    except ConnectionError as error:
        return error


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (chained(), "ConnectionError: cannot connect, caused by OSError: no route"),
        (Mute(), "Mute: (its message cannot be shown)"),
    ],
)
@pytest.mark.parametrize("when", [opening, streaming])
async def test_the_message_tells_the_chain_of_causes_and_cannot_fail(when, error, message):
    """REC-12"""
    with pytest.raises(LlmError) as raised:
        await read(service(when(error)), request())
    assert raised.value.failure == Failure(message)


@pytest.mark.parametrize("when", [opening, streaming])
@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__
)
async def test_what_stops_a_task_or_the_process_is_no_failure_of_a_request(when, error):
    llm = service(when(error), outer=passing)
    with pytest.raises(type(error)) as raised:
        await read_here(llm)
    assert raised.value is error


async def read_here(llm):
    async with llm.stream(request()) as stream:
        async for _ in stream:
            pass


async def test_a_code_that_is_none_of_ours_counts_as_unknown_and_the_rest_is_kept():
    refusal = LlmError(Failure("tea only", "TEAPOT", status=418, request_id="r1"))
    with pytest.raises(LlmError) as raised:
        await read(service(opening(refusal)), request())
    assert raised.value.failure == Failure("tea only", "UNKNOWN", status=418, request_id="r1")


async def test_a_failure_with_fields_of_the_wrong_type_is_not_believed():
    refusal = LlmError(Failure("soon", "RATE_LIMIT", retry_after_ms=0.5))  # type: ignore[arg-type]
    with pytest.raises(LlmError) as raised:
        await read(service(opening(refusal)), request())
    assert raised.value.failure == Failure("LlmError: soon", "UNKNOWN")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "no adapter is named 'c'; there are 'a', 'b'"),
        ([], "no adapter is named 'c'; there is none"),
    ],
)
async def test_an_unknown_adapter_is_a_failed_request_that_lists_the_known_ones(names, message):
    llm = service(*(TracedAdapter(name=name) for name in names), outer=passing)
    with pytest.raises(LlmError) as raised:
        await read(llm, request("c"))
    assert raised.value.failure == Failure(message, "NO_ADAPTER")


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ("text", "the stream gave a str, which is no chunk"),
        (TextDelta(0, b"x"), "the text of a text_delta chunk is not a string; it is of type bytes"),  # type: ignore[arg-type]
        (BlockEnd(True), "the index of a block_end chunk is not an integer from 0; it is of type bool"),
    ],
)
async def test_a_chunk_of_the_wrong_shape_is_a_failed_request(chunk, message):
    adapter = TracedAdapter([HELLO[0], chunk, HELLO[1]])
    with pytest.raises(LlmError) as raised:
        await read(service(adapter), request())
    assert raised.value.failure == Failure(message, "INVALID_STREAM")
    assert adapter.sources[0].reads == 2


async def test_nothing_is_read_after_a_failure():
    adapter = TracedAdapter([BUSY, *HELLO])
    async with service(adapter).stream(request()) as stream:
        chunks = aiter(stream)
        with pytest.raises(LlmError):
            await anext(chunks)
        assert [chunk async for chunk in chunks] == []
    assert adapter.sources[0].reads == 1


async def test_an_adapter_that_gives_no_stream_has_failed():
    class Empty:
        name = "a"

        def stream(self, request):
            return None

    with pytest.raises(LlmError) as raised:
        await read(service(Empty()), request())
    message = "TypeError: it returned a NoneType, where an async generator of chunks was due"
    assert raised.value.failure == Failure(message)


async def test_a_fallback_inside_a_middlewares_stream_fails_as_the_last_adapter_failed():
    async def fallback(request, call_next):
        async def chunks():
            try:
                async for chunk in await call_next(request):
                    yield chunk
            except LlmError:
                async for chunk in await call_next(replace(request, model=ModelRef("b", "n"))):
                    yield chunk

        return chunks()

    last = LlmError(Failure("b too", "SERVER"))
    other = TracedAdapter([last], name="b")
    with pytest.raises(LlmError) as raised:
        await read(service(streaming(BUSY), other, fallback=fallback), request())
    assert raised.value is last


# -- a middleware's -----------------------------------------------------------------------------


async def fails_before(request, call_next):
    raise ValueError("broken")


async def fails_after(request, call_next):
    await call_next(request)
    raise ValueError("broken")


async def fails_while_read(request, call_next):
    inner = await call_next(request)

    async def chunks():
        yield await anext(inner)
        raise ValueError("broken")

    return chunks()


async def fails_on_a_failure(request, call_next):
    try:
        return await call_next(replace(request, model=ModelRef("missing", "m")))
    except LlmError as error:
        raise ValueError("broken") from error


FAILING = [fails_before, fails_after, fails_while_read, fails_on_a_failure]


@pytest.mark.parametrize("outer", WRAPPERS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("failing", FAILING, ids=lambda m: m.__name__)
async def test_what_a_middleware_raises_itself_is_its_failure_and_names_it(failing, outer):
    llm = service(TracedAdapter(), outer=outer, broken=failing, inner=rereading)
    with pytest.raises(MiddlewareFailed) as raised:
        await read(llm, request())
    assert (raised.value.name, str(raised.value)) == ("broken", "middleware 'broken' failed: broken")
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(("error", "said"), [(Mute(), "Mute"), (ValueError(), "ValueError"), (ValueError("no"), "no")])
async def test_an_error_without_a_message_is_named_by_its_type(error, said):
    async def broken(request, call_next):
        raise error

    with pytest.raises(MiddlewareFailed) as raised:
        await read(service(TracedAdapter(), broken=broken), request())
    assert str(raised.value) == f"middleware 'broken' failed: {said}"


@pytest.mark.parametrize("is_lazy", [False, True])
async def test_a_request_that_a_middleware_makes_itself_fails_as_the_middlewares(is_lazy):
    side = service(opening(BUSY))

    async def asks_first(request, call_next):
        async def ask():
            return await read(side, request)

        async def chunks():
            await ask()
            yield HELLO[0]

        if is_lazy:
            return chunks()
        await ask()
        return await call_next(request)

    adapter = TracedAdapter()
    with pytest.raises(MiddlewareFailed) as raised:
        await read(service(adapter, asks_first=asks_first), request())
    assert raised.value.__cause__ is BUSY
    assert adapter.trace == []


async def test_an_llm_error_of_a_middlewares_own_is_no_model_failure():
    async def impostor(request, call_next):
        raise LlmError(Failure("budget spent", "RATE_LIMIT"))

    with pytest.raises(MiddlewareFailed) as raised:
        await read(service(TracedAdapter(), impostor=impostor), request())
    assert str(raised.value) == "middleware 'impostor' failed: budget spent"


async def test_a_wrong_chunk_of_a_middlewares_stream_is_its_failure():
    async def careless(request, call_next):
        async def chunks():
            yield "text"

        return chunks()

    with pytest.raises(MiddlewareFailed) as raised:
        await read(service(TracedAdapter(), careless=careless), request())
    assert str(raised.value) == "middleware 'careless' failed: the stream gave a str, which is no chunk"


async def test_a_middleware_that_forgets_to_return_the_stream_is_told():
    async def forgets(request, call_next):
        await call_next(request)

    with pytest.raises(MiddlewareFailed) as raised:
        await read(service(TracedAdapter(), forgets=forgets), request())
    assert str(raised.value) == (
        "middleware 'forgets' failed: it returned a NoneType, where an async generator of chunks was due"
    )


async def test_nothing_of_a_middlewares_stream_is_read_after_its_finish():
    async def chatty(request, call_next):
        async def chunks():
            yield Finish("stop")
            yield TextDelta(0, "more")

        return chunks()

    assert await read(service(TracedAdapter(), chatty=chatty), request()) == [Finish("stop")]


# -- the checkpoint's ---------------------------------------------------------------------------


@pytest.mark.parametrize("outer", WRAPPERS, ids=lambda m: m.__name__)
async def test_what_the_checkpoint_raises_comes_out_as_that_very_object(outer):
    refusal = RuntimeError("disk unavailable")

    async def checkpoint(request, call_next):
        raise refusal

    adapter = TracedAdapter()
    with pytest.raises(RuntimeError) as raised:
        await read(service(adapter, outer=outer, checkpoint=checkpoint, below=passing), request())
    assert raised.value is refusal
    assert adapter.trace == []


async def test_a_stream_of_the_checkpoints_own_fails_unchanged_too():
    refusal = RuntimeError("disk unavailable")

    async def checkpoint(request, call_next):
        async def chunks():
            raise refusal
            yield

        return chunks()

    with pytest.raises(RuntimeError) as raised:
        await read(service(TracedAdapter(), outer=rereading, checkpoint=checkpoint), request())
    assert raised.value is refusal
