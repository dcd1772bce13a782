"""What was stored comes back equal, field by field and value by value, also for the next process."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from app.session.batch import Header, Reason
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.values import decode, encode
from app.session.verification import verify
from persistence.contract.base import Contract, Stores
from persistence.contract.samples import CREATED_AT, Writer, message

_PLAIN: list[Any] = [
    "\x00",
    "a\x00b",
    {"a\x00b": 1},
    "\udc81",
    "\ud83d",
    "\ude00",
    "\U0001f600",
    "",
    [],
    {},
    None,
    "\u2028\ufeff",
]
_NUMBERS = [
    2**53,
    2**64,
    -(2**63) - 1,
    10**5000,
    1,
    1.0,
    0,
    0.0,
    -0.0,
    True,
    1e-7,
    0.1 + 0.2,
    5e-324,
    1.7976931348623157e308,
]
_OBJECTS = [
    {"b": 1, "a": 2, "": 3, "__proto__": 4},
    {"Straße": 1, "STRASSE": 2, "é": 3, "e\u0301": 4},
    {"type": "tool/call", "seq": 0, "data": '{"seq":0,"type":"turn/end"}\n'},
]
VALUES: list[Any] = [*_PLAIN, *_NUMBERS, *_OBJECTS]

REASONS: tuple[Reason, ...] = (
    "request",
    "tool",
    "post-step",
    "final",
    "background",
    "caller",
    "recovery",
    "import",
    "fork",
)


class RoundTripContract(Contract):
    """Reading gives what was written."""

    async def test_a_stored_log_is_read_equal_field_by_field(self, stores: Stores, store: SessionPersistence) -> None:
        """CRD-02."""
        writer = Writer.new(store, meta={"who": "anna"}, parent={"id": "other", "seq": 7})
        await writer.write(3)
        await writer.write(1)
        await writer.write(events=[SessionEvent(4, 0, "my/word", "{}", ignorable=True)])
        await writer.check()
        await writer.check(await stores.open())
        reopened = await stores.reopen()
        await writer.check(reopened)
        header, _ = verify(await reopened.read(writer.id), {})
        assert header == writer.header

    async def test_each_batch_keeps_its_border_and_its_reason(self, stores: Stores, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        for size, reason in enumerate(REASONS, start=1):
            await writer.write(size, reason)
        log = await (await stores.open()).read(writer.id)
        assert [end.reason for end in log.ends] == list(REASONS)
        assert [end.seq for end in log.ends] == [0, 2, 5, 9, 14, 20, 27, 35, 44]
        assert all(end.written_at >= CREATED_AT for end in log.ends)

    @pytest.mark.parametrize("value", VALUES, ids=lambda value: encode(value)[:30])
    async def test_a_value_survives_to_the_last_bit(
        self, stores: Stores, store: SessionPersistence, value: Any
    ) -> None:
        """VAL-01, VAL-02, VAL-03, VAL-04, VAL-05, VAL-06, VAL-07: in an event and in the header."""
        writer = Writer.new(store, meta={"value": value})
        await writer.write(events=[message(0, [{"type": "text", "text": "x", "value": value}])])
        await writer.write(1)
        reading = await stores.open()
        await writer.check(reading)
        log = await reading.read(writer.id)
        content = log.events[0].data["message"]["content"]
        meta = Header.read(writer.id, log.header_text).meta
        assert meta is not None
        for found in (content[0]["value"], meta["value"]):
            assert encode(found) == encode(value)
            assert type(found) is type(value)
            if isinstance(value, float):
                assert math.copysign(1, found) == math.copysign(1, value)

    async def test_nesting_is_kept_however_deep(self, stores: Stores, store: SessionPersistence) -> None:
        """LOG-04."""
        text = '{"a":' * 100_000 + "1" + "}" * 100_000
        writer = Writer.new(store)
        await writer.write(events=[SessionEvent(0, CREATED_AT, "my/word", text)])
        (event,) = (await (await stores.open()).read(writer.id)).events
        assert event.text == text
        assert encode(decode(event.text)) == text

    async def test_no_length_of_a_text_is_too_long(self, stores: Stores, store: SessionPersistence) -> None:
        writer = Writer.new(store, meta={"long": "x" * 100_000})
        await writer.write(events=[message(0, "x" * 5_000_000), message(1, "\u20ac" * 300_000)])
        await writer.write(events=[SessionEvent(2, 0, "a/" + "b" * 10_000, "{}", ignorable=True)])
        await writer.check(await stores.open())

    async def test_any_log_cut_into_any_batches_is_the_same_log(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        """ST-20."""
        for seed in range(20):
            chance = random.Random(seed)  # noqa: S311  # a schedule, no secret
            writer = Writer.new(store)
            while writer.seq < 60:
                size = chance.choice([1, 1, 2, 7, 20])
                values = [chance.choice(VALUES) for _ in range(size)]
                events = [message(writer.seq + n, [{"type": "x", "v": value}]) for n, value in enumerate(values)]
                await writer.write(events=events, reason=chance.choice(REASONS))
            await writer.check(await stores.open())

    async def test_what_is_stored_is_never_written_again(self, stores: Stores, store: SessionPersistence) -> None:
        """ST-25."""
        writer = Writer.new(store)
        await writer.write(5)
        before = await store.read(writer.id)
        await writer.write(3)
        await store.renew(writer.id, writer.epoch)
        await store.release(writer.id, writer.epoch)
        await store.acquire(writer.id, writer.epoch.owner)
        after = await (await stores.reopen()).read(writer.id)
        assert (after.header_text, after.events[:5], after.ends[:1]) == (before.header_text, before.events, before.ends)
