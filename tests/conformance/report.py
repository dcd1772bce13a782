"""Which conformance scenarios the tests cite, and which not yet: `python3 dev.py conformance`."""

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (ROOT / "tests", ROOT / "persistence" / "contract")
IDS = Path(__file__).with_name("ids.txt")
CITATION = re.compile(r"\b[A-Z][A-Z0-9]{1,3}-[0-9]+[a-z]?\b")
NO_CITATIONS = {"ISO-8601", "SHA-1", "SHA-256", "UTF-8", "UTF-16", "UTF-32"}
"""What looks like the id of a scenario and is none."""


def areas() -> dict[str, list[str]]:
    """Every scenario's id, by area, both in the order of ids.txt."""
    found: dict[str, list[str]] = {}
    ids: list[str] = []
    for line in IDS.read_text().split("\n"):
        if line.startswith("#"):
            ids = found.setdefault(line.removeprefix("# "), [])
        elif line:
            ids.append(line)
    return found


def citations(*folders: Path) -> dict[str, list[str]]:
    """Each id cited in a Python file of the folders (by default, the tests), and where; not in this one."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for folder in folders or TESTS for path in folder.rglob("*.py")):
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            for cited in sorted(set(CITATION.findall(line)) - NO_CITATIONS):
                found.setdefault(cited, []).append(f"{path.name}:{number}")
    return found


def unknown(cited: dict[str, list[str]], known: Iterable[str]) -> list[str]:
    """One line for each citation of a scenario that does not exist."""
    known = set(known)
    return [f"{where[0]}: cites {name}, which is no scenario" for name, where in cited.items() if name not in known]


def short(ids: list[str]) -> str:
    """`["POL-01", "POL-02", "PG-09"]` as `POL-01 02 PG-09`: the area's name is said once."""
    series = groupby((name.split("-") for name in ids), key=lambda parts: parts[0])
    return " ".join(f"{prefix}-{' '.join(number for _, number in group)}" for prefix, group in series)


def table(known: dict[str, list[str]], cited: Iterable[str]) -> list[str]:
    """One line an area: covered of all, and the ids not cited yet. The last line is the sum."""
    cited = set(cited)
    width = max(len(area) for area in known)
    lines = []
    for area, ids in known.items():
        missing = [name for name in ids if name not in cited]
        line = f"{area:<{width}}  {len(ids) - len(missing):>3}/{len(ids):<3}"
        lines.append(f"{line}  not yet: {short(missing)}" if missing else line.rstrip())
    every = {name for ids in known.values() for name in ids}
    return [*lines, f"{'all':<{width}}  {len(every & cited):>3}/{len(every)}"]


def main() -> int:
    """Print the table; 1 when a test cites what does not exist."""
    known = areas()
    cited = citations()
    print("\n".join(table(known, cited)))
    faults = unknown(cited, (name for ids in known.values() for name in ids))
    print("\n".join(faults), end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
