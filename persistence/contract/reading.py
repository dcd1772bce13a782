"""Reading beside a live owner: logs, pages of events, pages of sessions. None of it writes, none shows half a batch."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.session.errors import SessionNotFound
from app.session.persistence import SessionPersistence
from app.session.record import SessionEvent
from app.session.values import encode
from persistence.contract.base import Contract, Operation, Stores, contents
from persistence.contract.samples import ALREADY_OVER, CREATED_AT, LONG, Writer, message, owner, title


class ReadingContract(Contract):
    """What is committed is shown, in order, and nothing else."""

    async def test_an_unknown_session_is_told_by_every_operation(self, store: SessionPersistence) -> None:
        """RD-01: load, inspect, read_from, delete."""
        operations: list[Operation] = [
            lambda: store.acquire("unknown", owner()),
            lambda: store.read("unknown"),
            lambda: store.read("unknown", before=3),
            lambda: store.read_from("unknown", 0),
            lambda: store.delete("unknown"),
        ]
        for operation in operations:
            with pytest.raises(SessionNotFound) as raised:
                await operation()
            assert type(raised.value) is SessionNotFound
            assert raised.value.session_id == "unknown"

    async def test_reading_changes_nothing_and_needs_no_claim(self, stores: Stores, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        await writer.write(4)
        before = await contents(store)
        reader = await stores.open()
        for _ in range(2):
            assert (await reader.read(writer.id)).holder.owner == "anna"
            await reader.read_from(writer.id, 0)
            await reader.list(5)
        assert await contents(store) == before
        await writer.write(1)

    async def test_events_are_read_from_any_seq(self, store: SessionPersistence) -> None:
        """RD-13."""
        writer = Writer.new(store)
        await writer.write(4)
        await writer.write(2)
        read = {seq: list(await store.read_from(writer.id, seq)) for seq in (0, 3, 6, 99, 2**40, 2**70)}
        assert read == {0: writer.events, 3: writer.events[3:], 6: [], 99: [], 2**40: [], 2**70: []}
        wrong: list[Any] = [-1, 1.5, True, "1", None]
        for seq in wrong:
            with pytest.raises(ValueError):  # noqa: PT011  # which one is the point of its table
                await store.read_from(writer.id, seq)
        assert list(await store.read_from(writer.id, 1, 2)) == writer.events[1:3]
        assert list(await store.read_from(writer.id, 1, 2**70)) == writer.events[1:]
        limits: list[Any] = [0, -1, 1.5, None]
        for limit in limits:
            with pytest.raises(ValueError):  # noqa: PT011
                await store.read_from(writer.id, 0, limit)

    async def test_a_log_is_read_up_to_a_seq(self, store: SessionPersistence) -> None:
        writer = Writer.new(store)
        for _ in range(3):
            await writer.write(2)
        for before in range(9):
            log = await store.read(writer.id, before=before)
            assert list(log.events) == writer.events[:before]
            assert [end.seq for end in log.ends] == [seq for seq in (1, 3, 5) if seq < before]
            assert (log.next_seq, log.head, log.header_text) == (6, writer.head, writer.header.text)

    async def test_a_follower_sees_every_event_once_and_never_half_a_batch(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        writer = Writer.new(store)
        await writer.write(3)
        follower = await stores.open()
        followed: list[SessionEvent] = []
        sizes: set[int] = set()

        async def follow() -> None:
            while len(followed) < 303:
                followed.extend(await follower.read_from(writer.id, len(followed)))
                sizes.add(len((await follower.read(writer.id)).events) % 3)
                await asyncio.sleep(0)

        following = asyncio.ensure_future(follow())
        for _ in range(100):
            await writer.write(3)
            await asyncio.sleep(0)
        await following
        assert followed == writer.events
        assert sizes == {0}

    async def test_a_list_shows_each_session_from_its_own_row(self, stores: Stores, store: SessionPersistence) -> None:
        began = time.time_ns() // 1_000_000
        held = Writer.new(store, "held", created_at=5)
        await held.write(3)
        await held.write(events=[message(3), title(4, "Erste"), title(5, "Schöne Größe \udc81"), message(6)])
        await held.write(1)
        free = Writer.new(store, "free", created_at=7, lease_s=ALREADY_OVER)
        await free.write(2)
        await store.release("free", free.epoch)
        new, old = await (await stores.open()).list(10)
        assert (new.session_id, new.header_text, new.created_at, new.next_seq, new.title) == (
            "free",
            free.header.text,
            7,
            2,
            None,
        )
        assert (old.session_id, old.header_text, old.created_at, old.next_seq, old.title) == (
            "held",
            held.header.text,
            5,
            8,
            encode({"title": "Schöne Größe \udc81"}),
        )
        assert (new.holder.epoch, new.holder.owner, old.holder.epoch, old.holder.owner) == (1, None, 1, "anna")
        assert new.holder.lease_left_s <= 0
        assert LONG - 100 < old.holder.lease_left_s <= LONG
        assert began <= old.last_write <= new.last_write <= time.time_ns() // 1_000_000

    async def test_neither_empty_nor_deleted_sessions_are_listed(self, store: SessionPersistence) -> None:
        """RD-07."""
        await store.check_free("empty")
        for id in ("deleted", "kept"):
            await Writer.new(store, id).write()
        await store.delete("deleted")
        assert [row.session_id for row in await store.list(10)] == ["kept"]

    async def test_pages_show_each_session_once_however_many_are_created_meanwhile(
        self, store: SessionPersistence
    ) -> None:
        """RD-24."""
        ids = [f"{'aZé😀'[n % 4]}{n:03}" for n in range(250)]
        old = {id: CREATED_AT + n // 9 for n, id in enumerate(ids)}
        for id, created_at in old.items():
            await Writer.new(store, id, created_at=created_at).write()
        seen: list[tuple[int, str]] = []
        after: tuple[int, str] | None = None
        page = 0
        while rows := await store.list(20, after):
            assert len(rows) <= 20
            seen += [(row.created_at, row.session_id) for row in rows]
            after = seen[-1]
            for n in range(3):
                await Writer.new(store, f"n{page}.{n}", created_at=CREATED_AT + 1000).write()
                await Writer.new(store, f"o{page}.{n}", created_at=CREATED_AT + page % 20).write()
            page += 1
        assert seen == sorted(seen, reverse=True)
        assert len(seen) == len(set(seen))
        assert [id for _, id in seen if id in old] == sorted(old, key=lambda id: (old[id], id), reverse=True)

    async def test_a_page_holds_one_session_at_least(self, store: SessionPersistence) -> None:
        wrong: list[Any] = [0, -1, 1.5, None]
        for limit in wrong:
            with pytest.raises(ValueError):  # noqa: PT011
                await store.list(limit)
        assert await store.list(1, (CREATED_AT, "nothing")) == []

    async def test_a_position_may_be_any_integer_and_any_id(self, store: SessionPersistence) -> None:
        await Writer.new(store, "s").write()
        found = {at: [row.session_id for row in await store.list(2**70, (at, "t"))] for at in (-(2**70), 0, 2**70)}
        assert found == {-(2**70): [], 0: [], 2**70: ["s"]}
