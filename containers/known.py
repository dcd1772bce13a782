"""The names that settings have, and what is told of a name or a value that is wrong: never the value itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

PREFIX = "BEFOREHAND_"
CONFIG = "BEFOREHAND_CONFIG"
"""The variable that names a file of settings; it is no setting itself."""
SECRET = "secret file "  # noqa: S105  # how the source of a value out of the secrets directory begins


def variable(name: str) -> str:
    """The environment variable of a setting: `post_step.order` is BEFOREHAND_POST_STEP__ORDER."""
    return PREFIX + name.replace(".", "__").upper()


class Known:
    """The settings of a model by their dotted names. `takes` says of each which values it takes.

    `tables` are those whose value is a table with any keys; `inside` are, of some of them, the settings of each entry.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self.takes: dict[str, str] = {}
        self.tables: set[str] = set()
        self.inside: dict[str, Known] = {}
        self._walk(model, "")

    def _walk(self, model: type[BaseModel], prefix: str) -> None:
        for field, declared in model.model_fields.items():
            name, kind = prefix + field, declared.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                self._walk(kind, f"{name}.")
                continue
            self.takes[name] = _description(declared)
            if get_origin(kind) is dict:
                self.tables.add(name)
                entry = get_args(kind)[1]
                if isinstance(entry, type) and issubclass(entry, BaseModel):
                    self.inside[name] = Known(entry)

    def misspelt(self, variables: Iterable[str], what: str = "") -> Iterator[str]:
        """A line for each variable, or file of that name, that names no setting; `what` goes before the name."""
        names = {CONFIG, *(variable(name) for name in self.takes.keys() - self.tables)}
        beginnings = tuple(f"{variable(name)}__" for name in self.tables)
        known = [*names, *(f"{beginning}NAME" for beginning in beginnings)]
        for name in variables:
            if name not in names and not (name.startswith(beginnings) and not name.endswith("__")):
                yield f"{what}{name}: names no setting; did you mean {_nearest(name, known)}?"

    def explain(self, error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
        """A line for each value that is wrong: the setting, where it was set, what it takes."""
        for problem in error.errors(include_input=False, include_url=False, include_context=False):
            place = ".".join(map(str, problem["loc"]))
            if not place:
                yield str(problem["msg"]).removeprefix("Value error, ")
                continue
            if (line := self._explain_inside(problem["loc"], origins)) is not None:
                yield line
                continue
            setting = next((name for name in self.takes if f"{place}.".startswith(f"{name}.")), None)
            name = place if setting is None or setting in self.tables else setting
            inside = (where for key, where in origins.items() if key.startswith(f"{name}."))
            origin = origins.get(name) or next(inside, "")
            told = f"{name} ({origin})" if origin else name
            if (setting is None or place in self.tables) and origin.startswith((PREFIX, SECRET)):
                continue  # the variable's own name is wrong: `misspelt` tells it
            if setting is not None:
                yield f"{told}: takes {self.takes[setting]}"
            else:
                is_table = problem["type"] != "extra_forbidden"
                what = "is a table of settings" if is_table else "names no setting"
                yield f"{told}: {what}; did you mean {_nearest(place, self.takes)}?"

    def _explain_inside(self, place: tuple[int | str, ...], origins: Mapping[str, str]) -> str | None:
        """The line for a value in an entry of a table of settings; None for any other."""
        dotted = ".".join(map(str, place))
        table = next((table for table in self.inside if dotted.startswith(f"{table}.")), "")
        rest = place[table.count(".") + 1 :]
        if not table or len(rest) < 2:
            return None
        entry = f"{table}.{rest[0]}"
        known, name = self.inside[table], ".".join(map(str, rest[1:]))
        setting = next((each for each in known.takes if f"{name}.".startswith(f"{each}.")), None)
        full = f"{entry}.{setting or name}"
        origin = next((where for key, where in origins.items() if f"{key}.".startswith(f"{full}.")), "")
        told = f"{full} ({origin})" if origin else full
        if setting is None:
            return f"{told}: names no setting; did you mean {entry}.{_nearest(name, known.takes)}?"
        return f"{told}: takes {known.takes[setting]}"


def _description(declared: FieldInfo) -> str:
    """What the field takes, as it says itself or, for `Count | None`, as its kind says."""
    kinds = (part for option in get_args(declared.annotation) for part in get_args(option))
    inside = (kind.description for kind in kinds if isinstance(kind, FieldInfo) and kind.description)
    return declared.description or next(inside, "")


def _nearest(name: str, known: Iterable[str]) -> str:
    return get_close_matches(name, sorted(known), n=1, cutoff=0)[0]
