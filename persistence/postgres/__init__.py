"""Sessions in a Postgres database: what deployments run on, for any number of processes on any number of machines."""

from persistence.postgres.backend import PostgresPersistence

__all__ = ["PostgresPersistence"]
