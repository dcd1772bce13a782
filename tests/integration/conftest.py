"""What the tests of whole programs share."""

from tests.integration.cli.conftest import beforehand

__all__ = ["beforehand"]
