"""Foreign text made harmless: what a model or a tool wrote must not steer the terminal that it is shown on."""

import re

# C0, DEL and C1 controls; marks that turn the direction of text round; unpaired surrogates, which no encoding takes.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_OR_BREAK = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escaped(text: str) -> str:
    """The text with every control character but newline and tab written out, as `\\x1b` or `\\u202e`."""
    return _CONTROL.sub(_written, text)


def one_line(text: str) -> str:
    """The same, with whatever breaks a line or a column written out too."""
    return _CONTROL_OR_BREAK.sub(_written, text)


def fitted(text: str, width: int | None) -> str:
    """`one_line` of the text, cut to `width` columns of a terminal (the last is then an ellipsis); None: all of it."""
    if width is None:
        return one_line(text)
    line = one_line(text[: width + 1])  # no character gets shorter by being written out
    if len(text) <= width and line.isascii() and len(line) <= width:
        return line
    from rich.cells import cell_len, set_cell_size

    if len(text) <= width and cell_len(line) <= width:
        return line
    return set_cell_size(line, max(width - 1, 0)).rstrip() + "…"


def _written(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
