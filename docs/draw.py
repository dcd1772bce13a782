"""Draws the grammar from its table, for docs/architecture.md: `python -m docs.draw` prints the Mermaid text."""

from collections import defaultdict

from app.session.grammar import TABLE


def grammar_picture() -> str:
    """A Mermaid state diagram: one arrow for each pair of states, with the event types that lead along it."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event_type, follow in TABLE.items():
        for state, successors in follow.items():
            for successor in successors:
                arrows[state, successor].append(event_type)
    lines = [f"    {state} --> {successor}: {', '.join(types)}" for (state, successor), types in arrows.items()]
    return "\n".join(["stateDiagram-v2", "    direction LR", "    [*] --> IDLE", *lines])


if __name__ == "__main__":
    print(grammar_picture())
