"""What holds for every test: no setting leaks in from the developer's shell, and no test is judged by its speed."""

import os

from hypothesis import settings

pytest_plugins = ["tests.support.postgres"]  # a real server for those who ask for one

for name in [name for name in os.environ if name.startswith("BEFOREHAND_") and not name.startswith("BEFOREHAND_TEST_")]:
    del os.environ[name]

settings.register_profile("beforehand", deadline=None)  # on top of hypothesis' own profile for CI, when it runs there
settings.register_profile("thorough", parent=settings.get_profile("beforehand"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "beforehand"))
