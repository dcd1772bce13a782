"""Whole turns on a real server: many tools on one pool, a crash that a vendor's key makes harmless, a slow question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.llm.scripted import call, say
from app.session.call_keys import argument_key, idempotency_key
from app.session.errors import SessionHeld
from app.session.ownership import Owner
from app.session.recovery import Completed, RecordedCall
from app.tools.schema import tool
from app.tools.types import ToolExecution
from persistence.postgres import PostgresPersistence
from tests.support.gates import Gate
from tests.support.house import House
from tests.support.interrupted import Open, leave
from tests.support.postgres import run_sql
from tests.support.watching import data_of


async def test_twenty_tools_at_once_share_their_checkpoints(postgres_dsn: str) -> None:
    """SCH-16: no driver error from a shared connection, and fewer commits than calls."""

    @tool(effects="read_only", parallel_safe=True)
    async def look(n: int) -> int:
        return n

    asked = [call("look", {"n": n}, id=f"c{n}") for n in range(20)]
    store = PostgresPersistence(postgres_dsn)
    house = House(steps=[asked, say("done")], tools=[look], persistence=store, max_parallel_tools=20)
    async with house.agent() as agent:
        assert (await agent.wait(agent.send("look"))).reason == "completed"
        assert [data["value"] for data in data_of(agent.session, "tool/result")] == list(range(20))
        ends = (await house.sessions.inspect("s")).ends
        assert 1 <= sum(end.reason == "tool" for end in ends) < 20


@pytest.mark.parametrize(
    ("key_of", "effects"),
    [(lambda execution: execution.argument_key, 1), (lambda execution: execution.idempotency_key, 2)],
    ids=["argument_key", "idempotency_key"],
)
async def test_a_vendor_that_honours_keys_pays_once(
    postgres_dsn: str, key_of: Callable[[ToolExecution], str], effects: int
) -> None:
    """PG-18: the call is unknown and planned again; only the key of its arguments makes it the same one."""
    arguments = '{"amount": 5}'
    keys = {argument_key("s", "pay", arguments), idempotency_key("s", "c1")}
    paid = [keys]  # what the killed process had done before its result was recorded

    @tool
    async def pay(amount: int, execution: ToolExecution) -> str:
        key = key_of(execution)
        if not any(key in earlier for earlier in paid):
            paid.append({key})
        return f"paid {amount}"

    await leave(PostgresPersistence(postgres_dsn), Open("c1", name="pay", arguments=arguments))
    house = House(
        steps=[call("pay", {"amount": 5.0}, id="c2"), say("done")],
        tools=[pay],
        persistence=PostgresPersistence(postgres_dsn),
    )
    async with house.opened():
        agent = await house.agents.resume("s", force=True)
        assert (await agent.wait(agent.send("go on"))).reason == "completed"
        await house.agents.close()
    assert len(paid) == effects


async def test_no_transaction_is_open_while_a_tool_is_asked_what_became_of_its_call(postgres_dsn: str) -> None:
    """RCN-06: the lease is renewed meanwhile, and somebody else who resumes is told who holds the session."""
    asked = Gate()

    async def what_became(recorded: RecordedCall) -> Completed:
        await asked()
        return Completed("done after all")

    @tool(reconcile=what_became)
    async def act() -> str:
        return "done"

    await leave(PostgresPersistence(postgres_dsn), Open("c1"))
    owner = Owner("asking", lease_s=1.5)
    house = House(tools=[act], persistence=PostgresPersistence(postgres_dsn), owner=owner, lease_margin_s=0.1)
    other = House(persistence=PostgresPersistence(postgres_dsn), owner=Owner("other"))
    async with house.opened(), other.opened():
        resuming = asyncio.create_task(house.sessions.resume("s", force=True))
        await asked.reached.wait()
        idle = "select count(*) from pg_stat_activity where state like 'idle in transaction%'"
        assert tuple((await run_sql(postgres_dsn, idle))[0]) == (0,)
        lease = "select lease_until from beforehand.sessions where id = 's'"
        (first,) = await run_sql(postgres_dsn, lease)
        while (await run_sql(postgres_dsn, lease))[0] == first:
            with pytest.raises(SessionHeld, match="'asking'"):
                await other.sessions.resume("s")
        asked.open()
        session = await resuming
        assert [event.data.get("value") for event in session.closers if event.type == "tool/result"] == [
            "done after all"
        ]
        await house.sessions.release(session)
