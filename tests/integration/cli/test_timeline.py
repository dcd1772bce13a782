"""The timeline of a log: each event in a line, the checkpoints between them, what is open and what would close it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.entrypoints.escaping import escaped, fitted, one_line
from app.entrypoints.output import plain
from app.entrypoints.timeline import timeline
from app.llm.script import call, say
from app.session import events as ev
from app.session.batch import BatchEnd, Header, chain
from app.session.inspection import Inspection, inspect
from app.session.persistence import Holder, StoredLog
from app.session.record import SessionEvent, to_json
from app.session.values import encode
from persistence.memory import MemoryPersistence
from tests.support.house import House

START = 1_796_058_062_000  # 2026-11-30 17:01:02 UTC
NOTE = ev.ExtensionType("app/note", ignorable=True)


def looked_at(*batches: tuple[str, Sequence[ev.EventData]], holder: Holder | None = None) -> Inspection:
    """A stored log of these batches, each with its reason; an event every millisecond, a batch written 100 ms later."""
    header = Header.make("s", START)
    events: list[SessionEvent] = []
    ends: list[BatchEnd] = []
    head = header.digest
    for reason, group in batches:
        first = len(events)
        for data in group:
            events.append(SessionEvent(len(events), START + len(events), data.type, encode(to_json(data)), False))
        head = chain(head, events[first:])
        ends.append(BatchEnd(len(events) - 1, reason, events[-1].time + 100, head))
    stored = StoredLog(
        "s", header.text, tuple(events), tuple(ends), len(events), head, holder or Holder(1, None, 0.0), None
    )
    return inspect(stored, {NOTE.name: NOTE})


def drawn(found: Inspection, width: int | None = 100, *, all_chunks: bool = False) -> list[str]:
    """The lines below the head digest, without their padding."""
    return [plain(line).rstrip(" ─") for line in timeline(found, width, all_chunks=all_chunks)][5:]


MESSAGE = {"id": "m1", "content": "summarise the notes"}
REQUEST = [
    ev.InboxAccepted(MESSAGE, "next_turn"),
    ev.TurnStart(1, ["m1"]),
    ev.UserMessage(1, MESSAGE, "next_turn"),
    ev.StepStart(1, 1),
    ev.RequestHeader(1, 1, "initial", {"adapter": "script", "model": "demo"}, []),
]
TWO_CALLS = ev.AssistantMessage(
    1,
    1,
    [
        {"type": "text", "text": "I write."},
        {"type": "tool_call", "id": "c1", "name": "write_file", "arguments": '{"path": "a"}'},
        {"type": "tool_call", "id": "c2", "name": "append_file", "arguments": "{}"},
    ],
    [[5, 6]],
    {"adapter": "script", "model": "demo"},
    "tool_calls",
)
CHUNKS = [
    ev.AssistantChunk(1, 1, {"kind": "text_delta", "index": 0, "text": "I "}),
    ev.AssistantChunk(1, 1, {"kind": "text_delta", "index": 0, "text": "write."}),
]
CALL = ev.ToolCall(1, 1, "c1", "write_file", '{"path": "a"}', "side_effect")


def test_a_killed_session_shows_its_checkpoints_its_open_call_and_what_would_close_it() -> None:
    found = looked_at(("request", REQUEST), ("tool", [*CHUNKS, TWO_CALLS, CALL]), holder=Holder(1, "host-1", 12.25))
    assert [plain(line).rstrip(" ─") for line in timeline(found, 100)] == [
        "session  s",
        "created  2026-11-30 17:01:02 UTC",
        "log      9 events in 2 batches, a turn is open: it runs, or resuming closes it with 4 events",
        "owner    host-1, lease left 12.2 s",
        f"head     {found.head.hex()}",
        "",
        "   seq  time (UTC)    event               what",
        '     0  17:01:02.000  inbox/accepted      "summarise the notes"',
        "     1  17:01:02.001  turn/start          turn 1 takes 1 message",
        '     2  17:01:02.002  user/message        "summarise the notes"',
        "     3  17:01:02.003  step/start          step 1.1",
        "     4  17:01:02.004  request/header      script:demo, 0 tools",
        "── durable: request ── before the model was asked ── 17:01:02.104",
        '     5  17:01:02.005  assistant/chunk     2 chunks, to seq 6: "I write."',
        '     7  17:01:02.007  assistant/message   "I write."  calls write_file(c1), append_file(c2)',
        '     8  17:01:02.008  tool/call           OPEN, no result: c1 write_file {"path": "a"}',
        "── durable: tool ── before write_file could act ── 17:01:02.108",
        "── not stored: what `beforehand resume` would add",
        "+    9  17:01:02.008  tool/result         c1 TOOL_OUTCOME_UNKNOWN: Error: tool call was started, bu…",
        "+   10  17:01:02.008  tool/result         c2 TOOL_NOT_STARTED: Error: tool call was never started;…",
        "+   11  17:01:02.008  step/end            step 1.1",
        "+   12  17:01:02.008  turn/end            turn 1 interrupted",
    ]


def test_every_kind_of_event_has_its_line() -> None:
    steer = {"id": "m2", "content": [{"type": "text", "text": "be brief"}, {"type": "image", "data": "…"}]}
    context = {"id": "m3", "content": "it is late"}
    found = looked_at(
        ("caller", REQUEST[:1]),
        ("request", REQUEST[1:]),
        ("background", [ev.StepEnd(1, 1), ev.LlmRetry(1, 1, 1, 500, {"code": "SERVER", "message": "busy"}, 2)]),
        (
            "tool",
            [
                ev.StepStart(1, 2),
                replace(TWO_CALLS, step=2, chunks=[]),
                replace(CALL, step=2),
                ev.ToolNested(1, 2, "c1", "c1:1", "read_file", "{}", is_error=False),
                ev.ToolNested(1, 2, "c1", "c1:2", "fail", "{}", True, {"code": "TOOL_FAILED", "message": "no"}),
            ],
        ),
        (
            "post-step",
            [
                ev.ToolResult(1, 2, "c1", 9, False, value={"size": 1}, reconciled=True),
                ev.ToolResult(1, 2, "c2", None, True, error={"code": "TOOL_NOT_STARTED", "message": "never"}),
                ev.InboxAccepted(steer, "next_step"),
                ev.InboxAccepted(context, "context"),
                ev.InboxDiscarded(["m2", "m3"], "user"),
                ev.Extension(NOTE, {"said": "ü"}),
            ],
        ),
        ("final", [ev.StepEnd(1, 2), ev.TurnEnd(1, "error", error={"code": "AUTH", "message": "no key", "step": 2})]),
    )
    assert found.problem is None
    assert [line[22:] if line[5:6].isdigit() else line for line in drawn(found)[2:]] == [
        'inbox/accepted      "summarise the notes"',
        "── durable: caller ── before the caller was answered ── 17:01:02.100",
        "turn/start          turn 1 takes 1 message",
        'user/message        "summarise the notes"',
        "step/start          step 1.1",
        "request/header      script:demo, 0 tools",
        "── durable: request ── before the model was asked ── 17:01:02.104",
        "step/end            step 1.1",
        "llm/retry           retry 1 of 2 in 500 ms, after SERVER: busy",
        "── durable: background ── by write-behind, nobody waited ── 17:01:02.106",
        "step/start          step 1.2",
        'assistant/message   "I write."  calls write_file(c1), append_file(c2)',
        'tool/call           c1 write_file {"path": "a"}',
        "tool/nested         c1:1 read_file {} ok",
        "tool/nested         c1:2 fail {} TOOL_FAILED",
        "── durable: tool ── before write_file could act ── 17:01:02.111",
        'tool/result         c1 ok, reconciled: {"size":1}',
        "tool/result         c2 TOOL_NOT_STARTED: Error: never",
        'inbox/accepted      steering "be brief" <image>',
        'inbox/accepted      context "it is late"',
        "inbox/discarded     2 messages dropped, cause user",
        'app/note            {"said":"ü"}',
        "── durable: post-step ── after the step, before it goes on ── 17:01:02.117",
        "step/end            step 1.2",
        "turn/end            turn 1 error, AUTH: no key",
        "── durable: final ── at the end of the turn ── 17:01:02.119",
    ]


def test_chunks_are_one_line_up_to_a_boundary_or_a_line_each() -> None:
    found = looked_at(("request", REQUEST), ("background", CHUNKS), ("background", CHUNKS[:1]))
    assert [line[22:].split("  ")[-1].strip() for line in drawn(found) if "assistant/chunk" in line] == [
        '2 chunks, to seq 6: "I write."',
        '"I "',
    ]
    assert [line[42:].strip() for line in drawn(found, all_chunks=True) if "assistant/chunk" in line] == [
        '"I "',
        '"write."',
        '"I "',
    ]


def test_a_damaged_log_is_shown_as_far_as_it_goes() -> None:
    found = looked_at(("request", REQUEST))
    events = list(found.events)
    events[1] = replace(events[1], text='{"turn": "\x1b[31mone"')
    events[2] = replace(events[2], type="user/\x9bmessage", time=10**30)
    found = replace(found, events=tuple(events), header_text="no \x1b header", ends=())
    lines = [plain(line) for line in timeline(found, None)]
    assert lines[1] == "created  no \\x1b header"
    assert lines[8].endswith('turn/start          {"turn": "\\x1b[31mone"')
    assert "user/\\x9bmessage" in lines[9]
    assert all(character >= " " for line in lines for character in line)


def test_no_text_of_a_log_can_steer_a_terminal() -> None:
    hostile = "\x1b]0;owned\x07 \x9b31m \r over \u202e txt \ud800 \x7f"
    assert escaped(hostile) == "\\x1b]0;owned\\x07 \\x9b31m \\x0d over \\u202e txt \\ud800 \\x7f".replace(
        "\\x0d", "\\r"
    )
    assert escaped("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb\u2028c") == "a\\n\\tb\\u2028c"


def test_a_line_is_cut_by_the_columns_that_it_takes() -> None:
    assert fitted("abcdef", 6) == "abcdef"
    assert fitted("abcdefg", 6) == "abcde…"
    assert fitted("日本語日本語", 6) == "日本…"
    assert fitted("日本語", 6) == "日本語"
    assert fitted("\x1b\x1b", 6) == "\\x1b\\…"
    assert fitted("é" * 10_000_000, 3) == "éé…"
    assert fitted("abc", None) == "abc"


async def test_the_batches_of_a_turn_with_a_tool_are_its_checkpoints() -> None:
    """RUL-03."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    house = House(steps=[call("add", {"a": 1, "b": 2}, "c1"), say("3")], tools=[add], persistence=MemoryPersistence())
    async with house.agent() as agent:
        await agent.wait(agent.send("add them"))
        found = await house.sessions.inspect("s")
    assert [end.reason for end in found.ends] == ["request", "tool", "post-step", "request", "post-step", "final"]
    assert [line.split(" ── ")[:2] for line in drawn(found) if line.startswith("──")] == [
        ["── durable: request", "before the model was asked"],
        ["── durable: tool", "before add could act"],
        ["── durable: post-step", "after the step, before it goes on"],
        ["── durable: request", "before the model was asked"],
        ["── durable: post-step", "after the step, before it goes on"],
        ["── durable: final", "at the end of the turn"],
    ]
