"""The file of the SQLite store: whose it is, who may read it, and what is refused before anything is changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.session.errors import PersistenceUnavailable, StoreUnusable
from persistence.contract import Writer
from persistence.sqlite import SqlitePersistence, file
from persistence.sqlite.file import APPLICATION_ID, VERSION


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as another program would; the rows of the last one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder, with its bytes. Only for files that no connection of this process has open."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@contextmanager
def an_ordinary_user() -> Iterator[Path]:
    """A folder that an ordinary user can read; while inside, this process is one. Root may write what is read-only."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="ordinary"))
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        shutil.rmtree(folder)


def become_ordinary() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


# -- new files -----------------------------------------------------------------------------------


async def test_a_new_store_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """ST-14."""
    before = os.umask(0)
    try:
        store = SqlitePersistence(tmp_path / "new" / "deep" / "s.db")
        await store.open()
        await Writer.new(store).write()
        folder = tmp_path / "new" / "deep"
        modes = {p.name: mode(p) for p in (tmp_path / "new", folder, *folder.iterdir())}
        await store.close()
    finally:
        os.umask(before)
    assert modes == {"new": "0o700", "deep": "0o700", "s.db": "0o600", "s.db-wal": "0o600", "s.db-shm": "0o600"}


async def test_an_existing_mode_is_kept(tmp_path: Path) -> None:
    """ST-14: of the file, of what stands beside it, and of the folder."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o775)
    path = folder / "s.db"
    path.touch()
    path.chmod(0o660)
    for _ in range(2):
        store = SqlitePersistence(path)
        await store.open()
        await Writer.new(store).write()
        modes = {p.name: mode(p) for p in (folder, *folder.iterdir())}
        await store.close()
        assert modes == {"shared": "0o775", "s.db": "0o660", "s.db-wal": "0o660", "s.db-shm": "0o660"}


async def test_the_file_is_marked_and_every_commit_is_synced(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    await Writer.new(store).write()
    assert store._workers is not None
    database = store._workers[0]._database
    pragmas = await store._workers[0]._thread.ask(
        lambda: [
            database._current().execute(pragma).fetchone()[0]
            for pragma in ("PRAGMA journal_mode", "PRAGMA synchronous", "PRAGMA application_id", "PRAGMA user_version")
        ]
    )
    await store.close()
    assert pragmas == ["wal", 2, APPLICATION_ID, VERSION]
    assert list(tree(tmp_path)) == ["s.db"]
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]


async def test_any_number_of_processes_may_start_at_once(tmp_path: Path) -> None:
    child = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from persistence.sqlite import SqlitePersistence\n"
        "from persistence.contract import Writer\n"
        "async def main(path, name):\n"
        "    store = SqlitePersistence(Path(path))\n"
        "    await store.open()\n"
        "    await Writer.new(store, name).write(3)\n"
        "    await store.close()\n"
        "sys.stdin.read()\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    path = tmp_path / "new" / "s.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", child, str(path), f"s{n}", env=environment, stdin=asyncio.subprocess.PIPE
        )
        for n in range(8)
    ]
    await asyncio.sleep(0.5)  # not a condition: only so that most of them are ready when the gate opens
    for started in children:
        assert started.stdin is not None
        started.stdin.close()
    assert [await started.wait() for started in children] == [0] * 8
    store = SqlitePersistence(path)
    await store.open()
    assert [row.session_id for row in await store.list(10)] == [f"s{n}" for n in reversed(range(8))]
    await store.close()


async def test_a_file_that_another_process_is_just_creating_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "s.db"
    store = SqlitePersistence(whole)
    await store.open()
    await store.close()
    content = whole.read_bytes()
    path.write_bytes(content[:4096])
    monkeypatch.setattr(file, "_create", lambda path: path.write_bytes(content))  # it is whole by the time of the lock
    store = SqlitePersistence(path)
    await store.open()
    await Writer.new(store).write()
    await store.close()


# -- refusals ------------------------------------------------------------------------------------

FOREIGN = {
    "foreign application id": ["PRAGMA application_id = 7", "CREATE TABLE t (x)"],
    "unversioned, with tables": ["CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"],
    "unversioned, in WAL mode": ["PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"],
    "unversioned, without tables": ["CREATE TABLE t (x)", "DROP TABLE t"],
    "newer schema": [f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 2", "CREATE TABLE t (x)"],
    "our mark, no version": [f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE t (x)"],
}
SAYS = {
    "foreign application id": "another application's (id 0x7)",
    "newer schema": "version 2, this build knows 1; use a newer build",
    "our mark, no version": "version 0, which never was one",
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_database_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    """ST-12."""
    path = tmp_path / "s.db"
    run_sql(path, *FOREIGN[kind])
    path.chmod(0o644)
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreUnusable) as raised:
            await SqlitePersistence(path).open()
        assert SAYS.get(kind, "a database of something else; choose another path") in str(raised.value)
        assert str(path) in str(raised.value)
    assert tree(tmp_path) == before
    assert mode(path) == "0o644"


async def test_a_newer_schema_is_refused_too_when_it_was_written_under_our_eyes(tmp_path: Path) -> None:
    """ST-12: the newer version stands in the -wal file only."""
    path = tmp_path / "s.db"
    store = SqlitePersistence(path)
    await store.open()
    run_sql(path, "PRAGMA user_version = 2")
    with pytest.raises(StoreUnusable) as raised:
        await SqlitePersistence(path).open()
    assert "version 2" in str(raised.value)
    await store.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at" * 30, b"x", b"\0" * 4096])
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnusable):
        await SqlitePersistence(path).open()
    assert tree(tmp_path) == {"s.db": content}


async def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "file" / "s.db", "Not a directory"),
        (tmp_path / "folder", "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/proc/s.db"), "No such file or directory"),
    ):
        with pytest.raises(StoreUnusable) as raised:
            await SqlitePersistence(path).open()
        assert reason in str(raised.value)
    assert sorted(tree(tmp_path)) == ["file", "folder", "pipe"]


async def test_a_file_that_may_not_be_written_is_refused() -> None:
    with an_ordinary_user() as folder:
        path = folder / "s.db"
        store = SqlitePersistence(path)
        await store.open()
        await Writer.new(store).write()
        await store.close()
        path.chmod(0o444)
        before = tree(folder)
        become_ordinary()
        for refused, reason in ((path, "may not be written"), (folder / "new.db", "Permission denied")):
            with pytest.raises(StoreUnusable) as raised:
                await SqlitePersistence(refused).open()
            assert reason in str(raised.value)
        assert tree(folder) == before


async def test_a_failed_open_leaves_nothing_behind_and_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"x" * 200)
    store = SqlitePersistence(path)
    threads = set(asyncio.all_tasks())
    for _ in range(3):
        with pytest.raises(StoreUnusable):
            await store.open()
    with pytest.raises(PersistenceUnavailable):
        await store.list(1)
    path.unlink()
    await store.open()
    await Writer.new(store).write()
    await store.close()
    await store.close()
    assert set(asyncio.all_tasks()) == threads
