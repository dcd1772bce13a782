"""Reading a log can never run code: nothing installed imports what revives objects, or names what runs text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "containers", "persistence", "policy")
REVIVERS = {"cloudpickle", "copyreg", "dill", "joblib", "jsonpickle", "marshal", "pickle", "ruamel", "shelve", "yaml"}
RUNNERS = {"__import__", "compile", "eval", "exec"}


def revivals(source: str) -> Iterator[str]:
    """What in `source` imports a reviver, or names a builtin that runs text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in REVIVERS)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in REVIVERS:
            yield node.module
        elif isinstance(node, ast.Name) and node.id in RUNNERS:
            yield node.id


def test_no_installed_module_revives_objects_or_runs_text() -> None:
    sources = {path: path.read_text() for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
    assert len(sources) > len(PACKAGES)
    assert [(path.relative_to(ROOT), found) for path, text in sources.items() for found in revivals(text)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import json, pickle", ["pickle"]),
        ("def f():\n    from yaml.nodes import Node", ["yaml.nodes"]),
        ("f = eval\ng = exec('1')", ["eval", "exec"]),
        ("import re\nre.compile('x')", []),
    ],
)
def test_each_way_to_revive_is_seen(source: str, expected: list[str]) -> None:
    assert list(revivals(source)) == expected
