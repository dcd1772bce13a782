"""The engine that these tests share."""

from collections.abc import Iterator

import pytest

from tests.support import engine, stand_ins
from tests.support.engine import Engine
from tests.support.postgres_local import NotAvailable


@pytest.fixture(scope="session")
def container_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has the image of postgres, or can pull it. Where there is none, its tests say they did not run."""
    try:
        with engine.found(tmp_path_factory.mktemp("engine")) as found:
            if found.is_own:
                with found.client() as client:
                    stand_ins.make_postgres(client, "postgres:18-alpine")
            yield found
    except NotAvailable as error:
        pytest.skip(f"not run: {error}")
