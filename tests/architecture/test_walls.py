"""Imports run one way: the contracts of pyproject.toml hold, leave no module of `app` out, and do catch a breach."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "containers", "persistence", "policy")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

BREACHES = {
    "app/session/planted.py": "import app.agent",
    "app/llm/planted.py": "import app.tools",
    "policy/planted.py": "import persistence, pydantic",
    "app/tools/planted.py": "import pydantic",
    "persistence/planted.py": "import policy",
    "containers/planted.py": "import openai",
}


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Every contract, checked on the packages that lie in `root`."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=root, check=False, capture_output=True, text=True, env={"COLUMNS": "200"})


def test_every_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in done.stdout


def test_every_child_of_app_has_its_place_in_the_layers() -> None:
    (layers,) = (contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
    named = {name for layer in layers for name in layer.split(" | ") if name.startswith("app.")}
    children = {
        f"app.{path.stem}"
        for path in (ROOT / "app").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert named == children


def test_a_breach_of_each_wall_is_caught(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, line in BREACHES.items():
        (tmp_path / path).write_text(line)
    done = lint(tmp_path)
    broken = set(re.findall(r"^(.+) BROKEN(?: \(.+\))?$", done.stdout, re.MULTILINE))
    found = set(re.findall(r"(\S+\.planted) +-> +(\S+)", done.stdout))
    assert done.returncode == 1, done.stdout + done.stderr
    assert broken == {contract["name"] for contract in CONTRACTS}
    assert found == {
        ("app.session.planted", "app.agent"),
        ("app.llm.planted", "app.tools"),
        ("policy.planted", "persistence"),
        ("policy.planted", "pydantic"),
        ("app.tools.planted", "pydantic"),
        ("persistence.planted", "policy"),
        ("containers.planted", "openai"),
    }
