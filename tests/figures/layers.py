"""What is broken on purpose, layer by layer: the list that `dev.py crash` and `dev.py soak` run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Layer:
    """A command that breaks one kind of thing: a module, with `{first}` and `{last}` where it takes the seeds it plays.

    `crash` are the amounts (tests/support/counting.py) of the one portion in `dev.py crash`, `soak` those of each of
    the `portions` in `dev.py soak`; a portion takes the next `seeds` seeds.
    """

    name: str
    command: tuple[str, ...]
    crash: Mapping[str, int] = field(default_factory=dict)
    soak: Mapping[str, int] = field(default_factory=dict)
    portions: int = 0
    seeds: int = 1


def _tests(*paths: str) -> tuple[str, ...]:
    return ("pytest", "-q", "-p", "no:cacheprovider", "--timeout=1800", *(f"tests/{path}" for path in paths))


def _in(directory: str, names: str) -> tuple[str, ...]:
    return _tests(*(f"{directory}/test_{name}.py" for name in names.split()))


_PROCESSES = "boundaries claims crash_points killed_recovering torn_writes write_points"
_SERVERS = """
claims connections crowded failover frames group_commit migrations outcomes partitions refusals restarts time_zones
turns
"""

LAYERS = (
    Layer("worlds", ("tests.simulation", "--seeds", "{first}:{last}"), portions=40, seeds=5_000),
    Layer("worlds, every step", ("tests.simulation", "--seeds", "0:0", "--kills", "10")),
    Layer(
        "agents",
        _tests("conformance/test_state_machine.py", "conformance/test_stopped_anywhere.py", "simulation"),
        soak={"EXAMPLES": 300},
        portions=3,
    ),
    Layer("processes", _in("crash", _PROCESSES)),
    Layer("failpoints", _in("crash", "failpoints"), crash={"FAILPOINT_SEEDS": 3}, portions=20),
    Layer("workers", _in("crash", "workers"), soak={"WORKER_ROUNDS": 200}, portions=3),
    Layer("power", _in("crash", "power_cuts"), soak={"POWER_CUTS": 50}, portions=2),
    Layer("disks", _in("crash", "failing_calls")),
    Layer("servers", _in("integration/postgres", _SERVERS)),
    Layer(
        "dying servers",
        _in("integration/postgres", "crashing_servers promotions full_disk"),
        crash={"RESTARTS": 10, "PROMOTIONS": 3},
        soak={"RESTARTS": 100, "PROMOTIONS": 10, "POOLER_KILLS": 20, "FULL_DISKS": 5},
        portions=10,
    ),
    Layer("patroni", _in("integration/postgres", "patroni"), soak={"FAILOVERS": 5, "PARTITIONS": 5}, portions=2),
    Layer("contracts", _tests("contracts")),
    Layer("mutants", ("tests.mutants",)),
)

PATHS = tuple(word for layer in LAYERS for word in layer.command if word.startswith("tests/"))
"""The tests that are run by layers; those of the directories named here, and of no other, break something."""
