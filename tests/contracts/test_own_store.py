"""The store of docs/backends.md keeps the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.session.persistence import SessionPersistence
from examples.own_store import DocumentStore
from persistence.contract import FaultPoint, PersistenceContract


class TestDocumentStore(PersistenceContract):
    durable = True

    def make_store(self, folder: Path) -> SessionPersistence:
        return DocumentStore(folder / "documents")

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        """The document is cut in the middle, or its new version cannot take the place of the old one."""

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        where: tuple[object, str] = (json, "dump") if point == "at the third event" else (Path, "replace")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*where, fail)
            yield
