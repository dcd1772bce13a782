"""The JSONL store keeps the contract, in one process and in several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.session.persistence import SessionPersistence
from persistence.contract import FaultPoint, LocalClaimsContract, PersistenceContract
from persistence.jsonl import JsonlPersistence
from tests.support.kit import Counted
from tests.support.system_calls import failing, full_after


class TestJsonl(Counted, PersistenceContract, LocalClaimsContract):
    kind = "jsonl"
    durable = True

    def make_store(self, folder: Path) -> JsonlPersistence:
        return JsonlPersistence(folder / "sessions")

    @contextmanager
    def failing(self, store: SessionPersistence, point: FaultPoint) -> Iterator[None]:
        """The disk fills up inside the third event of a batch that starts at 0 or 5, or cannot be synced."""
        with full_after(rb'"seq":[27],"type') if point == "at the third event" else failing("fdatasync"):
            yield
