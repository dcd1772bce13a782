"""What every store has to do, as tests: a backend of yours passes them, or it is none.

    class TestMine(PersistenceContract):
        durable = True

        def make_store(self, folder: Path) -> SessionPersistence:
            return MyPersistence(folder / "mine")

        def failing(self, store: SessionPersistence, point: FaultPoint) -> AbstractContextManager[None]:
            return my_way_of_breaking(store, point)

They need pytest and pytest-asyncio, in either of its modes, and nothing else of this project's tests. Take all of them,
not a topic: only together do they say what the runtime relies on.

The chapters crash, fence and durability start processes, each of which makes the store as this class does. Where there
can be none, as with a store in memory, `in_one_process` says why, and they are reported as not run.
"""

import pytest

_TOPICS = (
    "appending",
    "atomicity",
    "base",
    "concurrency",
    "crash",
    "deleting",
    "durability",
    "fence",
    "identifiers",
    "local_claims",
    "ownership",
    "processes",
    "reading",
    "repairing",
    "round_trip",
    "samples",
    "telling",
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

# Only now, or a failing assertion would not show its values.
from persistence.contract.appending import AppendingContract  # noqa: E402
from persistence.contract.atomicity import AtomicityContract  # noqa: E402
from persistence.contract.base import Contract, FaultPoint, Stores  # noqa: E402
from persistence.contract.concurrency import ConcurrencyContract  # noqa: E402
from persistence.contract.crash import CrashContract  # noqa: E402
from persistence.contract.deleting import DeletingContract  # noqa: E402
from persistence.contract.durability import DurabilityContract  # noqa: E402
from persistence.contract.fence import FenceContract  # noqa: E402
from persistence.contract.identifiers import IdentifiersContract  # noqa: E402
from persistence.contract.local_claims import LocalClaimsContract  # noqa: E402
from persistence.contract.ownership import OwnershipContract  # noqa: E402
from persistence.contract.reading import ReadingContract  # noqa: E402
from persistence.contract.repairing import RepairingContract  # noqa: E402
from persistence.contract.round_trip import RoundTripContract  # noqa: E402
from persistence.contract.samples import Writer  # noqa: E402

__all__ = ["Contract", "FaultPoint", "LocalClaimsContract", "PersistenceContract", "Stores", "Writer"]


class PersistenceContract(
    RoundTripContract,
    AppendingContract,
    AtomicityContract,
    OwnershipContract,
    RepairingContract,
    ReadingContract,
    DeletingContract,
    IdentifiersContract,
    ConcurrencyContract,
    CrashContract,
    FenceContract,
    DurabilityContract,
):
    """Every topic. Stores whose claims end with their owner's process on this machine add LocalClaimsContract."""
