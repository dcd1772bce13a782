"""The stores that outlive a process: each row of a kill runs on all of them."""

from tests.support.stores import durable_place, new_place

__all__ = ["durable_place", "new_place"]
