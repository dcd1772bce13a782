"""Ids are compared code point by code point and mean nothing to a store: no path, no pattern, no statement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.session.batch import Header
from app.session.errors import InvalidId, SessionDeleted, SessionExists, SessionNotFound
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence
from persistence.contract.base import Contract, Operation, Stores
from persistence.contract.samples import CREATED_AT, Writer, owner

AWKWARD = [
    *("..", ".", "a/b", "/etc/passwd", "../../x", "%2e%2e", "C:\\x", "CON", "nul.txt", "-rf", "~", "*", "%", "_"),
    *(
        " ",
        " a",
        "a ",
        "a",
        "A",
        "\u00e9",
        "e\u0301",
        "\u0130",
        "i\u0307",
        "\u017f",
        "\ufb01",
        "\u00a0",
        "\u200b",
        "\ufeff",
    ),
    *("😀", "x" * 200, "😀" * 200, "'; DROP TABLE sessions; --", "' OR '1'='1", '"', "`", "\\", "$1", "?", ":id"),
    *("None", "null", "0", "1e0", "1", "01", "true", "\u2028", "\U0010ffff"),
]
ILLEGAL: list[Any] = [
    "",
    "x" * 201,
    "a\x00b",
    "\x1b[31m",
    "a\x85",
    "a\nb",
    "\x7f",
    "\udc81",
    "\ud83d\ude00",
    None,
    7,
    b"a",
]


class IdentifiersContract(Contract):
    """Every legal id is an id of its own."""

    async def test_awkward_ids_are_all_legal_and_all_different(
        self, stores: Stores, store: SessionPersistence, tmp_path: Path
    ) -> None:
        """SID-01, SID-02: every operation, and nothing beside the store's own place."""
        around = set(tmp_path.parent.iterdir())
        writers = [Writer.new(store, id, created_at=CREATED_AT + n) for n, id in enumerate(AWKWARD)]
        for n, writer in enumerate(writers):
            await store.check_free(writer.id)
            await writer.write(1 + n % 3)
            await writer.write(1)
            with pytest.raises(SessionExists):
                await store.check_free(writer.id)
        store = await stores.reopen()
        assert [row.session_id for row in await store.list(100)] == list(reversed(AWKWARD))
        for n, writer in enumerate(writers):
            writer.store = store
            assert [row.session_id for row in await store.list(100, (CREATED_AT + n, writer.id))] == AWKWARD[:n][::-1]
            await writer.check()
            assert list(await store.read_from(writer.id, 1)) == writer.events[1:]
            await store.renew(writer.id, writer.epoch)
            writer.epoch, _ = await store.acquire(writer.id, owner("berta"), force=True)
            await writer.write(1)
            await writer.check()
        for writer in writers[::2]:
            await store.release(writer.id, writer.epoch)
            await store.delete(writer.id)
        for n, writer in enumerate(writers):
            if n % 2:
                await writer.check()
            else:
                with pytest.raises(SessionDeleted):
                    await store.read(writer.id)
        assert set(tmp_path.parent.iterdir()) == around

    async def test_two_sessions_may_share_everything_but_the_id_as_a_position(self, store: SessionPersistence) -> None:
        for id in AWKWARD:
            await Writer.new(store, id, created_at=CREATED_AT).write()
        ordered = sorted(AWKWARD, reverse=True)
        assert [row.session_id for row in await store.list(100)] == ordered
        for n, id in enumerate(ordered):
            assert [row.session_id for row in await store.list(100, (CREATED_AT, id))] == ordered[n + 1 :]

    @pytest.mark.parametrize("id", ILLEGAL, ids=lambda id: ascii(id)[:20])
    async def test_an_illegal_id_is_refused_before_anything_else(self, store: SessionPersistence, id: Any) -> None:
        """SID-03."""
        sample = Writer.new(store)
        header = Header(id, sample.header.text, CREATED_AT)
        epoch = Epoch.first(owner())
        operations: list[Operation] = [
            lambda: store.check_free(id),
            lambda: store.append(header, sample.batch(), epoch),
            lambda: store.acquire(id, owner()),
            lambda: store.renew(id, epoch),
            lambda: store.release(id, epoch),
            lambda: store.read(id),
            lambda: store.read_from(id, 0),
            lambda: store.delete(id),
        ]
        for operation in operations:
            with pytest.raises(InvalidId):
                await operation()
        assert await store.list(10) == []

    async def test_an_id_that_is_not_stored_is_not_taken_for_one_that_is(self, store: SessionPersistence) -> None:
        await Writer.new(store, "a").write()
        for id in AWKWARD:
            if id != "a":
                with pytest.raises(SessionNotFound):
                    await store.read(id)
