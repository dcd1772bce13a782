"""What is inside and outside of each checkpoint, told by the services as they were built and not by the settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from app.llm.vendor import VendorAdapter
from app.middleware import CHECKPOINT
from containers.application import Built
from containers.ordering import PLACES, Order
from policy.checkpoint import (
    CheckpointPolicy,
    EveryEventCheckpointPolicy,
    Place,
    SemanticCheckpointPolicy,
    TurnEndCheckpointPolicy,
)

WIDTH = 100
COLUMN = 17

HOOKS = {"stream_middleware": "llm/stream", "tool_middleware": "tools/execute", "post_step": "agent/post-step"}
INNERMOST = {"llm/stream": "the adapter", "tools/execute": "the tool's body"}

WHERE: dict[Place, str] = {
    "request": "before a request",
    "tool": "before a top-level tool body",
    "step": "after a step",
    "append": "after each group that the loop appends",
}
POLICIES: dict[type, str] = {
    SemanticCheckpointPolicy: "semantic",
    TurnEndCheckpointPolicy: "turn_end",
    EveryEventCheckpointPolicy: "every_event",
}
MARKS = {
    "before": "may act while the log is not durable yet",
    "checkpoint": "everything recorded so far is made durable here",
    "after": "acts when the log is durable",
    "inside": "durable when the checkpoint returns",
    "outside": "waits for the next flush",
    "nothing": "this policy makes no checkpoint here",
}


def explain_json(application: Built) -> dict[str, Any]:
    """What `explain_text` tells, as plain JSON values. A mark is one of MARKS."""
    limits, policy, orders = application.sessions.drain_limits, application.checkpoint, application.orders
    return {
        "backend": {"kind": application.persistence.kind, "durable": application.persistence.durable},
        "model": _model(application),
        "policy": {"kind": _kind(policy), "checkpoints": [place for place in WHERE if place in policy.places]},
        "write_behind_ms": limits.write_behind_ms,
        "flush_timeout_ms": limits.flush_timeout_ms,
        "final_flush": "turn/end",
        "lists": {hook: _list(orders[name], PLACES[name], policy) for name, hook in HOOKS.items()},
        "policies": _list(orders["policies"]),
        "guards": _list(orders["guards"]),
    }


def explain_text(application: Built) -> str:
    """One screen: backend, policy, window, final flush, and each list from top to bottom with its marks."""
    told = explain_json(application)
    lines = [line for label, text in _summary(told) for line in _wrapped(label, text)]
    for hook, entries in told["lists"].items():
        lines += ["", *_wrapped(hook, f"order: {entries['order']}")]
        if hook == "tools/execute":
            lines += [line for name in ("policies", "guards") for line in _wrapped(f"  {name}", _names(told[name]))]
        lines += [line for label, text in _entries(entries) for line in _wrapped(f"  {label}", text)]
        if hook in INNERMOST:
            lines += _wrapped("", f"→ {INNERMOST[hook]}")
    return "\n".join(lines)


def _model(application: Built) -> dict[str, str | None]:
    """Who is asked; for an adapter over HTTP also which one that is, and where."""
    config = application.agents.config
    told: dict[str, str | None] = {"adapter": config.adapter, "name": config.name}
    adapter = application.llm.adapter(config.adapter or "")
    return {**told, "sdk": adapter.sdk, "base_url": adapter.base_url} if isinstance(adapter, VendorAdapter) else told


def _kind(policy: CheckpointPolicy) -> str:
    own = type(policy)
    return POLICIES.get(own, f"{own.__module__}:{own.__qualname__}")


def _list(order: Order[Any], place: Place | None = None, policy: CheckpointPolicy | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"order": order.origin, "entries": [], "left_out": list(order.left_out)}
    names = [entry.name for entry in order.entries]
    is_made = policy is not None and place in policy.places and CHECKPOINT in names
    at = names.index(CHECKPOINT) if is_made else len(names)
    above, below = ("inside", "outside") if place == "step" else ("before", "after")
    if place == "step" and not is_made:
        above = "outside"
    for position, entry in enumerate(order.entries):
        appends = [kind.name for kind in getattr(entry.call, "appends", ())]
        row: dict[str, Any] = {"name": entry.name} | ({"appends": appends} if place == "step" else {})
        if place is not None and entry.name == CHECKPOINT:
            row["mark"] = "checkpoint" if is_made else "nothing"
        elif place is not None:
            row["mark"] = above if position < at else below
        told["entries"].append(row)
    return told


def _summary(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    backend, policy, window = told["backend"], told["policy"], told["write_behind_ms"]
    yield (
        "backend",
        f"{backend['kind']}, {'durable' if backend['durable'] else 'not durable: it ends with the process'}",
    )
    model = told["model"]
    asked = f", asked with {model['sdk']} at {model['base_url']}" if "sdk" in model else ""
    yield "model", f"{model['adapter']}:{model['name']}{asked}" if model["adapter"] else "none is set"
    places = ", ".join(WHERE[place] for place in policy["checkpoints"])
    yield "policy", f"{policy['kind']}: {f'flushes {places}' if places else 'no checkpoint lies inside the turn'}"
    yield (
        "write-behind",
        "off: only a flush writes"
        if window is None
        else f"what no flush has written after {window} ms is written then",
    )
    yield "final flush", f"after each turn/end, with every policy; a flush fails after {told['flush_timeout_ms']} ms"


def _entries(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in told["entries"]:
        mark, note = entry["mark"], MARKS[entry["mark"]]
        if mark == "checkpoint":
            yield mark, note
            continue
        if appends := entry.get("appends"):
            note = f"appends {', '.join(appends)}, {note}"
        elif mark in ("inside", "outside"):
            note = ""
        yield mark, f"{entry['name']}{f': {note}' if note else ''}"
    if told["left_out"]:
        yield "not in it", ", ".join(told["left_out"])


def _names(told: dict[str, Any]) -> str:
    names = ", ".join(entry["name"] for entry in told["entries"])
    left_out = f"; not in it: {', '.join(told['left_out'])}" if told["left_out"] else ""
    return f"{names}, order: {told['order']}{left_out}" if names else f"none{left_out}"


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{label:<{COLUMN}}", subsequent_indent=" " * COLUMN)
