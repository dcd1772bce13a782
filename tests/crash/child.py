"""What runs in a child: one part played on a real store, until its parent kills it, or to its end."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from app.llm.scripted import ScriptedAdapter
from app.llm.types import ChunkStream, LlmRequest
from app.middleware import Named
from app.session import events as ev
from app.session.batch import Batch, Header
from app.session.drain import DrainLimits
from app.session.errors import SessionFenced
from app.session.events import Notice
from app.session.ownership import Epoch, this_owner
from app.session.record import SessionEvent
from app.session.session import Session
from tests.crash.holding import INSIDE, HeldPersistence, Hold
from tests.crash.ledger import Ledger, digest, fingerprint
from tests.crash.stories import World, story_of, turn_end
from tests.crash.telling import told
from tests.support.house import House
from tests.support.recording import record
from tests.support.stores import Place, place_of

ENDED = "ended"
LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Part:
    """`play` names a function below. `hold` is the place to stop at. From the moment `limit_from` on, a file that grows
    beyond `limit` bytes costs the process its life, in the middle of that write.
    """

    play: str
    place: tuple[str, str]
    story: str = "text"
    hold: str | None = None
    limit_from: str | None = None
    limit: int = 0


class Child:
    """The process from inside: its part, and what the part is played with."""

    def __init__(self, part: Part, parent: Connection | None = None) -> None:
        self.part = part
        self.place: Place = place_of(*part.place)
        self.ledger = Ledger(Path(part.place[1]) / LEDGER)
        self.hold = Hold(parent, part.hold)
        self.world = World(self.hold, self.ledger)
        self.persistence = HeldPersistence(self.place.persistence(), self.hold, self.ledger)
        self.story = story_of(part.story)
        self.house = House(
            self.story.answers(self.world),
            self.world.tools,
            self.persistence,
            this_owner("the child"),
            policy=self.story.policy,
            drain_limits=DrainLimits(write_behind_ms=self.story.write_behind_ms),
            tool_below=[Named("held", self.world.below_checkpoint)],
        )
        self.world.sessions = self.house.sessions
        self._watch_requests(self.house.adapter)
        self.ledger.note("began")

    def watch(self, session: Session) -> None:
        """Note every event that is in the live log, those that it has already too."""

        def note(event: SessionEvent | Notice) -> None:
            if isinstance(event, SessionEvent):
                call_id = event.data["call_id"] if event.type == "tool/call" else None
                self.ledger.note("append", seq=event.seq, type=event.type, call_id=call_id, digest=digest(event))

        self.ledger.note("claim", number=session.epoch.number, token=session.epoch.token)
        for event in session.events:
            note(event)
        session.observe(note)

    def pass_by(self, moment: str) -> None:
        """A place to be held at, and where the limit may begin."""
        self.hold(moment)
        if self.part.limit_from == moment:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.part.limit, self.part.limit))

    def _watch_requests(self, adapter: ScriptedAdapter) -> None:
        stream, count = adapter.stream, 0

        def watched(request: LlmRequest) -> ChunkStream:
            nonlocal count
            count += 1
            if self.story.policy is not turn_end:  # that one promises nothing of requests
                self.ledger.note("request", fingerprint=fingerprint(request))
            self.hold(f"request {count} opened")
            return stream(request)

        adapter.stream = watched  # type: ignore[method-assign]  # the one entrance, watched


async def tell(child: Child) -> None:
    """Live through the story in a new session, and stop as one should."""
    child.pass_by("opening")
    async with child.house.opened():
        agent = child.world.agent = await child.house.agents.create("s")
        child.watch(agent.session)
        for number, prompt in enumerate(child.story.prompts, start=1):
            child.pass_by(f"prompt {number}")
            message_id = agent.send(prompt)
            if child.story.acknowledges:
                await child.house.sessions.flush(agent.session)
                child.world.acknowledged.set()
            await agent.wait(message_id)
        await agent.close()
        child.pass_by("closing")


async def lose(child: Child) -> None:
    """Live through the story until somebody else has taken the session."""
    with pytest.raises(SessionFenced):
        await tell(child)
    assert child.world.agent is not None
    child.ledger.note("lost", events=told(child.world.agent.session.events))


async def resume(child: Child) -> None:
    """Resume the session, and nothing else."""
    async with child.house.opened():
        child.watch(await child.house.sessions.resume("s", force=child.place.force))
        child.hold("resumed")


async def go_on(child: Child) -> None:
    """Resume the session and have one more turn."""
    async with child.house.opened():
        agent = child.world.agent = await child.house.agents.resume("s", force=child.place.force)
        child.watch(agent.session)
        await agent.wait(agent.send("go on"))


async def inject(child: Child) -> None:
    """Have a context acknowledged by an idle session."""
    async with child.house.opened():
        agent = await child.house.agents.create("s")
        child.watch(agent.session)
        agent.inject("by the way")
        await child.house.sessions.flush(agent.session)
        child.hold("acknowledged")


async def forget(child: Child) -> None:
    """Leave a message in the live log, which nobody flushes."""
    async with child.house.opened():
        session = await child.house.sessions.create("s")
        child.watch(session)
        session.append(ev.InboxAccepted({"id": "m1", "content": "by the way"}, "context"))
        child.hold("appended")


async def begin(child: Child) -> None:
    """Store a turn that is announced and has none of its messages, as only an imported log can have it."""
    async with child.house.opened():
        events = record([ev.InboxAccepted({"id": "m1", "content": "go"}, "next_turn"), ev.TurnStart(1, ["m1"])])
        header = Header.make("s", events[0].time)
        epoch = Epoch.first(child.house.owner)
        await child.persistence.append(header, Batch(events, header.digest, "import"), epoch)


async def copy(child: Child) -> None:
    """Fork the session that is there, carry the fork over to another id, and delete it."""
    async with child.house.opened():
        sessions = child.house.sessions
        child.ledger.note("copied", copy=await sessions.fork("s", new_id="fork"))
        header, *lines = [line async for line in await sessions.export("fork")]
        child.ledger.note("copied", copy=await sessions.import_([header.replace('"fork"', '"carried"'), *lines]))
        await sessions.delete("fork")
        child.ledger.note("deleted", copy="fork")


async def migrate(child: Child) -> None:
    """Make the tables of a store on a server."""
    await child.place.persistence().migrate()  # type: ignore[attr-defined]  # only such a one is given this part


PLAYS: dict[str, Callable[[Child], Awaitable[None]]] = {
    play.__name__: play for play in (tell, lose, resume, go_on, inject, forget, begin, copy, migrate)
}


def live(part: Part) -> None:
    """Play a part that is held nowhere. Raises what it raises."""
    asyncio.run(_play(Child(part)))


def main(parent: Connection, part: Part) -> None:
    """The whole life of a child that is held somewhere."""
    warnings.simplefilter("error")
    try:
        child = Child(part, parent)
        INSIDE[child.place.kind.name](child.hold.point)
        asyncio.run(_play(child))
    except BaseException:  # whatever it was, the parent is the one to tell
        parent.send(traceback.format_exc())
        sys.exit(1)
    parent.send(ENDED)


async def _play(child: Child) -> None:
    await PLAYS[child.part.play](child)
