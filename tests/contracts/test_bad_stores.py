"""The contract's chapters about other processes notice a bad store: each of these is bad in one way."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.session.batch import Batch, Header
from app.session.ownership import Epoch
from app.session.persistence import SessionPersistence
from examples.own_store import Document, DocumentStore
from persistence.contract import PersistenceContract, Stores
from persistence.contract.processes import OtherProcess


class AcknowledgesFirst(DocumentStore):
    """What it acknowledged is written when there is more to write."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._late: dict[str, Document] = {}

    async def close(self) -> None:
        for document in self._late.values():
            super()._save(document)

    def _load(self, path: Path, session_id: str) -> Document:
        return deepcopy(self._late[session_id]) if session_id in self._late else super()._load(path, session_id)

    def _save(self, document: Document) -> None:
        if document.id in self._late:
            super()._save(self._late[document.id])
        self._late[document.id] = deepcopy(document)


class IgnoresTheEpoch(DocumentStore):
    """Whoever knows where the log ends may write to it."""

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        with self._locked(header.id) as document:
            newest = replace(epoch, number=document.epoch or 1, token=document.token or epoch.token)
        await super().append(header, batch, newest)


class LetsAnybodyRelease(DocumentStore):
    """Who ends a claim is not asked which."""

    async def release(self, session_id: str, epoch: Epoch) -> None:
        with self._locked(session_id) as document:
            current = Epoch(document.epoch, document.token or "", epoch.owner)
        await super().release(session_id, current)


class LosesTheTail(DocumentStore):
    """Takes the last batch of a store that nobody closed for the rest of a write."""

    async def open(self) -> None:
        await super().open()
        for path in self._directory.glob("*.json") if (self._directory / "open").exists() else ():
            document = self._load(path, "")
            if len(document.ends) > 1:
                document.ends.pop()
                del document.events[document.ends[-1][0] + 1 :]
                self._save(document)
        (self._directory / "open").touch()

    async def close(self) -> None:
        (self._directory / "open").unlink(missing_ok=True)


class LooksOnce(DocumentStore):
    """What it has read or written it does not read again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._known: dict[str, Document] = {}

    def _load(self, path: Path, session_id: str) -> Document:
        document = super()._load(path, session_id)
        return self._known.setdefault(session_id, document) if document.header else document


class ContractOf(PersistenceContract):
    """The contract of one of them. Nobody collects it: its chapters are asked for below."""

    durable = True
    kills, stops = 8, 3

    def __init__(self, store: type[DocumentStore]) -> None:
        self._store = store

    def make_store(self, folder: Path) -> SessionPersistence:
        return self._store(folder)


KILLED = "test_whoever_is_killed_while_it_writes_leaves_whole_batches_and_all_that_was_acknowledged"
TAKEN_OVER = "test_whoever_was_stopped_and_is_taken_over_writes_nothing_more"
IN_TURNS = "test_of_two_who_take_it_from_each_other_the_newest_claim_writes"
ENDED = "test_what_was_acknowledged_is_there_when_its_process_has_ended"
AT_ONCE = "test_what_was_acknowledged_is_there_for_another_process_at_once"


@pytest.mark.parametrize(
    ("store", "test", "arguments", "told"),
    [
        (AcknowledgesFirst, KILLED, {}, "of them acknowledged"),
        (AcknowledgesFirst, ENDED, {"ending": "without closing"}, "20 of them acknowledged"),
        (AcknowledgesFirst, AT_ONCE, {}, "SessionNotFound"),
        (IgnoresTheEpoch, TAKEN_OVER, {"waits": True}, "SequenceConflict"),
        (IgnoresTheEpoch, IN_TURNS, {}, "SequenceConflict"),
        (LetsAnybodyRelease, TAKEN_OVER, {"waits": True}, "the old owner changed the claim"),
        (LosesTheTail, KILLED, {}, "of them acknowledged"),
        (LosesTheTail, ENDED, {"ending": "killed"}, "20 of them acknowledged"),
        (LooksOnce, AT_ONCE, {}, "s holds batches up to"),
        (LooksOnce, IN_TURNS, {}, "were given out"),
    ],
)
async def test_a_bad_store_is_noticed(
    tmp_path: Path, store: type[DocumentStore], test: str, arguments: dict[str, Any], told: str
) -> None:
    contract = ContractOf(store)
    stores = Stores(lambda: contract.make_store(tmp_path))
    with pytest.raises(AssertionError, match=told):
        await getattr(contract, test)(stores, partial(OtherProcess, contract, tmp_path), **arguments)
    await stores.close()
