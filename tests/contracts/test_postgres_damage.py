"""What becomes of a log on Postgres whose stored values were changed: refused, and never something else."""

from __future__ import annotations

import random

from app.session.errors import PersistenceError
from app.session.verification import verify
from persistence.contract import Writer
from persistence.contract.samples import message
from persistence.postgres import PostgresPersistence
from tests.support.counting import SEED, count
from tests.support.postgres import connect

VALUES = [("sessions", column) for column in ("header", "head", "next_seq")]
VALUES += [("events", column) for column in ("time", "type", "ignorable", "data", "digest")]
"""What a log is made of. Beside it stand who holds the session, and when and why its batches were written."""


async def test_no_flipped_bit_gives_another_log(postgres_dsn: str) -> None:
    """DIG-01: one bit in every byte of every value."""
    store = PostgresPersistence(postgres_dsn)
    await store.open()
    writer = Writer.new(store, "s")
    for batch in range(3):
        await writer.write(events=[message(2 * batch + n, "hello", id=f"m{batch}.{n}") for n in (0, 1)])
    lots = random.Random(SEED)
    flips = 0
    unnoticed: list[str] = []
    connection = await connect(postgres_dsn)
    await connection.execute("set synchronous_commit = off; set search_path to beforehand")
    for table, column in VALUES:
        row = "id" if table == "sessions" else "seq::text"
        for key, value in await connection.fetch(f"select {row}, {column} from {table} where {column} is not null"):
            change = f"update {table} set {column} = $2 where {row} = $1"
            for at in range(len(bytes_of(value))):
                changed = flipped(value, at, lots)
                await connection.execute(change, key, changed)
                try:
                    log = await store.read("s")
                    verify(log, {})
                    unnoticed.append(f"{column} of {key}: {value!r} became {changed!r}")
                except (
                    PersistenceError
                ):  # it was noticed: what is told of each damage is shown where `verify` is tested
                    pass
                await connection.execute(change, key, value)
                flips += 1
    await connection.close()
    await writer.check()
    await store.close()
    acknowledged = flips * writer.seq
    count("bytes flipped, postgres", runs=flips, acknowledged=acknowledged, violations=len(unnoticed), seeds=str(SEED))
    assert unnoticed == []
    assert flips > 500


def bytes_of(value: str | bytes | int | bool) -> bytes:
    """As it is stored, more or less."""
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    return value if isinstance(value, bytes) else value.encode()


def flipped(value: str | bytes | int | bool, at: int, lots: random.Random) -> str | bytes | int | bool:
    """With one bit of that byte changed, and still what its column can hold: text stays ASCII and without NUL."""
    if isinstance(value, bool):
        return not value
    stored = bytearray(bytes_of(value))
    bits = [bit for bit in range(8) if isinstance(value, bytes) or (bit < 7 and stored[at] != 1 << bit)]
    stored[at] ^= 1 << lots.choice(bits)
    if isinstance(value, int):
        return int.from_bytes(stored, "little", signed=True)
    return bytes(stored) if isinstance(value, bytes) else stored.decode()
