"""The stores that rows marked [3] and [4] run on."""

from tests.support.stores import durable_place, new_place, place

__all__ = ["durable_place", "new_place", "place"]
