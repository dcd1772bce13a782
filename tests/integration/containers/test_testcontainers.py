"""The rung of tests/support/postgres.py that takes a container, on a real engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import Engine

pytestmark = pytest.mark.timeout(600)  # an image is made, and many tests run in one

ROOT = Path(__file__).parents[3]


def test_the_contract_is_kept_on_a_server_in_a_container(container_engine: Engine):
    """The whole suite of the store, by tests of their own, which say in their summary which server it was."""
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contracts/test_postgres.py"]
    done = subprocess.run(
        container_engine.command(sys.executable, *suite),
        cwd=ROOT,
        env={**container_engine.environment, "BEFOREHAND_TEST_PG": "docker"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    image = os.environ.get("BEFOREHAND_TEST_PG_IMAGE", "postgres:18-alpine")
    assert f"Postgres: docker, {image} on engine {container_engine.version}" in done.stdout.splitlines()
    assert re.fullmatch(r"\d{2,} passed in .*", done.stdout.splitlines()[-1])
