"""What the tests of the command share."""

from pathlib import Path

import pytest

from tests.integration.cli.command import Command


@pytest.fixture
def beforehand(tmp_path: Path) -> Command:
    """The command in a new directory, where its database will be. Nothing is written behind a test's back."""
    return Command(tmp_path, write_behind_ms="off")
