"""`verify` on every store that outlives a process: what it says of each kind of damage, and where."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from app.entrypoints.exits import CORRUPT, DONE
from app.entrypoints.output import Output
from app.entrypoints.verifying import verify
from app.session import events as ev
from app.session.record import SessionEvent
from persistence.contract import Writer
from persistence.contract.samples import message, messages
from persistence.jsonl.directory import name_of
from tests.support.house import House
from tests.support.recording import record
from tests.support.rows import ROWS
from tests.support.stores import KINDS, Kind, Place

MODEL = {"adapter": "script", "model": "test"}
ASKED = [{"type": "tool_call", "id": "c1", "name": "act", "arguments": "{}"}]
PROMPT = {"id": "m", "content": "go"}
TURN: list[ev.EventData] = [
    *(ev.InboxAccepted(PROMPT, "next_turn"), ev.TurnStart(1, ["m"]), ev.UserMessage(1, PROMPT, "next_turn")),
    *(ev.StepStart(1, 1), ev.AssistantMessage(1, 1, ASKED, [], MODEL, "tool_calls")),
    *(ev.ToolCall(1, 1, "c1", "act", "{}", "read_only"), ev.ToolResult(1, 1, "c1", 5, False, value="done")),
    *(ev.StepEnd(1, 1), ev.TurnEnd(1, "completed")),
]
"""A legal turn with a call: nine events."""

WRITTEN: dict[str, tuple[list[ev.EventData], int, str]] = {
    "grammar: a step that never began": (TURN[:3] + TURN[4:], 3, "it may only come in REQUEST"),
    "grammar: a turn that ends twice": ([*TURN, TURN[-1]], 9, "it may only come in OPENING or TURN"),
    "pairing: a call without a result": (TURN[:6] + TURN[7:], 6, "it may only come in REQUEST or DONE"),
    "pairing: a result of another call": (
        [*TURN[:6], ev.ToolResult(1, 1, "c9", 5, False, value="done"), *TURN[7:]],
        6,
        "the next call without a result is 'c1'",
    ),
    "pairing: a result without a call": (
        [*TURN[:5], *TURN[6:]],
        5,
        "its tool/call has seq None",
    ),
}
"""What a faulty writer stored, with digests that fit: the first wrong seq, and what is said."""


async def verified(place: Place, session_id: str | None = None) -> tuple[int, list[str], list[dict[str, Any]]]:
    """The exit code, the lines, and the same as JSON."""
    texts = []
    for is_json in (False, True):
        house = House(persistence=place.persistence())
        async with house.opened():
            out = io.StringIO()
            code = await verify(house.sessions, session_id, None, Output(out=out, is_json=is_json))
            texts.append(out.getvalue().splitlines())
    return code, texts[0], [json.loads(line) for line in texts[1]]


async def write(place: Place, session_id: str, *batches: tuple[SessionEvent, ...]) -> Writer:
    """Store a session whose log is these batches, whatever they say."""
    store = place.persistence()
    await store.open()
    writer = Writer.new(store, session_id)
    for events in batches:
        await writer.write(events=events)
    await store.close()
    return writer


async def check_told(place: Place, where: str, told: str) -> None:
    """One bad session and a good one: both are named, and where the bad one is bad."""
    good = (await verified(place, "good"))[1]
    assert good[0].startswith("ok   good  6 events, head ")
    path = place.directory / "sessions" / name_of("bad") if place.kind.name == "jsonl" else None
    for session_id in ("bad", None):
        code, lines, records = await verified(place, session_id)
        assert code == CORRUPT
        (line,) = [line for line in lines if line.startswith("bad  bad  ")]
        assert f"the log of session 'bad' is damaged at {where}: " in line
        assert told in line
        assert line.endswith(f"; the file is {path}" if path else "; nothing was changed")
        (bad,) = [record for record in records if record["id"] == "bad"]
        assert (bad["ok"], bad["code"], bad["where"], bad["file"]) == (False, "CORRUPT_LOG", where, path and str(path))
        assert [line for line in lines if "bad  bad" not in line] == ([] if session_id else good)


@pytest.mark.parametrize("kind", WRITTEN)
async def test_what_breaks_grammar_or_pairing_is_named_with_its_seq(durable_place: Place, kind: str):
    events, seq, told = WRITTEN[kind]
    await write(durable_place, "good", messages(0, 6))
    await write(durable_place, "bad", record(events))
    await check_told(durable_place, f"seq {seq}", told)


# -- behind the store's back ------------------------------------------------------------------------

BATCHES, SIZE = 4, 3


async def spoil(place: Place, id: str, seqs: Sequence[int], change: tuple[str, str] | None) -> str:
    """Take events away or, given two texts, put the second in the place of the first: in rows or in lines.

    Returns where the first of them stands, in the store's own words.
    """
    if place.kind.name in ROWS:
        rows = ROWS[place.kind.name](place)
        for seq in seqs:
            if change:
                await rows.change(id, seq, "data = replace(data, ?, ?)", *change)
            else:
                await rows.drop(id, seq)
        return f"seq {seqs[0]}"
    path = place.directory / "sessions" / name_of(id)
    lines = path.read_text().splitlines(keepends=True)
    first, *_ = at = [n for n, line in enumerate(lines) if line.startswith(tuple(f'{{"seq":{seq},' for seq in seqs))]
    for n in at:
        lines[n] = lines[n].replace(*change) if change else ""
    if not change and len(seqs) == SIZE:
        lines.remove(next(line for line in lines if line.startswith(f'{{"end":{seqs[-1]},')))
    path.write_text("".join(lines))
    return f"offset {len(''.join(lines[:first]))}"


SPOILED: dict[str, tuple[tuple[int, ...], tuple[str, str] | None, str | None, str]] = {
    "gap: the first event": ((0,), None, None, "event 1 stands where 0 is to be"),
    "gap: an event in a batch": ((4,), None, None, "event 5 stands where 4 is to be"),
    "gap: a batch": ((3, 4, 5), None, None, "event 6 stands where 3 is to be"),
    "gap: events of the last batch": ((9, 10), None, None, "event 11 stands where 9 is to be"),
    "digest: a letter": ((4,), ("hello", "hullo"), "seq 3", "the digest of batch 3 to 5 does not fit"),
    "digest: a key": ((4,), ("placement", "placemant"), "seq 3", "the digest of batch 3 to 5 does not fit"),
}
"""Which events are spoiled, what in them becomes what, where that is found if not there, and what is said of a gap in
a file.
"""


@pytest.mark.parametrize("kind", SPOILED)
async def test_what_is_missing_or_altered_is_named_with_its_seq_or_offset(durable_place: Place, kind: str):
    """DIG-02, ST-02, ST-03: where there is a file for each session, that too."""
    seqs, change, where, told = SPOILED[kind]
    await write(durable_place, "good", messages(0, 6))
    await write(durable_place, "bad", *(messages(SIZE * n, SIZE) for n in range(BATCHES)))
    place = await spoil(durable_place, "bad", seqs, change)
    await check_told(durable_place, where or place, told if where or durable_place.kind.name == "jsonl" else "")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ROWS], ids=lambda kind: kind.name)
async def test_events_of_no_session_are_told(new_place: Callable[[Kind], Place], kind: Kind):
    """The session's row is gone, so nothing lists it and nobody can ask for it."""
    place = new_place(kind)
    await write(place, "good", messages(0, 6))
    await write(place, "bad", messages(0, 6))
    rows = ROWS[kind.name](place)
    key = {"sqlite": "a session of key 2", "postgres": "session 'bad'"}[kind.name]
    await rows.run("DELETE FROM sessions WHERE id = 'bad'")
    code, (good, beside), records = await verified(place)
    assert (code, good[:10], beside) == (CORRUPT, "ok   good ", f"bad  the store  events of {key}: there is none")
    assert (records[1]["id"], records[1]["ok"], records[1]["problem"]) == (
        None,
        False,
        f"events of {key}: there is none",
    )


