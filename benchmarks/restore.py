"""What loading a stored session costs, by its length; the floor is parsing the same events' JSON and nothing else."""

import asyncio
import json
import tempfile
import time
from pathlib import Path

from app.session import events as ev
from app.session.drain import DrainLimits
from app.session.ownership import this_owner
from app.session.store import SessionStore
from persistence.sqlite import SqlitePersistence


async def measure(directory: Path, length: int) -> tuple[float, float]:
    """Seconds to resume a session of `length` events, and to parse their texts."""
    store = SqlitePersistence(directory / f"{length}.db")
    await store.open()
    sessions = SessionStore(store, this_owner(), drain_limits=DrainLimits(write_behind_ms=None))
    session = await sessions.create("bench")
    turn = 0
    while len(session) < length:
        turn += 1
        message = {"id": f"m{turn}", "content": "x" * 200}
        session.append(ev.InboxAccepted(message, "next_turn"))
        session.append(ev.TurnStart(turn, [message["id"]]), ev.UserMessage(turn, message, "next_turn"))
        session.append(ev.StepStart(turn, 1))
        chunks = [
            session.append(ev.AssistantChunk(turn, 1, {"kind": "text_delta", "index": 0, "text": "word " * 8}))
            for _ in range(20)
        ]
        content = [{"type": "text", "text": "word " * 160}]
        model = {"adapter": "script", "model": "bench"}
        ranges = [[chunks[0][0].seq, chunks[-1][0].seq]]
        session.append(ev.AssistantMessage(turn, 1, content, ranges, model, "stop"))
        session.append(ev.StepEnd(turn, 1))
        session.append(ev.TurnEnd(turn, "completed"))
    await sessions.flush(session)
    texts = [event.text for event in session.events]
    await sessions.release(session)
    start = time.perf_counter()
    resumed = await sessions.resume("bench")
    resume_s = time.perf_counter() - start
    await sessions.release(resumed)
    await store.close()
    start = time.perf_counter()
    for text in texts:
        json.loads(text)
    return resume_s, time.perf_counter() - start


async def main() -> None:
    print("loading a stored session: claim, read, digests, grammar, history")
    with tempfile.TemporaryDirectory() as directory:
        for length in (10_000, 100_000):
            resume_s, floor_s = await measure(Path(directory), length)
            per_event, ratio = resume_s / length * 1e6, resume_s / floor_s
            print(f"  {length:>7,} events  {resume_s:6.2f} s  {per_event:5.1f} us an event  {ratio:5.1f} x the floor")


if __name__ == "__main__":
    asyncio.run(main())
