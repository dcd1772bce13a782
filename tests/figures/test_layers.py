"""Nothing that breaks something is left out of the layers."""

from __future__ import annotations

from tests.figures.layers import LAYERS, PATHS
from tests.figures.running import ROOT

BREAKING = ("tests/crash", "tests/integration/postgres", "tests/simulation")


def test_every_module_that_breaks_something_is_in_one_layer():
    modules = [path.relative_to(ROOT) for directory in BREAKING for path in (ROOT / directory).rglob("test_*.py")]
    run = {str(module): [path for path in PATHS if module.is_relative_to(path)] for module in modules}
    assert {module: paths for module, paths in run.items() if len(paths) != 1} == {}
    assert all((ROOT / path).exists() for path in PATHS)


def test_layers_are_told_apart_by_name():
    """What a soak keeps is kept by name."""
    assert len({layer.name for layer in LAYERS}) == len(LAYERS)
