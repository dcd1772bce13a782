"""One line of text for an error of foreign code, with what caused it; made so that it cannot fail itself."""

MOST_CAUSES = 10
MOST_CHARACTERS = 4_000


def describe(error: BaseException) -> str:
    """`ConnectError: no route, caused by OSError: [Errno 113] ...`, following `raise ... from`.

    What happened to be handled when it was raised is no cause and is left out. Errors of a group stand in brackets.
    """
    said = [_one(error)]
    met = {id(error)}
    cause = error.__cause__
    while cause is not None and id(cause) not in met and len(said) < MOST_CAUSES:
        met.add(id(cause))
        if (text := _one(cause)) != said[-1]:  # some libraries raise anew what the one below said
            said.append(text)
        cause = cause.__cause__
    line = ", caused by ".join(said)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


def _one(error: BaseException) -> str:
    text = _said(error)
    if isinstance(error, BaseExceptionGroup):
        text += f" [{'; '.join(_said(inner) for inner in error.exceptions[:MOST_CAUSES])}]"
    return text


def _said(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # `__str__` is foreign code too
        return f"{name}: (its message cannot be shown)"
    return f"{name}: {text}" if text else name


def error_text(error: BaseException) -> str:
    """Only what the error itself says, or the name of its type if that is nothing: always a plain string."""
    try:
        return str.__str__(str(error)) or type(error).__name__
    except Exception:  # as above
        return type(error).__name__
