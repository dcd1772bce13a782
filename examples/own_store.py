"""A store of one's own, whole: each session is one JSON document, replaced under a lock whenever something changes.

Not a fast one. What each operation has to keep says docs/backends.md, and tests/contracts/test_own_store.py proves that
this store keeps it. With an object storage that knows conditional writes, `_locked`, `_load` and `_save` would differ.

    BEFOREHAND_PERSISTENCE__EXTRA__DOCUMENTS=examples.own_store:DocumentStore BEFOREHAND_PERSISTENCE__KIND=documents
    BEFOREHAND_PERSISTENCE__OPTIONS__DIRECTORY=./documents
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.session.batch import Batch, BatchEnd, Header
from app.session.errors import CorruptLog, PersistenceUnavailable
from app.session.identifiers import check_id
from app.session.ownership import Epoch, Owner
from app.session.persistence import Repair, SessionRow, StoredLog
from app.session.record import SessionEvent
from persistence import rules


@dataclass
class Document:
    """A session as it is kept. `header` is None where there is none yet, and in the tombstone of a deleted one."""

    id: str
    header: str | None = None
    is_deleted: bool = False
    created_at: int = 0
    epoch: int = 0
    token: str | None = None
    owner: str | None = None
    lease_until: float = 0.0
    title: str | None = None
    events: list[list[Any]] = field(default_factory=list)
    ends: list[list[Any]] = field(default_factory=list)

    def found(self) -> rules.Found:
        """What the rules decide by."""
        if self.header is None:
            return "deleted" if self.is_deleted else None
        left = self.lease_until - time.time()
        seq, _, _, head = self.ends[-1]
        return rules.Row(self.header, self.epoch, self.token, self.owner, None, left, seq + 1, bytes.fromhex(head))

    def digest_at(self, seq: int) -> bytes | None:
        return next((bytes.fromhex(digest) for end, _, _, digest in self.ends if end == seq), None)

    def take(self, epoch: Epoch) -> None:
        """Let this claim hold the session, from now on or for one lease more."""
        self.epoch, self.token, self.owner = epoch.number, epoch.token, epoch.owner.name
        self.lease_until = time.time() + epoch.owner.lease_s

    def add(self, batch: Batch) -> None:
        self.events += [[event.seq, event.time, event.type, event.text, event.ignorable] for event in batch.events]
        self.ends.append([batch.next_seq - 1, batch.reason, time.time_ns() // 1_000_000, batch.digest.hex()])
        self.title = batch.title or self.title

    def log(self, row: rules.Row, before: int | None) -> StoredLog:
        events = tuple(SessionEvent(*event) for event in self.events if before is None or event[0] < before)
        ends = (BatchEnd(seq, why, at, bytes.fromhex(digest)) for seq, why, at, digest in self.ends)
        shown = tuple(end for end in ends if before is None or end.seq < before)
        return StoredLog(self.id, row.header_text, events, shown, row.next_seq, row.head, row.holder)

    def line(self, row: rules.Row) -> SessionRow:
        place = self.id, self.created_at, row.next_seq, self.ends[-1][2]
        return SessionRow(row.header_text, *place, row.holder, self.title)


class DocumentStore:
    """Sessions in `directory`, which is made when it is missing."""

    kind = "documents"
    durable = True

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    async def open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def close(self) -> None:
        """Nothing is held between two calls."""

    async def check_free(self, session_id: str) -> None:
        with self._locked(session_id) as document:
            rules.check_free(document.found(), session_id)

    async def append(self, header: Header, batch: Batch, epoch: Epoch) -> None:
        batch.check()
        with self._locked(header.id) as document:
            outcome = rules.decide(document.found(), header, batch, epoch, document.digest_at)
            if outcome == "create":
                document.header, document.created_at = header.text, header.created_at
            if outcome != "repeated":
                document.add(batch)
            document.take(epoch)
            self._save(document)

    async def acquire(
        self, session_id: str, owner: Owner, *, force: bool = False, repair: Repair | None = None
    ) -> tuple[Epoch, StoredLog]:
        with self._locked(session_id) as document:
            row = rules.check_takeable(document.found(), session_id, force=force)
            log, epoch = document.log(row, None), Epoch.after(row.epoch, owner)
            batch = None if repair is None else repair(log, epoch)
            rules.check_repair(batch, row)
            if batch is not None:
                document.add(batch)
            document.take(epoch)
            self._save(document)
            return epoch, log

    async def renew(self, session_id: str, epoch: Epoch) -> None:
        with self._locked(session_id) as document:
            rules.check_claim(document.found(), session_id, epoch)
            document.take(epoch)
            self._save(document)

    async def release(self, session_id: str, epoch: Epoch) -> None:
        with self._locked(session_id) as document:
            rules.check_claim(document.found(), session_id, epoch)
            document.token = document.owner = None
            document.lease_until = time.time()
            self._save(document)

    async def read(self, session_id: str, *, before: int | None = None) -> StoredLog:
        with self._locked(session_id) as document:
            return document.log(rules.present(document.found(), session_id), before)

    async def read_from(self, session_id: str, seq: int, limit: int = 1000) -> Sequence[SessionEvent]:
        rules.check_page(limit, seq)
        return (await self.read(session_id)).events[seq : seq + limit]

    async def list(self, limit: int, after: tuple[int, str] | None = None) -> Sequence[SessionRow]:
        rules.check_page(limit)
        if after is not None:
            check_id(after[1])
        rows: list[SessionRow] = []
        for path in self._directory.glob("*.json"):
            try:
                document = self._load(path, "")
                found = document.found()
                rows += [document.line(found)] if isinstance(found, rules.Row) else []
            except CorruptLog as error:  # one that cannot be read hides no other
                rows.append(SessionRow.unreadable(path.name, 0, error))
        rows.sort(key=lambda row: (row.created_at, row.session_id), reverse=True)
        return [row for row in rows if after is None or (row.created_at, row.session_id) < after][:limit]

    async def delete(self, session_id: str) -> None:
        with self._locked(session_id) as document:
            if not document.is_deleted:
                rules.present(document.found(), session_id)
                self._save(Document(session_id, is_deleted=True))

    # ---------------------------------------------------------------------------------------- inside

    def _path(self, session_id: str) -> Path:
        """A digest, since an id may be any text: one that looks like a path leads nowhere, and no two of them meet."""
        return self._directory / f"{hashlib.sha256(session_id.encode()).hexdigest()}.json"

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[Document]:
        """The session's document while nobody else changes any. An error of the disk leaves the outcome unknown."""
        check_id(session_id)
        try:
            with (self._directory / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._load(self._path(session_id), session_id)
        except OSError as error:
            raise PersistenceUnavailable(session_id, error.strerror or type(error).__name__) from error

    def _load(self, path: Path, session_id: str) -> Document:
        try:
            return Document(**json.loads(path.read_text("ascii")))
        except FileNotFoundError:
            return Document(session_id)
        except (ValueError, TypeError) as error:
            raise CorruptLog(session_id or path.name, "the document", str(error)) from error

    def _save(self, document: Document) -> None:
        """All of it or nothing, and durable: a new file, synced, takes the old one's name, and the name is synced."""
        path = self._path(document.id)
        new = path.with_suffix(".new")
        with new.open("w", encoding="ascii") as file:
            json.dump(asdict(document), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
