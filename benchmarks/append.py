"""What one `append` costs, for events of 1 KB, at the start of a log and far into it; the floor is one JSON encode."""

import json
import statistics
import time
from collections.abc import Callable

from app.session import events as ev
from app.session.batch import Header
from app.session.ownership import Epoch, Owner
from app.session.session import Session

NOTE = ev.ExtensionType("bench/note", ignorable=True)
BODY = {"text": "x" * 900, "numbers": list(range(10)), "nested": {"a": 1.5, "b": None, "c": [True, "y"]}}
COUNT = 2_000


def timed(call: Callable[[], object]) -> float:
    """Seconds for one call: the median over COUNT."""
    times = []
    for _ in range(COUNT):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def session_of(length: int) -> Session:
    header = Header.make("bench", 0)
    session = Session(header, Epoch.first(Owner("bench")), time.monotonic_ns, extensions={NOTE.name: NOTE})
    for _ in range(length):
        session.append(ev.Extension(NOTE, {"n": 1}))
    return session


def main() -> None:
    floor = timed(lambda: json.dumps(BODY))
    print(f"append of one event of {len(json.dumps(BODY))} bytes, median of {COUNT}")
    print(f"  {'one json.dumps of it (floor)':34} {floor * 1e6:7.1f} us")
    for length in (10, 10_000, 100_000):
        session = session_of(length)
        cost = timed(lambda session=session: session.append(ev.Extension(NOTE, BODY)))  # type: ignore[misc]
        print(f"  {f'append to a log of {length:,} events':34} {cost * 1e6:7.1f} us   {cost / floor:5.1f} x the floor")


if __name__ == "__main__":
    main()
