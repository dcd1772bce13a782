"""A mutant tried: a copy of the project with one place changed, and the layer that has to notice run over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import WORLDS, Mutant
from tests.support import failpoints
from tests.support.counting import COUNTS

ROOT = Path(__file__).parents[2]
PARTS = ["app", "containers", "persistence", "policy", "tests", "pyproject.toml", "examples"]
SEEDS = "0:600"
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Verdict:
    """`said` is the first that the layer had to say, or its last line where it noticed nothing."""

    mutant: Mutant
    is_caught: bool
    said: str


class Gone(Exception):
    """What a mutant changes does not stand there once: the catalogue has to follow the code."""


def mutated(mutant: Mutant, directory: Path) -> None:
    """Make the copy. Raises Gone."""
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory / name)
    for file, text in changed(mutant).items():
        (directory / file).write_text(text)


def changed(mutant: Mutant) -> dict[str, str]:
    """The files as the mutant has them. Raises Gone."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.changes:
        text = texts.get(file) or failpoints.without((ROOT / file).read_text())
        if text.count(old) != 1:
            raise Gone(f"{mutant.name}: {old!r} stands {text.count(old)} times in {file}")
        texts[file] = text.replace(old, new)
    return texts


def tried(mutant: Mutant, directory: Path) -> Verdict:
    """Whether the mutant's layer notices it, over a copy in this empty directory."""
    mutated(mutant, directory)
    if mutant.layer == WORLDS:
        command = ["tests.simulation", "--first", "--seeds", SEEDS]
    else:
        command = ["pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", mutant.layer]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        # What a broken product counts is no figure of the product.
        env={**os.environ, COUNTS: "", "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines()[-1:]
    is_caught = done.returncode == 1  # by a violation, or by a failed test: not by an import that broke
    said = next((line for line in lines if not line.startswith("python -m")), "nothing") if is_caught else lines[-1]
    if mutant.layer != WORLDS and is_caught:
        said = next((line for line in lines if line.startswith("FAILED")), said)
    return Verdict(mutant, is_caught, said)
