"""The mutants stay mutants: each changes one place that is there."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import MUTANTS, WORLDS, Mutant, listed
from tests.mutants.running import ROOT, changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_code_that_is_there_into_other_code(mutant: Mutant):
    """One that no longer fits the code would never be caught, nor would one that is no code."""
    for text in changed(mutant).values():
        ast.parse(text)
    assert mutant.layer == WORLDS or (ROOT / mutant.layer).exists()


def test_mutants_are_told_apart_by_name():
    """Their names are what the table says."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_mutants_are_documented_with_the_layers_that_catch_them():
    assert listed() in (ROOT / "docs/guarantees.md").read_text()
