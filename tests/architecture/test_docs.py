"""What the documentation shows of the code is what the code shows of itself."""

import re
from pathlib import Path

from app.session.errors import SessionError
from containers.application import build
from containers.explain import explain_text
from containers.settings import load_settings
from docs.draw import grammar_picture

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a document in one language."""
    return re.findall(rf"```{language}\n(.*?)\n```", (ROOT / document).read_text(), re.DOTALL)


def test_the_documented_explanation_is_that_of_the_default_settings(tmp_path, monkeypatch):
    """ORD-06: character for character."""
    monkeypatch.chdir(tmp_path)
    assert explain_text(build(load_settings())) in blocks("docs/architecture.md", "text")


def test_the_grammar_is_drawn_from_its_table():
    assert blocks("docs/architecture.md", "mermaid") == [grammar_picture()]


def test_every_code_of_an_exception_is_documented():
    described = set(re.findall(r"`([A-Z_]+)`", (ROOT / "docs/errors.md").read_text()))
    codes = {error.code for error in subclasses(SessionError)} - {"PERSISTENCE"}
    assert codes - described == set()


def subclasses(kind: type[SessionError]) -> set[type[SessionError]]:
    """Every error of ours below `kind`."""
    return {kind for child in kind.__subclasses__() for kind in {child, *subclasses(child)}}
