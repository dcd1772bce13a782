"""A plain typed function becomes a tool: schema, arguments, returned values, and what cannot be one."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import threading
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PlainSerializer

from app.session.errors import ConfigurationError
from app.session.recovery import Unknown
from app.tools.schema import FunctionTool, as_tool, tool
from app.tools.types import InvalidArguments, InvalidOutput, Tool, ToolExecution


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Line(BaseModel):
    start: Point
    length: float = Field(serialization_alias="len", default=1.0)


class Colour(enum.Enum):
    RED = "red"


def refusal(do: Callable[[], object]) -> str:
    with pytest.raises((ConfigurationError, InvalidArguments, InvalidOutput)) as caught:
        do()
    return str(caught.value)


async def result(made: Tool, arguments: Any, execution: ToolExecution | None = None) -> Any:
    execution = execution or ToolExecution(made.name, "", "c1")
    return made.to_json(await made.run(made.validate(arguments), execution))


# -- what the model is told ------------------------------------------------------------------------


def test_signature_and_docstring_say_everything() -> None:
    @tool
    def find(
        text: Annotated[str, "what to look for"],
        execution: ToolExecution,
        at: Point,
        limit: Annotated[int, Field(ge=1, description="most lines")] = 10,
        kind: Literal["file", "line"] = "line",
        json: list[str] | None = None,
        size: int = Field(3, description="in lines"),
    ) -> list[str]:
        """Find a text.

        Slowly.
        """
        return []

    assert isinstance(find, FunctionTool)
    assert (find.name, find.description) == ("find", "Find a text.\n\nSlowly.")
    assert (find.effects, find.timeout_s, find.reconcile, find.is_parallel_safe({})) == (
        "side_effect",
        None,
        None,
        False,
    )
    assert find.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["text", "at"],
        "properties": {
            "text": {"type": "string", "description": "what to look for"},
            "at": {"$ref": "#/$defs/Point"},
            "limit": {"type": "integer", "minimum": 1, "default": 10, "description": "most lines"},
            "kind": {"type": "string", "enum": ["file", "line"], "default": "line"},
            "json": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "size": {"type": "integer", "default": 3, "description": "in lines"},
        },
        "$defs": {
            "Point": {
                "type": "object",
                "title": "Point",
                "additionalProperties": False,
                "required": ["x"],
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            }
        },
    }


def test_a_decorator_with_arguments_and_a_call_declare_the_same() -> None:
    async def ask(call: object) -> Unknown:
        return Unknown()

    def plain() -> None: ...

    called = tool(
        plain, name="n", description="d", effects="read_only", parallel_safe=True, timeout_s=1.5, reconcile=ask
    )

    @tool(name="n", description="d", effects="read_only", parallel_safe=True, timeout_s=1.5, reconcile=ask)
    def decorated() -> None: ...

    for made in (called, decorated):
        assert (made.name, made.description, made.effects, made.timeout_s) == ("n", "d", "read_only", 1.5)
        assert made.is_parallel_safe({}) is True
        assert made.reconcile is ask
        assert made.input_schema == {"type": "object", "additionalProperties": False, "properties": {}}


def test_types_of_the_defining_function_are_found_though_annotations_are_text() -> None:
    class Local(BaseModel):
        n: int

    @tool
    def take(local: Local) -> Local:
        return local

    assert asyncio.run(result(take, {"local": {"n": 1}})) == {"n": 1}


def test_a_decorated_function_can_still_be_called() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42


async def test_methods_partials_and_callable_objects_are_functions_too() -> None:
    class Shop:
        def price(self, item: str) -> str:
            """What it costs."""
            return f"{item}: 1"

        async def __call__(self, item: str) -> str:
            """Buy it."""
            return f"bought {item}"

    def root(directory: str, name: str) -> str:
        """A path."""
        return f"{directory}/{name}"

    price, buy = tool(Shop().price), tool(Shop(), name="buy")
    path = tool(functools.partial(root, directory="/srv"), name="path")
    assert [made.description for made in (price, buy, path)] == ["What it costs.", "Buy it.", "A path."]
    assert list(path.input_schema["properties"]) == ["name"]
    assert await result(price, {"item": "tea"}) == "tea: 1"
    assert await result(buy, {"item": "tea"}) == "bought tea"
    assert await result(path, {"name": "a"}) == "/srv/a"
    assert refusal(lambda: path.validate({"name": "a", "directory": "/"})) == (
        'at "/directory": Extra inputs are not permitted'
    )


def test_a_tool_is_taken_as_it_is_and_a_function_made_one() -> None:
    def plain() -> None: ...

    made = tool(plain)
    assert as_tool(made) is made
    assert as_tool(plain).name == "plain"
    assert refusal(lambda: as_tool(Point)) == (
        f"{Point!r} is no tool: it is no function, and an object lacks name, description, input_schema, effects, "
        "timeout_s, reconcile, is_parallel_safe, validate, run, to_json"
    )
    assert "is no tool" in refusal(lambda: as_tool(7))


# -- what is declared wrongly ----------------------------------------------------------------------


def test_wrong_declarations_are_refused_with_tool_and_parameter() -> None:
    def plain() -> None: ...

    def rest(*items: int) -> None: ...

    def options(**items: int) -> None: ...

    def positional(item: int, /) -> None: ...

    def bare(item) -> None: ...

    def odd(item: threading.Thread) -> None: ...

    def unheard(item: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def returns() -> threading.Thread: ...  # type: ignore[empty-body]

    def generates() -> Any:
        yield 1

    anything: Any = tool
    assert refusal(lambda: tool(rest)) == (
        "parameter 'items' of tool 'rest' is variadic positional; every parameter of a tool is given by its name"
    )
    assert "parameter 'items' of tool 'options' is variadic keyword" in refusal(lambda: tool(options))
    assert "parameter 'item' of tool 'positional' is positional-only" in refusal(lambda: tool(positional))
    assert refusal(lambda: tool(bare)) == "parameter 'item' of tool 'bare' has no annotation"
    assert refusal(lambda: tool(odd)).startswith("parameter 'item' of tool 'odd' has no JSON schema: ")
    assert "'unheard' cannot be resolved: name 'Missing' is not defined" in refusal(lambda: tool(unheard))
    assert refusal(lambda: tool(returns)).startswith("the return type of tool 'returns' has no JSON form: ")
    assert refusal(lambda: tool(generates)) == "tool 'generates' is a generator; a tool returns one value"
    for name in ("", "a b", "a.b", "é", "x" * 65, "a\n"):
        assert refusal(lambda name=name: tool(plain, name=name)).startswith(f"tool {name!r}: a name is")  # type: ignore[misc]
    assert tool(plain, name="x" * 64).name == "x" * 64
    assert "<lambda>" in refusal(lambda: tool(lambda: None))
    assert refusal(lambda: anything(plain, effects="none")) == (
        "tool 'plain': effects is one of read_only, idempotent, side_effect, not 'none'"
    )
    for timeout_s in (0, -1, float("nan"), float("inf"), True, "1"):
        assert "tool 'plain': timeout_s is a number" in refusal(lambda t=timeout_s: anything(plain, timeout_s=t))  # type: ignore[misc]
    assert "tool 'plain': parallel_safe is" in refusal(lambda: anything(plain, parallel_safe="yes"))
    assert "tool 'plain': reconcile is" in refusal(lambda: anything(plain, reconcile=1))


# -- arguments -------------------------------------------------------------------------------------


async def test_arguments_arrive_as_the_annotations_say() -> None:
    @tool
    def take(day: date, price: Decimal, at: Point, colour: Colour, path: Path, tags: set[str], n: float = 2.5) -> str:
        return repr((day, price, at, colour, path, tags, n))

    arguments = {"day": "2026-01-02", "price": "1.50", "at": {"x": 1}, "colour": "red", "path": "a", "tags": ["b"]}
    assert await result(take, arguments) == repr(
        (date(2026, 1, 2), Decimal("1.50"), Point(1), Colour.RED, Path("a"), {"b"}, 2.5)
    )


def test_every_problem_is_listed_with_its_place() -> None:
    """PIP-03: what is wrong in two places is told of both."""

    @tool
    def take(a: int, at: list[Point], b: int | dict[str, int] = 0) -> None: ...

    arguments = {"a": "x", "at": [{"x": 1}, {"y": 2, "z": 3}], "b": {"k/~": "x"}, "c": 1}
    assert refusal(lambda: take.validate(arguments)).split("; ") == [
        'at "/a": Input should be a valid integer, unable to parse string as an integer',
        'at "/at/1/x": Field required',
        'at "/at/1/z": Unexpected keyword argument',
        'at "/b": Input should be a valid integer',
        'at "/b/k~1~0": Input should be a valid integer, unable to parse string as an integer',
        'at "/c": Extra inputs are not permitted',
    ]
    assert refusal(lambda: take.validate([])) == 'at "": Input should be an object'
    assert refusal(lambda: take.validate({"a": 1})) == 'at "/at": Field required'


async def test_arguments_that_the_json_parser_of_pydantic_refuses_still_arrive() -> None:
    deep: Any = []
    for _ in range(1000):
        deep = [deep]

    @tool
    def take(text: str, number: int, deep: Any) -> Any:
        return [text, number == 10**5000, deep]

    assert await result(take, {"text": "\udc81", "number": 10**5000, "deep": deep}) == ["\udc81", True, deep]


async def test_a_mutable_default_is_not_shared_between_calls() -> None:
    @tool
    def take(items: list[int] = []) -> list[int]:  # noqa: B006  # the trap itself
        items.append(1)
        return items

    assert [await result(take, {}), await result(take, {})] == [[1], [1]]


# -- returned values -------------------------------------------------------------------------------


def returning(declared: Any) -> FunctionTool:
    def body() -> None: ...

    body.__annotations__["return"] = declared
    return tool(body)


@pytest.mark.parametrize(
    ("declared", "value", "stored"),
    [
        (datetime, datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),  # noqa: DTZ001
        (Decimal, Decimal("1.50"), "1.50"),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (set[int], {7}, [7]),
        (Line, Line(start=Point(1)), {"start": {"x": 1, "y": 0}, "len": 1.0}),
        (dict[str, Any], {"on": date(2026, 1, 2)}, {"on": "2026-01-02"}),
        (Colour, Colour.RED, "red"),
        (Annotated[str, PlainSerializer(str.upper)], "a", "A"),
        (None, None, None),
        (bytes, b"a", "a"),
    ],
)
def test_a_declared_type_gives_values_their_json_form(declared: Any, value: Any, stored: Any) -> None:
    """PIP-25: a declared type is stored in its JSON form."""
    made = returning(declared)
    assert made.to_json(value) == stored
    assert type(made.to_json(value)) is type(stored)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (datetime(2026, 1, 2), 'at "": datetime'),  # noqa: DTZ001
        ([Decimal("1.5")], 'at "/0": Decimal'),
        ({"at": Point(1)}, 'at "/at": Point'),
        ({"a/b": [(1,)]}, 'at "/a~1b/0": tuple'),
        ({1}, 'at "": set'),
        ([float("nan")], 'at "/0": NaN'),
    ],
)
@pytest.mark.parametrize("declared", [Any, object, "nothing"])
def test_without_a_declared_type_a_value_has_to_be_json(declared: Any, value: Any, problem: str) -> None:
    """PIP-25: undeclared, it is an error that names the path."""

    def undeclared(): ...

    made = tool(undeclared) if declared == "nothing" else returning(declared)
    assert refusal(lambda: made.to_json(value)) == problem
    assert made.to_json({"a": [1, 1.5, None, "\udc81"]}) == {"a": [1, 1.5, None, "\udc81"]}


@pytest.mark.parametrize(
    ("declared", "value", "problem"),
    [
        (int, "five", 'at "": Input should be a valid integer, unable to parse string as an integer'),
        (list[Point], [Point(1), {"x": "a"}], 'at "/1/x": Input should be a valid integer, unable to parse string as'),
        (Point, Point("a"), 'at "": not what the return type declares (PydanticSerializationError)'),  # type: ignore[arg-type]
        (None, 1, 'at "": Input should be None'),
        (float, float("inf"), 'at "": an infinity'),
        (dict[str, Any], {"a": [date(2026, 1, 2), float("inf")]}, 'at "/a/1": an infinity'),
        (bytes, b"\xff", 'at "": not what the return type declares (UnicodeDecodeError)'),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(declared: Any, value: Any, problem: str) -> None:
    """PIP-04, VAL-08: infinities never become null on the way."""
    assert refusal(lambda: returning(declared).to_json(value)).startswith(problem)


@pytest.mark.parametrize("declared", [dict[str, Any], dict[str, list[int | None]], dict[str, object] | None])
def test_json_of_a_declared_type_is_kept_as_it_is(declared: Any) -> None:
    value = {"\udc81": [1, None], "": [10**5000], "b": [], "a": [-1]}
    assert returning(declared).to_json(value) == value
    assert list(returning(declared).to_json(value)) == ["\udc81", "", "b", "a"]


# -- running ---------------------------------------------------------------------------------------


async def test_a_synchronous_body_runs_in_a_daemon_thread_of_its_own_with_the_callers_context() -> None:
    language = contextvars.ContextVar("language", default="none")

    @tool
    def where(execution: ToolExecution) -> list[Any]:
        thread = threading.current_thread()
        return [thread is threading.main_thread(), thread.daemon, language.get(), execution.call_id]

    language.set("Greek")
    assert await result(where, {}) == [False, True, "Greek", "c1"]


async def test_an_async_body_runs_in_the_callers_task_and_is_given_the_execution() -> None:
    @tool
    async def where(first: ToolExecution | None, second: Annotated[ToolExecution, "not told"], n: int) -> list[object]:
        assert first is second
        return [asyncio.current_task() is task, n]

    task = asyncio.current_task()
    assert list(where.input_schema["properties"]) == ["n"]
    assert await result(where, {"n": 1}) == [True, 1]
