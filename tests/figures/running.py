"""Runs the layers' commands, two at a time, and keeps what each of them wrote down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.figures.layers import LAYERS, Layer
from tests.figures.table import Portion
from tests.support.counting import COUNTS

ROOT = Path(__file__).parents[2]
AT_ONCE = 2


def crash(texts: Sequence[str]) -> Iterator[Portion]:
    """A portion of each layer, or of those whose name holds one of the texts, as they come to their ends."""
    layers = [layer for layer in LAYERS if not texts or any(text in layer.name for text in texts)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = [threads.submit(_run, layer, 0, layer.crash) for layer in layers]
        for done in as_completed(running):
            yield done.result()


def soak(kept: Path) -> Iterator[Portion]:
    """All portions of every layer, evenly; those that this directory has been given are taken from there."""
    kept.mkdir(exist_ok=True)
    places = [
        ((number + 0.5) / layer.portions, layer.name, number) for layer in LAYERS for number in range(layer.portions)
    ]
    layers = {layer.name: layer for layer in LAYERS}

    def play(name: str, number: int) -> Portion:
        file = kept / f"{name}-{number}.json"
        if not file.exists():
            text = json.dumps(asdict(_run(layers[name], number, layers[name].soak)))
            file.with_suffix(".new").write_text(text)
            file.with_suffix(".new").rename(file)
        return Portion(**json.loads(file.read_text()))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = [threads.submit(play, name, number) for _, name, number in sorted(places)]
        for done in as_completed(running):
            yield done.result()


def _run(layer: Layer, number: int, amounts: Mapping[str, int]) -> Portion:
    first = number * layer.seeds
    command = [word.format(first=first, last=first + layer.seeds) for word in layer.command]
    settings = {f"BEFOREHAND_TEST_{name}": str(value) for name, value in {"SEED": first, **amounts}.items()}
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as counts:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **settings, COUNTS: counts.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in counts]
    if done.returncode:
        given = " ".join(f"{name}={value}" for name, value in settings.items())
        print(f"{given} python -m {' '.join(command)}\n{done.stdout}", flush=True)
    return Portion(layer.name, lines, time.monotonic() - began, failed=done.returncode != 0)
