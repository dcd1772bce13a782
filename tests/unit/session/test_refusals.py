"""What a live session is told when the store refuses it, and with which names it may be opened at all."""

from __future__ import annotations

import pytest

from app.session.errors import ConfigurationError, PersistenceUnavailable, SessionFenced
from app.session.events import ExtensionType
from app.session.ownership import Owner, this_owner
from app.session.store import SessionStore
from persistence.memory import MemoryPersistence
from tests.support.checkpoints import pend
from tests.support.faults import DOWN, FailAfter, FaultyPersistence
from tests.support.house import House


async def test_a_session_whose_release_was_done_and_not_answered_is_not_told_that_somebody_took_it() -> None:
    """OWN-04: it may not write either way; but what to do is another thing."""
    store = FaultyPersistence(MemoryPersistence())
    house = House(persistence=store)
    async with house.opened():
        session = await house.sessions.create("s")
        pend(session, "m1")
        store.next("release", FailAfter(DOWN))
        with pytest.raises(PersistenceUnavailable):
            await house.sessions.release(session)
        pend(session, "m2")
        with pytest.raises(SessionFenced) as told:
            await house.sessions.flush(session)
        assert str(told.value) == (
            "session 's' was released by this process before, though the answer was lost; "
            "resume it to write to it again, nothing was written"
        )
        await house.sessions.release(session)
        again = await house.sessions.resume("s")
        assert len(again) == 1


async def test_a_session_that_was_taken_is_told_so() -> None:
    """OWN-04."""
    store = MemoryPersistence()
    house = House(persistence=store)
    async with house.opened():
        session = await house.sessions.create("s")
        pend(session, "m1")
        await house.sessions.flush(session)
        await store.acquire("s", Owner("other"), force=True)
        pend(session, "m2")
        with pytest.raises(SessionFenced) as told:
            await house.sessions.flush(session)
        assert str(told.value) == (
            "session 's' was taken over by another process; this one may not write to it any more "
            "and has to stop, nothing was written"
        )


@pytest.mark.parametrize(
    "name", ["word", "", "/", "a/", "/b", "a/b/c", "a b/c", "a/b\n", "turn/start", "inbox/accepted"]
)
def test_an_extension_type_that_cannot_be_one_is_refused_whoever_opens_the_store(name: str) -> None:
    """INV-07."""
    with pytest.raises(ConfigurationError) as told:
        SessionStore(MemoryPersistence(), Owner("test"), extensions=[ExtensionType(name)])
    assert str(told.value) == (
        f"extension events: {name!r} is no name for one: it takes name/word, and none that is built in"
    )


def test_a_type_that_is_declared_in_two_ways_is_refused() -> None:
    kinds = [ExtensionType("a/b"), ExtensionType("a/b"), ExtensionType("a/b", ignorable=True)]
    assert SessionStore(MemoryPersistence(), Owner("test"), extensions=kinds[:2]).extensions == {"a/b": kinds[0]}
    with pytest.raises(ConfigurationError) as told:
        SessionStore(MemoryPersistence(), Owner("test"), extensions=kinds)
    assert str(told.value) == "extension events: 'a/b' is declared both ignorable and not"


@pytest.mark.parametrize("name", ["", "a\0", "a\n", "\udc81", "x" * 201])
def test_an_owner_whose_name_no_store_could_keep_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as told:
        this_owner(name)
    assert str(told.value).startswith(f"owner: {name!r} is no valid id: ")
