"""What settings name: things that are shipped, found by a dotted path, or installed with an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from app.causes import describe
from app.middleware import CHECKPOINT
from app.session.errors import ConfigurationError

C = TypeVar("C")


class Unfit(Exception):
    """What was found is not of the kind that is needed; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[C]):
    """A kind of thing. `setting` is the table whose `extra` names such things, `word` what errors call one of them.

    `fit` gets a name and what was found for it; it returns what is used, or raises Unfit. `group` is that of entry
    points.
    """

    setting: str
    word: str
    group: str
    fit: Callable[[str, object], C]

    def choose(self, name: str, extra: Mapping[str, str], shipped: Iterable[str] = ()) -> C:
        """What `extra`, or else an installed package, has under this name; `shipped` are names that are taken.

        Nothing else is imported. Raises ConfigurationError naming the setting, the path and what failed.
        """
        check_free(self.setting, extra, shipped)
        if name in extra:
            path = extra[name]
            return self._load(name, lambda: _find(path), f"{self.setting}.extra.{name} = {path!r}")
        installed = self.installed()
        if name in installed:
            point = installed[name]
            return self._load(name, point.load, f"entry point {name!r} of {self.group} = {point.value!r}")
        known = sorted({*shipped, *extra, *installed})
        told = f"{self.setting}.kind: {no_such(self.word, name, known)}"
        raise ConfigurationError(f"{told}; known names: {', '.join(known)}")

    def installed(self) -> dict[str, EntryPoint]:
        """What installed packages offer, by name; none of it is imported."""
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, name: str, find: Callable[[], object], told: str) -> C:
        try:
            return self.fit(name, find())
        except (Unfit, ConfigurationError) as error:
            raise ConfigurationError(f"{told}: {error}") from error
        except (Exception, SystemExit) as error:  # foreign code is imported and made, and may raise anything
            raise ConfigurationError(f"{told}: it cannot be loaded: {describe(error)}") from error


def check_free(setting: str, extra: Iterable[str], shipped: Iterable[str]) -> None:
    """Raises ConfigurationError if a name of a table `extra` is taken by something shipped."""
    if taken := [name for name in extra if name in (*shipped, CHECKPOINT)]:
        told = ", ".join(f"{setting}.extra.{name}" for name in taken)
        raise ConfigurationError(f"{told}: the name is taken; choose another one")


def no_such(word: str, name: str, known: Iterable[str]) -> str:
    """What is told of a name that nothing has, with the name that was perhaps meant."""
    nearest = get_close_matches(name, sorted(known), n=1)
    return f"no {word} is named {name!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else "")


def _find(path: str) -> object:
    module_name, _, attribute = path.partition(":")
    if not (module_name and attribute):
        raise Unfit("a path is written package.module:attribute")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not
        raise Unfit(f"there is no module {error.name!r}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Unfit(f"{module_name!r} has no attribute {attribute!r}")
        found = getattr(found, part)
    return found


class Catalogue(Generic[C]):
    """Things of one kind by their names: `shipped`, every one of `extra`, and of what is installed that in `wanted`.

    Raises ConfigurationError with a line for each thing that cannot be had. A wanted name that nothing has is left out.
    """

    def __init__(
        self, kind: Kind[C], shipped: Mapping[str, C], extra: Mapping[str, str], wanted: Iterable[str] | None = None
    ) -> None:
        check_free(kind.setting, extra, shipped)
        self.kind = kind
        self.extra = tuple(extra)
        self.there = dict(shipped)
        elsewhere = [name for name in wanted or () if name not in (*shipped, *extra, CHECKPOINT)]
        installed = kind.installed() if elsewhere else {}
        problems = []
        for name in dict.fromkeys([*extra, *(name for name in elsewhere if name in installed)]):
            try:
                self.there[name] = kind.choose(name, extra)
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("\n".join(problems))

    def known(self) -> set[str]:
        """Every name that could be wanted; looks through what is installed."""
        return {*self.there, *self.kind.installed()}
