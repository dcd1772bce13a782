"""What every tool has to declare rightly, whoever made it: checked when it is made and when it joins a set."""

import inspect
import math
import re
from typing import get_args

from app.session.errors import ConfigurationError
from app.tools.types import Effects

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_declaration(name: object, effects: object, timeout_s: object, reconcile: object) -> None:
    """Raises ConfigurationError, naming the tool and what is wrong with it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"tool {name!r}: a name is 1 to 64 of A-Z a-z 0-9 _ -")
    if effects not in get_args(Effects):
        raise ConfigurationError(f"tool {name!r}: effects is one of {', '.join(get_args(Effects))}, not {effects!r}")
    if timeout_s is not None and not (
        isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and 0 < timeout_s < math.inf
    ):
        raise ConfigurationError(f"tool {name!r}: timeout_s is a number of seconds above 0, or None, not {timeout_s!r}")
    if reconcile is not None and (not callable(reconcile) or inspect.isclass(reconcile)):
        raise ConfigurationError(f"tool {name!r}: reconcile is an async function of the recorded call, or None")
