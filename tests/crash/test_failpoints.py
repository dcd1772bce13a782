"""Killed at every place that the sources name: in a life, in the recovery after it, and in what else a store does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from types import CodeType

import pytest

from app.session.errors import SessionNotFound
from tests.crash import ledger
from tests.crash.child import LEDGER, Part
from tests.crash.recovering import check_nothing_happened, recover, recovering_house
from tests.crash.warm import WarmParent
from tests.support import failpoints
from tests.support.counting import SEED, amount, count
from tests.support.postgres import run_sql
from tests.support.stores import KINDS, Kind, Place

TOLD = ("long", "remembered", "retried, each event", "stopped in c1, each event")
LAST = SEED + amount("FAILPOINT_SEEDS", 1)
STORIES = [*(TOLD if SEED == 0 else ()), *(f"drawn {seed}" for seed in range(SEED, LAST))]
NAMES = [name for name, _ in failpoints.listed()]


@pytest.fixture(scope="module")
def parent() -> Iterator[WarmParent]:
    with WarmParent() as warm:
        yield warm


class Kills:
    """What is done in one test, and what was acknowledged to those who were killed."""

    def __init__(self, parent: WarmParent) -> None:
        self.done = self.acknowledged = 0
        self._parent = parent

    def points(self, play: str, place: Place, story: str = "text") -> list[tuple[str, int]]:
        """The first time, the second and the last that a part comes by each failpoint."""
        life = self._parent.live(Part(play, place.words, story))
        assert not life.is_killed
        return [(name, nth) for name, times in life.passed.items() for nth in sorted({1, min(2, times), times})]

    def at(self, point: tuple[str, int], play: str, place: Place, story: str = "text") -> None:
        """Have a child killed there."""
        self.done += self._parent.live(Part(play, place.words, story), point).is_killed
        self.acknowledged += ledger.acknowledged(ledger.read(place.directory / LEDGER))

    def conclude(self, what: str, kind: Kind, seeds: str = "") -> None:
        """Add a line to the figures."""
        count(f"{what}, {kind.name}", runs=self.done, acknowledged=self.acknowledged, seeds=seeds)


@pytest.fixture
def more(durable_place: Place, new_place: Callable[[Kind], Place]) -> Callable[[], Place]:
    return lambda: new_place(durable_place.kind)


@pytest.mark.timeout(60 + 60 * len(STORIES))
async def test_a_life_goes_on_wherever_it_was_killed(
    parent: WarmParent, durable_place: Place, more: Callable[[], Place]
):
    """E2E-12: what was acknowledged is there, no body ran unknown to the log, and the next process has its turn."""
    kills = Kills(parent)
    for story in STORIES:
        for point in kills.points("tell", more(), story):
            place = more()
            kills.at(point, "tell", place, story)
            try:
                await recover(place)
            except SessionNotFound:
                await check_nothing_happened(place)
    assert kills.done > 20 * len(STORIES)
    kills.conclude("killed at each failpoint", durable_place.kind, f"{SEED}:{LAST}")


async def test_a_recovery_goes_on_wherever_it_was_killed(
    parent: WarmParent, durable_place: Place, more: Callable[[], Place]
):
    """E2E-12, RCN-05: the second life is killed in its recovery too; the third closes the turn as the second would."""
    kills = Kills(parent)
    parent.live(Part("tell", durable_place.words, "remembered"), ("body.left", 2))
    first = await copied(durable_place, more())
    closed: set[tuple[str, ...]] = set()
    for point in kills.points("resume", await copied(durable_place, more())):
        place = await copied(durable_place, more())
        kills.at(point, "resume", place)
        recovered = await recover(place)
        closed.add(tuple(event.line for event in (*recovered.stored, *recovered.closers)))
    plain = await recover(first)
    assert closed == {tuple(event.line for event in (*plain.stored, *plain.closers))}
    assert len(plain.closers) == 4
    kills.conclude("killed at each failpoint of a recovery", durable_place.kind)


async def test_copies_are_whole_or_absent_wherever_their_maker_was_killed(
    parent: WarmParent, durable_place: Place, more: Callable[[], Place]
):
    """Forked, exported, imported and deleted: what was acknowledged is so, and the session is as it was."""
    kills = Kills(parent)
    parent.live(Part("tell", durable_place.words, "one call"))
    for point in kills.points("copy", await copied(durable_place, more())):
        place = await copied(durable_place, more())
        kills.at(point, "copy", place)
        notes = ledger.read(place.directory / LEDGER)
        made, gone = ({note.details["copy"] for note in notes if note.what == what} for what in ("copied", "deleted"))
        house = recovering_house(place)
        async with house.opened():
            origin = await house.sessions.inspect("s")
            for copy in ("fork", "carried"):
                try:
                    found = await house.sessions.inspect(copy)
                except SessionNotFound:
                    assert copy not in made or copy == "fork"  # which was to be deleted next
                else:
                    assert (found.problem, found.events) == (None, origin.events)
                    assert copy not in gone
        assert (await recover(place)).closers == ()
    kills.conclude("killed at each failpoint of a copy", durable_place.kind)


async def test_tables_are_made_wherever_their_maker_was_killed(parent: WarmParent, new_place: Callable[[Kind], Place]):
    """MIG-02: between two migrations, and inside of each."""
    [kind] = [kind for kind in KINDS if kind.name == "postgres"]
    kills, place = Kills(parent), new_place(kind)
    await drop(place)
    for point in kills.points("migrate", place):
        await drop(place)
        kills.at(point, "migrate", place)
        parent.live(Part("migrate", place.words))
        await check_nothing_happened(place)
    assert kills.done > 3
    kills.conclude("killed at each failpoint of a migration", kind)


async def drop(place: Place) -> None:
    dsn, schema = place.database
    await run_sql(dsn, f"drop schema {schema} cascade")


async def copied(place: Place, other: Place) -> Place:
    await place.copy_to(other)
    return other


# ---------------------------------------------------------------------------------------- the failpoints themselves


def test_failpoints_have_names_of_their_own():
    assert len(set(NAMES)) == len(NAMES) > 30


async def test_every_failpoint_is_come_by(parent: WarmParent, new_place: Callable[[Kind], Place]):
    """By the parts that the tests above play; one that nobody comes by is a place where nobody is killed."""
    passed: set[str] = set()
    for kind in (kind for kind in KINDS if kind.is_durable):
        for story in TOLD:
            passed |= parent.live(Part("tell", (place := new_place(kind)).words, story)).passed.keys()
        passed |= parent.live(Part("copy", place.words)).passed.keys()
        cut_short = new_place(kind)
        parent.live(Part("tell", cut_short.words, "remembered"), ("body.left", 2))
        passed |= parent.live(Part("resume", cut_short.words)).passed.keys()
    await drop(place)
    passed |= parent.live(Part("migrate", place.words)).passed.keys()
    assert set(NAMES) - passed == set()


def test_to_whoever_does_not_ask_for_them_failpoints_are_comments():
    """No code of the product mentions them, and lines are counted as they stand."""
    points = [place.split(":") for _, place in failpoints.listed()]
    for path in {path for path, _ in points}:
        own = {int(line) for of, line in points if of == path}
        text = (failpoints.ROOT / path).read_text()
        plain, hooked = (compile(source, path, "exec") for source in (text, failpoints.hooked(text)))
        assert failpoints.HIT not in {name for code in codes(plain) for name in code.co_names}
        assert failpoints.HIT in {name for code in codes(hooked) for name in code.co_names}
        assert [lines(code) - own for code in codes(hooked)] == [lines(code) for code in codes(plain)]


def test_the_product_is_not_imported_through_the_hook():
    """But by who installs it, which takes a process of its own."""
    command = "import app.session.drain as drain, sys; sys.exit(hasattr(drain, '__failpoint__'))"
    assert subprocess.run([sys.executable, "-c", command], cwd=failpoints.ROOT, check=False).returncode == 0
    with pytest.raises(RuntimeError, match="imported without failpoints"):
        failpoints.install()


def lines(code: CodeType) -> set[int | None]:
    return {line for *_, line in code.co_lines()}


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)
