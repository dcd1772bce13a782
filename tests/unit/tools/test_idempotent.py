"""Requests of a tool carry keys that are the same when the same is done again, and differ where it is not the same."""

from typing import Any

from app.session.call_keys import argument_key, idempotency_key
from app.tools.idempotent import idempotent
from app.tools.types import ToolExecution
from tests.unit.tools.calls import call, in_session, session_with_open_calls


class Client:
    """Notes what it is asked, as an HTTP client of httpx's kind would be."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, dict[str, Any]]] = []
        self.is_open: bool | None = None

    async def request(self, method: str, url: Any, **options: Any) -> str:
        self.asked.append((method, url, options))
        return "answer"

    @property
    def keys(self) -> list[str]:
        return [options["headers"]["Idempotency-Key"] for _, _, options in self.asked]

    async def __aenter__(self) -> "Client":
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False


async def pay_twice(execution: ToolExecution, **options: Any) -> list[str]:
    client = Client()
    http = idempotent(execution, client, **options)
    await http.post("/pay", json={"amount": 1})
    await http.post("/pay", json={"amount": 1})
    await http.put("/pay")
    await http.post("/log")
    return client.keys


async def test_each_request_of_a_body_has_a_key_of_its_own_and_the_same_one_when_the_body_runs_again() -> None:
    keys = await pay_twice(call("pay"))
    assert len(set(keys)) == 4
    assert all(len(key) == 64 for key in keys)
    assert await pay_twice(call("pay")) == keys
    assert not set(keys) & set(await pay_twice(call("pay", call_id="c2")))


async def test_same_arguments_are_the_same_under_another_call_id() -> None:
    session = session_with_open_calls([("c1", "pay", '{"to": "x"}')])

    async def keys(call_id: str, arguments: str) -> list[str]:
        return await pay_twice(in_session(session, "pay", arguments, call_id=call_id), same="arguments")

    first, again = await keys("c1", '{"to": "x"}'), await keys("c2", '{ "to":"x" }')
    other = await keys("c3", '{"to": "y"}')
    assert first == again
    assert not set(first) & set(other)
    execution = in_session(session, "pay", '{"to": "x"}')
    assert execution.argument_key == argument_key("s1", "pay", '{"to": "x"}')
    assert execution.idempotency_key == idempotency_key("s1", "c1")


async def test_options_and_headers_go_through_and_a_key_of_ones_own_stays() -> None:
    client = Client()
    http = idempotent(call("pay"), client)
    assert await http.get("/a", params={"q": 1}, headers={"X": "y"}) == "answer"
    await http.patch("/a", headers=[("idempotency-key", "mine")])
    await http.delete("/a")
    (get, patch, delete) = client.asked
    assert (get[0], get[1], get[2]["params"], get[2]["headers"]["X"]) == ("GET", "/a", {"q": 1}, "y")
    assert patch[2]["headers"] == {"idempotency-key": "mine"}
    assert (delete[0], set(delete[2]["headers"])) == ("DELETE", {"Idempotency-Key"})


async def test_it_opens_and_closes_the_client_that_it_is_given() -> None:
    client = Client()
    async with idempotent(call("pay"), client) as http:
        assert client.is_open is True
        await http.post("/pay")
    assert client.is_open is False
