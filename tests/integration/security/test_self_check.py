"""A start is refused, with what to do, where what is acknowledged could be lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from app.session.errors import StoreUnusable
from persistence.postgres import PostgresPersistence
from persistence.sqlite import SqlitePersistence, file
from tests.support.pg_pair import Member
from tests.support.postgres_local import LocalServer


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_a_server_that_forgets_is_not_used(setting: str) -> None:
    """MIG-03: whatever the schema is like. A missing or newer one is refused in tests/integration/postgres."""
    with LocalServer({setting: "off"}) as server:
        store = PostgresPersistence(server.dsn())
        with pytest.raises(StoreUnusable) as refused:
            await store.open()
        assert refused.value.reason.startswith(f"{setting} is off")
        assert "turn it on" in refused.value.reason or "ALTER ROLE ... SET" in refused.value.reason


async def test_a_server_in_recovery_is_not_used() -> None:
    """REP-04: a standby alone; beside its primary it is passed over."""
    with Member() as primary, Member(primary) as standby:
        with pytest.raises(StoreUnusable) as refused:
            await PostgresPersistence(standby.dsn(), pool_timeout_ms=100).open()
        assert "it is a standby, or told to be read-only" in refused.value.reason


async def test_a_file_that_cannot_have_a_synced_wal_journal_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without shared memory: the journal is read back, not taken for granted."""
    plain = file.connect

    def without_shared_memory(path: Path, mode: str, busy_timeout_s: float, options: str = "") -> sqlite3.Connection:
        return plain(path, mode, busy_timeout_s, f"{options}&vfs=unix-dotfile")

    monkeypatch.setattr(file, "connect", without_shared_memory)
    with pytest.raises(StoreUnusable) as refused:
        await SqlitePersistence(tmp_path / "s.db").open()
    assert refused.value.reason == "its journal is 'delete' where 'wal' with full synchronisation is needed"


async def test_a_file_whose_commits_would_not_be_synced_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's build of SQLite may sync less by default; and what is set may be ignored."""
    plain = file.number

    def less(connection: sqlite3.Connection, question: str) -> int:
        return 1 if question == "PRAGMA synchronous" else plain(connection, question)

    monkeypatch.setattr(file, "number", less)
    with pytest.raises(StoreUnusable) as refused:
        await SqlitePersistence(tmp_path / "s.db").open()
    assert "full synchronisation is needed" in refused.value.reason
