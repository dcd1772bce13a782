"""Runs the layers' commands, two at a time, and keeps what each of them wrote down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tests.figures.layers import LAYERS, Layer
from tests.figures.table import Portion
from tests.support.counting import COUNTS

ROOT = Path(__file__).parents[2]
AT_ONCE = 2

_running: set[subprocess.Popen[str]] = set()


def crash(texts: Sequence[str]) -> Iterator[Portion]:
    """A portion of each layer, or of those whose name holds one of the texts, as they come to their ends."""
    layers = [layer for layer in LAYERS if not texts or any(text in layer.name for text in texts)]
    yield from _each(partial(_run, layer, 0, layer.crash) for layer in reversed(layers))  # the longest come last


def soak(kept: Path) -> Iterator[Portion]:
    """All portions of every layer, evenly. Those in which nothing was found are kept there, and not run again."""
    kept.mkdir(exist_ok=True)
    places = [(layer, number) for layer in LAYERS for number in range(layer.portions)]
    places.sort(key=lambda place: (place[1] + 0.5) / place[0].portions)

    def run(layer: Layer, number: int) -> Portion:
        file = kept / f"{layer.name}-{number}.json"
        if file.exists():
            return Portion(**json.loads(file.read_text()))
        portion = _run(layer, number, layer.soak)
        if not portion.failed:
            file.with_suffix(".new").write_text(json.dumps(asdict(portion)))
            file.with_suffix(".new").rename(file)
        return portion

    yield from _each(partial(run, *place) for place in places)


def _each(jobs: Iterable[Callable[[], Portion]]) -> Iterator[Portion]:
    """What each returns, as it does. When nobody wants to know any more, what runs is killed."""
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        for done in as_completed([threads.submit(job) for job in jobs]):
            yield done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in list(_running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _run(layer: Layer, number: int, amounts: Mapping[str, int]) -> Portion:
    first = number * layer.seeds
    command = [word.format(first=first, last=first + layer.seeds) for word in layer.command]
    settings = {f"BEFOREHAND_TEST_{name}": str(value) for name, value in {"SEED": first, **amounts}.items()}
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as counts:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **settings, COUNTS: counts.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that all of it can be killed
        )
        _running.add(process)
        said, _ = process.communicate()
        _running.remove(process)
        lines = [json.loads(line) for line in counts]
    if process.returncode:
        given = " ".join(f"{name}={value}" for name, value in settings.items())
        print(f"{given} python -m {' '.join(command)}\n{said}", flush=True)
    return Portion(layer.name, lines, time.monotonic() - began, failed=process.returncode != 0)
