"""The stores that each refusal is tried on."""

from tests.support.stores import durable_place, new_place, place

__all__ = ["durable_place", "new_place", "place"]
