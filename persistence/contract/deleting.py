"""What was deleted is gone, and its id stays taken for ever."""

from __future__ import annotations

import asyncio

import pytest

from app.session.errors import SessionDeleted, SessionNotFound
from app.session.persistence import SessionPersistence
from persistence.contract.base import Contract, Operation, Stores
from persistence.contract.samples import Writer, owner


def operations(store: SessionPersistence, writer: Writer) -> list[Operation]:
    """Everything but `delete` and `list` that can be asked about the session of a writer, by it and by others."""
    creator = Writer.new(store, writer.id)
    return [
        lambda: store.check_free(writer.id),
        lambda: store.append(creator.header, creator.batch(), creator.epoch),
        lambda: store.append(writer.header, writer.batch(2), writer.epoch),
        lambda: store.append(writer.header, writer.batches[0], writer.epoch),
        lambda: store.renew(writer.id, writer.epoch),
        lambda: store.release(writer.id, writer.epoch),
        lambda: store.acquire(writer.id, owner()),
        lambda: store.acquire(writer.id, owner(), force=True),
        lambda: store.read(writer.id),
        lambda: store.read(writer.id, before=1),
        lambda: store.read_from(writer.id, 0),
    ]


class DeletingContract(Contract):
    """A tombstone answers everything."""

    async def test_a_deleted_session_is_gone_for_every_operation(
        self, stores: Stores, store: SessionPersistence
    ) -> None:
        """DEL-01; DEL-02: the late calls of a live owner, also after every process has started again."""
        writer = Writer.new(store, "s")
        await writer.write(3)
        bystander = Writer.new(store)
        await bystander.write(3)
        await (await stores.open()).delete("s")
        for again in (False, True):
            if again:
                store = await stores.reopen()
            for operation in operations(store, writer):
                with pytest.raises(SessionDeleted) as raised:
                    await operation()
                assert raised.value.session_id == "s"
            await store.delete("s")
            assert [row.session_id for row in await store.list(10)] == [bystander.id]
            await bystander.check(store)

    async def test_what_was_never_there_cannot_be_deleted(self, store: SessionPersistence) -> None:
        with pytest.raises(SessionNotFound) as raised:
            await store.delete("s")
        assert type(raised.value) is SessionNotFound
        await Writer.new(store, "s").write()

    async def test_a_delete_beside_appends_wins_for_good(self, stores: Stores, store: SessionPersistence) -> None:
        """DEL-02: an append in flight."""
        other = await stores.open()
        for n in range(20):
            writer = Writer.new(store)
            await writer.write(2)

            async def write_on(writer: Writer = writer) -> type[BaseException]:
                while True:
                    try:
                        await writer.write(2)
                    except SessionDeleted as error:
                        return type(error)
                    await asyncio.sleep(0)

            writing = asyncio.ensure_future(write_on())
            for _ in range(n):
                await asyncio.sleep(0)
            await other.delete(writer.id)
            assert await writing is SessionDeleted
            with pytest.raises(SessionDeleted):
                await other.read(writer.id)
        assert await other.list(10) == []
