"""What holds for every test: no setting leaks in from the developer's shell, and no test is judged by its speed."""

import os

import pytest
from hypothesis import settings

from tests.support import counting

pytest_plugins = ["tests.support.postgres"]  # a real server for those who ask for one

for name in [name for name in os.environ if name.startswith("BEFOREHAND_") and not name.startswith("BEFOREHAND_TEST_")]:
    del os.environ[name]

# On top of hypothesis' own profile for CI, when it runs there.
settings.register_profile("beforehand", deadline=None, max_examples=counting.amount("EXAMPLES", 100))
settings.load_profile("beforehand")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    counting.note(report)
