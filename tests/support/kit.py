"""The contract suite with the amounts of the environment, and its figures among those of docs/guarantees.md."""

from __future__ import annotations

from typing import ClassVar

from persistence.contract import Contract
from tests.support.counting import SEED, amount, count


class Counted(Contract):
    """First among the bases of a store's test class. `kind` names the store in the table."""

    kind: ClassVar[str]
    seed = SEED
    kills: ClassVar[int] = amount("KIT_KILLS", 15)
    stops: ClassVar[int] = amount("KIT_STOPS", 8)

    def tally(self, what: str, *, runs: int, acknowledged: int, violations: int) -> None:
        layer = f"contract kit, {what}, {self.kind}"
        count(layer, runs=runs, acknowledged=acknowledged, violations=violations, seeds=f"{SEED}")
