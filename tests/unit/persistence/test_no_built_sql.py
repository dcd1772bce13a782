"""No statement is ever put together from values: what is run comes from files and constants, values are parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUNNERS = {"execute", "executemany", "executescript", "fetch", "fetchrow", "fetchval", "prepare", "copy_to_table"}


def built(source: str) -> Iterator[int]:
    """The lines where something is run that was put together there: an f-string, `+`, `%`, `.format` or `.join`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in RUNNERS
            and node.args
        ):
            for part in ast.walk(node.args[0]):
                is_method = isinstance(part, ast.Attribute) and part.attr in ("format", "join")
                if is_method or isinstance(part, ast.JoinedStr | ast.BinOp):
                    yield node.lineno
                    break


def test_no_store_builds_a_statement() -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / "persistence").rglob("*.py"))}
    assert sum(text.count(".execute(") + text.count(".fetch") for text in sources.values()) > 20
    assert {path.name: lines for path, text in sources.items() if (lines := list(built(text)))} == {}


@pytest.mark.parametrize(
    "source",
    [
        'c.execute(f"x {a}")',
        'c.fetch("x" + a)',
        'c.fetchval("x %s" % a)',
        'c.execute("{}".format(a))',
        'c.execute(" ".join(a))',
    ],
)
def test_each_way_to_build_one_is_seen(source: str) -> None:
    assert list(built(source)) == [1]
