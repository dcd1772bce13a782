"""A first tool of one's own: a typed function, its docstring, and what it does to the world."""

from typing import Annotated

from app.tools.schema import tool


@tool(effects="read_only", parallel_safe=True)
def weather(city: Annotated[str, "the name of a city"]) -> str:
    """Say what the weather is like in a city."""
    return f"sunny in {city}"
