"""Which server is the one: after a failover the old primary may come back, and takes writes that nobody will keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says it is. Copies share the system identifier; each promotion begins a timeline, a higher one."""

    system: int
    timeline: int


@dataclass(eq=False, slots=True)
class Lineage:
    """What was learned of the servers that were used: an older one is never used again."""

    newest: Identity | None = None

    def refusal(self, found: Identity) -> str | None:
        """Why a server that takes writes is not to be used, and what to do; None if it may be."""
        newest = self.newest
        if newest is None:
            return None
        if found.system != newest.system:
            return (
                f"it is no copy of the server used so far: its system identifier is {found.system}, not "
                f"{newest.system}; correct the DSN, or restart this process if the data were moved on purpose"
            )
        if found.timeline < newest.timeline:
            return (
                f"it is an old primary that came back, on timeline {found.timeline} where {newest.timeline} is known; "
                "stop it, then let it follow the new one (pg_rewind, or a new base backup)"
            )
        return None
