"""The ordered lists: built by name, and refused when an order would not keep what it seems to promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from app.middleware import CHECKPOINT, Named
from app.session.errors import ConfigurationError
from containers.extensions import Catalogue, Kind, no_such
from containers.settings import OrderedList, Settings
from policy.checkpoint import CheckpointPolicy, Place
from policy.guard import REPEAT_UNKNOWN

C = TypeVar("C")

REGISTRATION = "registration"
IN_CODE = "set in the container"

PLACES: dict[str, Place] = {"stream_middleware": "request", "tool_middleware": "tool", "post_step": "step"}
"""The lists in which a checkpoint policy may stand, and where that puts its checkpoint."""


@dataclass(frozen=True, slots=True)
class Order(Generic[C]):
    """A list as it was built. `origin` says where its order comes from, `left_out` which things there are besides."""

    entries: tuple[Named[C], ...]
    origin: str = IN_CODE
    left_out: tuple[str, ...] = ()


def arrange(
    settings: Settings,
    things: Kind[C] | Catalogue[C],
    registration: Sequence[str],
    policy: CheckpointPolicy | None = None,
    checkpoint: C | None = None,
    shipped: Mapping[str, C] = MappingProxyType({}),
) -> Order[C]:
    """Things in the order of the settings; where they give none, in that of `registration`, and then the extras.

    Raises ConfigurationError: a line with the list, where its order comes from, all its faults and the known names.
    """
    name = things.setting if isinstance(things, Kind) else things.kind.setting
    section: OrderedList = getattr(settings, name)
    given = section.order
    catalogue = Catalogue(things, shipped, section.extra, given) if isinstance(things, Kind) else things
    origin = REGISTRATION if given is None else settings.source_of(f"{name}.order")
    order = [*registration, *catalogue.extra] if given is None else given
    there = catalogue.there if checkpoint is None else {**catalogue.there, CHECKPOINT: checkpoint}
    entries = tuple(Named(wanted, there[wanted]) for wanted in order if wanted in there)
    lines = [*_line(f"{name}.order ({origin})", order, find_faults(settings, name, entries, policy), catalogue, there)]
    if name == "post_step":
        setting = "post_step.after_checkpoint_ok"
        allowed = settings.post_step.after_checkpoint_ok
        lines += _line(f"{setting} ({settings.source_of(setting)})", allowed, [], catalogue, there)
    if lines:
        raise ConfigurationError("\n".join(lines))
    left_out = tuple(wanted for wanted in catalogue.there if wanted not in order)
    return Order(entries, origin, left_out)


def _line(
    told: str, names: Sequence[str], faults: Sequence[str], catalogue: Catalogue[C], there: Mapping[str, C]
) -> Iterator[str]:
    """The one line that tells what is wrong with a setting that names things, if anything is."""
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if missing or faults:
        known = sorted({*catalogue.known(), *there})
        faults = [no_such(catalogue.kind.word, name, known) for name in missing if name not in known] + [*faults]
        if faults:
            yield f"{told}: {'; '.join(faults)}; known names: {', '.join(known) or 'none'}"


def as_held(made: Order[C], held: tuple[Named[C], ...]) -> Order[C]:
    """The order that a service was given: the one that was made for it, unless the container gave it another."""
    return made if held == made.entries else Order(held)


def find_faults(
    settings: Settings, name: str, entries: Sequence[Named[Any]], policy: CheckpointPolicy | None
) -> list[str]:
    """What is wrong with the list of this name, whoever ordered it."""
    names = [entry.name for entry in entries]
    faults = [f"{wanted!r} is there twice" for wanted in dict.fromkeys(names) if names.count(wanted) > 1]
    if name == "guards" and settings.repeat_unknown == "refuse" and REPEAT_UNKNOWN not in names:
        faults.append(f"{REPEAT_UNKNOWN!r} is missing, and repeat_unknown = refuse needs it here")
    if policy is None:
        return faults
    if CHECKPOINT not in names:
        if PLACES[name] in policy.places:
            faults.append(f"{CHECKPOINT!r} is missing, and a {type(policy).__name__} needs it here")
        return faults
    if name == "post_step":
        faults += _lossy(entries[names.index(CHECKPOINT) + 1 :], settings.post_step.after_checkpoint_ok)
    return faults


def _lossy(below: Iterable[Named[Any]], allowed: Sequence[str]) -> Iterable[str]:
    for entry in below:
        if getattr(entry.call, "appends", ()) and entry.name not in allowed:
            yield (
                f"{entry.name!r} appends events and stands below {CHECKPOINT!r}, where a crash can lose them; move it "
                "up, or name it in post_step.after_checkpoint_ok"
            )
