"""What must hold of a log at the end of a world, whatever has happened: told by the log and the ledger alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from app.session.errors import SessionError
from app.session.persistence import StoredLog
from app.session.record import SessionEvent
from app.session.verification import verify
from tests.simulation.ledger import Ledger
from tests.simulation.service import Promises
from tests.simulation.store import Server

NOT_ENTERED = {"TOOL_NOT_STARTED", "ABORTED_BEFORE_DISPATCH", "CHECKPOINT_FAILED", "UNKNOWN_TOOL"}


def violations(server: Server, ledger: Ledger, promises: Promises, log: StoredLog | None) -> list[str]:
    """Every sentence is something that may never happen."""
    found = list(server.violations)
    acknowledged = server.acknowledged.get("s", {})
    if log is None:
        return [*found, "the store acknowledged events and holds none"] if acknowledged else found
    texts = dict(enumerate(event.text for event in log.events))
    found += [
        f"seq {seq} was acknowledged and is not in the log"
        for seq, text in acknowledged.items()
        if texts.get(seq) != text
    ]
    digests = {end.digest for end in log.ends}
    found += ["a batch that was refused is in the log" for _, digest in server.rejected if digest in digests]
    try:
        verify(log, {})
    except SessionError as error:
        found.append(f"the log does not load: {error}")
    found += _turns(log.events)
    found += _calls(log.events, ledger)
    found += _messages(log.events, promises)
    return found


def _turns(events: Sequence[SessionEvent]) -> Iterator[str]:
    numbers = [event.data["turn"] for event in events if event.type == "turn/start"]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the turns are {numbers}"
    if Counter(numbers) != Counter(event.data["turn"] for event in events if event.type == "turn/end"):
        yield "a turn has no end, or has two"
    for event in events:
        if event.type == "turn/end" and event.data.get("error", {}).get("code") == "INTERNAL":
            yield f"turn {event.data['turn']} failed inside: {event.data['error']['message']}"


def _calls(events: Sequence[SessionEvent], ledger: Ledger) -> Iterator[str]:
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
            yield from _result(data["call_id"], data, ledger)
        elif event.type in ("user/message", "turn/end", "step/end") and asked:
            yield f"{event.type} while {asked} have no result"
            asked = []


def _result(call_id: str, data: dict[str, object], ledger: Ledger) -> Iterator[str]:
    error = data.get("error")
    code = error["code"] if isinstance(error, dict) else None
    if code in NOT_ENTERED and ledger.entered[call_id]:
        yield f"the model is told {code} of {call_id}, whose body was entered"
    if code is None and not ledger.ended[call_id]:
        yield f"{call_id} has a value, and its body never ended"
    if code not in NOT_ENTERED and code != "TOOL_OUTCOME_UNKNOWN" and not ledger.entered[call_id]:
        yield f"{call_id} has the outcome {code or 'a value'}, and its body was never entered"


def _messages(events: Sequence[SessionEvent], promises: Promises) -> Iterator[str]:
    accepted = [event.data["message"]["id"] for event in events if event.type == "inbox/accepted"]
    taken = Counter(event.data["message"]["id"] for event in events if event.type == "user/message")
    dropped = Counter(id for event in events if event.type == "inbox/discarded" for id in event.data["ids"])
    waking = [
        event.data["message"]["id"]
        for event in events
        if event.type == "inbox/accepted" and event.data["placement"] != "context"
    ]
    for message_id in promises.acknowledged:
        if message_id not in accepted:
            yield f"message {message_id} was acknowledged and is not in the log"
    for message_id in accepted:
        if taken[message_id] + dropped[message_id] > 1:
            yield f"message {message_id} was taken or dropped more than once"
    for message_id in waking:
        if not taken[message_id] + dropped[message_id]:
            yield f"message {message_id} was left lying"
