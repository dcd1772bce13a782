"""What must hold of a log at the end, whatever has happened: told by the log, and by what others know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.llm.strict import check_provider_valid
from app.llm.types import LlmError
from app.messages import TextBlock, UserMessage
from app.session.errors import SessionError
from app.session.persistence import StoredLog
from app.session.record import SessionEvent
from app.session.verification import verify

NOT_ENTERED = {"TOOL_NOT_STARTED", "ABORTED_BEFORE_DISPATCH", "CHECKPOINT_FAILED", "UNKNOWN_TOOL", "DENIED"}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a session outside of its log: by seq the lines that the store acknowledged, the digests of the
    batches it refused, the ids of the messages that somebody was promised, and by call id how often a body was entered
    and how often it came to its end.
    """

    acknowledged: Mapping[int, str]
    refused: Collection[bytes]
    promised: Collection[str]
    entered: Counter[str]
    ended: Counter[str]


def violations(known: Known, log: StoredLog | None) -> list[str]:
    """Every sentence is something that may never happen."""
    if log is None:
        return ["the store acknowledged events and holds none"] if known.acknowledged else []
    lines = dict(enumerate(event.line for event in log.events))
    found = [
        f"seq {seq} was acknowledged and is not in the log"
        for seq, line in known.acknowledged.items()
        if lines.get(seq) != line
    ]
    digests = {end.digest for end in log.ends}
    found += ["a batch that was refused is in the log" for digest in known.refused if digest in digests]
    try:
        _, fold = verify(log, {})
        check_provider_valid([*fold.history.messages, UserMessage((TextBlock("go on"),))])
    except (SessionError, LlmError) as error:
        found.append(f"the log does not load: {error}")
    found += _turns(log.events)
    found += _calls(log.events, known)
    found += _bodies(log.events, known)
    found += _messages(log.events, known)
    return found


def of_copy(fate: str, copy: StoredLog | None, origin: StoredLog | None) -> Iterator[str]:
    """What may not be of a fork, by what its maker was told of it: `asked for`, `there`, `to go` or `gone`."""
    if copy is None:
        if fate == "there":
            yield "a copy that was stored is not there"
        return
    if fate == "gone":
        yield "a copy that was deleted is there"
    try:
        header, _ = verify(copy, {})
    except SessionError as error:
        yield f"a copy does not load: {error}"
        return
    assert header.parent is not None
    if origin is not None:
        shared = header.parent["seq"] + 1
        if [event.line for event in copy.events[:shared]] != [event.line for event in origin.events[:shared]]:
            yield "a copy differs from what it was copied from"


def _turns(events: Sequence[SessionEvent]) -> Iterator[str]:
    numbers = [event.data["turn"] for event in events if event.type == "turn/start"]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the turns are {numbers}"
    if Counter(numbers) != Counter(event.data["turn"] for event in events if event.type == "turn/end"):
        yield "a turn has no end, or has two"
    for event in events:
        if event.type == "turn/end" and event.data.get("error", {}).get("code") == "INTERNAL":
            yield f"turn {event.data['turn']} failed inside: {event.data['error']['message']}"


def _calls(events: Sequence[SessionEvent], known: Known) -> Iterator[str]:
    asked: list[str] = []
    for event in events:
        data = event.data
        if event.type == "assistant/message":
            if asked:
                yield f"{asked} have no result before the next answer"
            asked = [block["id"] for block in data["content"] if block["type"] == "tool_call"]
        elif event.type == "tool/result":
            if asked[:1] != [data["call_id"]]:
                yield f"a result of {data['call_id']} where {asked[:1]} is due"
            asked = asked[1:]
            yield from _result(data["call_id"], data, known)
        elif event.type in ("user/message", "turn/end", "step/end") and asked:
            yield f"{event.type} while {asked} have no result"
            asked = []


def _result(call_id: str, data: dict[str, object], known: Known) -> Iterator[str]:
    error = data.get("error")
    code = error["code"] if isinstance(error, dict) else None
    if code in NOT_ENTERED and known.entered[call_id]:
        yield f"the model is told {code} of {call_id}, whose body was entered"
    if code is None and not known.ended[call_id]:
        yield f"{call_id} has a value, and its body never ended"
    if code not in NOT_ENTERED and code != "TOOL_OUTCOME_UNKNOWN" and not known.entered[call_id]:
        yield f"{call_id} has the outcome {code or 'a value'}, and its body was never entered"


def _bodies(events: Sequence[SessionEvent], known: Known) -> Iterator[str]:
    called = {event.data["call_id"] for event in events if event.type == "tool/call"}
    for call_id, times in known.entered.items():
        if call_id.partition(":")[0] not in called:
            yield f"the body of {call_id} was entered, and the log has no such call"
        if times > 1:
            yield f"the body of {call_id} was entered {times} times"


def _messages(events: Sequence[SessionEvent], known: Known) -> Iterator[str]:
    accepted = [event.data["message"]["id"] for event in events if event.type == "inbox/accepted"]
    taken = Counter(event.data["message"]["id"] for event in events if event.type == "user/message")
    dropped = Counter(id for event in events if event.type == "inbox/discarded" for id in event.data["ids"])
    waking = [
        event.data["message"]["id"]
        for event in events
        if event.type == "inbox/accepted" and event.data["placement"] != "context"
    ]
    for message_id in known.promised:
        if message_id not in accepted:
            yield f"message {message_id} was acknowledged and is not in the log"
    for message_id in accepted:
        if taken[message_id] + dropped[message_id] > 1:
            yield f"message {message_id} was taken or dropped more than once"
    for message_id in waking:
        if not taken[message_id] + dropped[message_id]:
            yield f"message {message_id} was left lying"
