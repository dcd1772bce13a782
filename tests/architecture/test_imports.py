"""Importing any module of ours does nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "containers", "persistence", "policy")
PROBE = Path(__file__).with_name("import_probe.py")


def probe(folder: Path, modules: list[str]) -> dict[str, list[str]]:
    """What each import did, in an environment that holds a BEFOREHAND_ variable which names no setting."""
    command = [sys.executable, "-B", "-W", "error", str(PROBE), str(folder), *modules]
    environment = {**os.environ, "BEFOREHAND_CANARY": "seen"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def named(path: Path) -> str:
    """`app/session/__init__.py` as `app.session`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_importing_any_module_prints_opens_and_reads_nothing() -> None:
    """LIF-18."""
    modules = [named(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert {"app", "containers", "persistence", "policy"} < set(modules)
    found = probe(ROOT, modules)
    assert list(found) == modules
    assert {module: seen for module, seen in found.items() if seen} == {}


def test_the_probe_sees_each_sin(tmp_path: Path) -> None:
    sins = {
        "innocent": "import json, re\nfrom os import environ",
        "talks": "print('hello')",
        "reads_a_file": "open('/etc/hostname').read()",
        "writes_a_file": f"open({str(tmp_path / 'new.py')!r}, 'w').close()",
        "opens_a_store": "import sqlite3\nsqlite3.connect(':memory:')",
        "connects": "import socket\nsocket.socket().close()",
        "leaves_a_thread": "import threading\nthreading.Thread(target=threading.Event().wait).start()",
        "starts_a_process": "import subprocess\nsubprocess.run(['true'])",
        "asks": "import os\nos.environ.get('BEFOREHAND_CANARY')\nos.getenv('HOME')",
        "walks": "import os\n[name for name in os.environ]",
        "sets": "import os\nos.environ['X'] = '1'",
        "leaves": "raise SystemExit(3)",
    }
    for name, source in sins.items():
        (tmp_path / f"{name}.py").write_text(source)
    found = probe(tmp_path, list(sins))
    assert {name: seen[0].partition(":")[0] if seen else None for name, seen in found.items()} == {
        "innocent": None,
        "talks": "printed",
        "reads_a_file": "open",
        "writes_a_file": "open",
        "opens_a_store": "sqlite3.connect",
        "connects": "socket.__new__",
        "leaves_a_thread": "thread left running",
        "starts_a_process": "subprocess.Popen",
        "asks": "environment read",
        "walks": "environment walked",
        "sets": "environment changed",
        "leaves": "raised",
    }