def sqlite_kind() -> Kind:
    return next(kind for kind in KINDS if kind.name == "sqlite")


@pytest.mark.parametrize("index", ["sessions_by_age", "sqlite_autoindex_sessions_1"])
async def test_an_index_that_leaves_a_session_out_is_told(new_place: Callable[[Kind], Place], index: str):
    """DIG-01: SQLite believes its indexes: by one a session is not listed, by the other listed and not found."""
    place = new_place(sqlite_kind())
    await write(place, "good", messages(0, 6))
    await write(place, "bad", messages(0, 6))
    path = place.directory / "sessions.db"
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    at = content.index(b"bad", (page - 1) * size, page * size)
    content[at : at + 3] = b"bae"
    path.write_bytes(content)
    code, lines, _ = await verified(place)
    assert code == CORRUPT
    assert f"bad  the store  row 2 missing from index {index}" in lines
    assert [line for line in lines if line.startswith("ok   good  6 events")] != []
    if index != "sessions_by_age":
        assert "bad  bad  it is listed, and cannot be found by its id" in lines


# -- beside others, and many ------------------------------------------------------------------------


async def test_a_session_that_is_being_written_is_well_at_any_moment(durable_place: Place):
    store = durable_place.persistence()
    await store.open()
    writer = Writer.new(store, "s")
    await writer.write(2)
    house = House(persistence=durable_place.persistence())

    async def write_on() -> None:
        while True:
            await writer.write(1 + writer.seq % 3)

    async with house.opened():
        writing = asyncio.ensure_future(write_on())
        seen: list[int] = []
        while len(seen) < 30 or seen[-1] == seen[0]:
            out = io.StringIO()
            assert await verify(house.sessions, None, None, Output(out=out, is_json=True)) == DONE
            seen.append(json.loads(out.getvalue())["events"])
        writing.cancel()
        await asyncio.wait([writing])
    assert seen == sorted(seen)
    await store.close()


async def test_many_sessions_take_no_more_memory_than_one(durable_place: Place):
    store = durable_place.persistence()
    await store.open()
    peaks = []
    for count in (1, 30):
        for _ in range(count):
            await Writer.new(store).write(events=[message(n, "x" * 50_000) for n in range(10)])
        house = House(persistence=durable_place.persistence())
        async with house.opened():
            tracemalloc.start()
            assert await verify(house.sessions, None, None, Output(out=io.StringIO())) == DONE
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    await store.close()
    assert peaks[1] < 3 * peaks[0]
