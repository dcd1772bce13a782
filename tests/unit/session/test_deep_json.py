"""Depth and length: what the C codec cannot do is done all the same, up to a limit of our own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from json import JSONDecodeError, JSONDecoder
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.session import deep_json
from app.session.errors import LimitExceeded, UnstorableValue
from app.session.values import DEFAULT, JsonValue, ValueLimits, decode, display, encode
from tests.unit.session.exactly import exactly, nested
from tests.unit.session.test_values import joined, twins, values

DIGITS = 20_000
LEVELS = 200_000


def refusal(call, *arguments) -> tuple[str, int, int | None]:
    with pytest.raises(LimitExceeded) as exceeded:
        call(*arguments)
    return exceeded.value.setting, exceeded.value.limit, exceeded.value.size


def outcome(read: Callable[[], JsonValue]) -> str:
    try:
        return repr(read())
    except ValueError:  # its words differ between versions of Python
        return "refused"


# -- depth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1, 99, 100, 101, 102, 990, 1000, 5000, 100_000, LEVELS])
def test_a_value_comes_back_from_any_depth_up_to_the_limit(levels: int) -> None:
    value = nested(levels)
    text = encode(value)
    assert deep_json.nesting(text) == levels
    assert exactly(decode(text, DEFAULT), value)
    assert exactly(decode(text), value)
    assert display(value) == text


def test_one_level_more_than_the_limit_is_refused_in_both_directions() -> None:
    value = nested(LEVELS + 1)
    assert refusal(encode, value) == ("max_depth", LEVELS, LEVELS + 1)
    assert refusal(decode, "[" * (LEVELS + 1) + "]" * (LEVELS + 1), DEFAULT) == ("max_depth", LEVELS, LEVELS + 1)
    text = encode(value, ValueLimits(max_depth=LEVELS + 1))
    assert exactly(decode(text), value)


@pytest.mark.parametrize("limit", [0, 1, 2, 99, 100, 101, 150])
def test_a_small_limit_of_depth_is_kept_to_the_level(limit: int) -> None:
    limits = ValueLimits(max_depth=limit)
    at, over = ([], nested(1)) if not limit else (nested(limit), nested(limit + 1))
    if limit:
        assert exactly(decode(encode(at, limits), limits), at)
    assert encode("[[[", limits) == '"[[["'
    assert refusal(encode, over, limits) == ("max_depth", limit, limit + 1)
    assert refusal(decode, encode(over), limits) == ("max_depth", limit, limit + 1)


def test_brackets_in_strings_are_no_depth() -> None:
    value = {"\\": "[" * 300, '"[': ['\\"[{' * 200, "\\\\"], "é[": "]" * 5}
    assert deep_json.nesting(encode(value)) == 2
    assert exactly(decode(encode(value), ValueLimits(max_depth=2)), value)


def test_the_place_of_a_bad_value_is_found_at_any_depth() -> None:
    value: object = b""
    for _ in range(50_000):
        value = [{"k": value}]
    with pytest.raises(UnstorableValue) as refused:
        encode(value)
    assert refused.value.path == "/0/k" * 50_000
    assert refused.value.kind == "bytes"


def test_a_caller_near_the_end_of_the_stack_gets_the_same_text() -> None:
    value = nested(90)
    text = encode(value)
    answers: list[tuple[str, str]] = []

    def at_the_end() -> None:
        try:
            at_the_end()
        except RecursionError:
            return
        if len(answers) < 60:  # from the innermost frame outwards: first it fails, then it works by the stack's end
            try:
                answers.append((encode(value), encode(decode(text))))
            except RecursionError:
                answers.append(("", ""))

    at_the_end()
    worked = [answer for answer in answers if answer != ("", "")]
    assert set(worked) == {(text, text)}
    assert len(worked) > 20, "with 90 levels of recursion it could not have worked so near to the end"


@pytest.mark.parametrize(
    "end", ["]", "}", "1 2", ",", '"', "nul", "NaN", "1e400", '{"a"}', '{"a":}', "{1:2}", "[1,]", '{"a":1,}', "[}"]
)
def test_a_deep_text_that_is_no_json_is_refused_as_a_shallow_one_is(end: str) -> None:
    for depth in (1, 150):
        with pytest.raises(ValueError) as refused:
            decode("[" * depth + end + "]" * depth)
        assert type(refused.value) is (ValueError if end in ("NaN", "1e400") else JSONDecodeError)


# -- the careful codec is the same codec ---------------------------------------------------------


@given(values)
def test_the_careful_writer_writes_what_the_fast_one_writes(value: JsonValue) -> None:
    assume(not twins(value))
    careful = deep_json.write(joined(value), json.encoder.encode_basestring_ascii, DEFAULT)
    assert careful == encode(value)
    assert exactly(deep_json.parse(careful, JSONDecoder()), decode(careful))


@given(st.text(st.sampled_from('[]{}",:1\\e. \n')) | values.map(lambda value: json.dumps(value, indent=1)))
def test_the_careful_reader_takes_and_refuses_what_the_fast_one_does(text: str) -> None:
    assert outcome(lambda: deep_json.parse(text, JSONDecoder())) == outcome(lambda: JSONDecoder().decode(text))


# -- long integers -------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [599, 600, 601, 639, 640, 641, 4300, 4301, 5000, 19_999, DIGITS])
def test_an_integer_comes_back_whatever_its_length(digits: int) -> None:
    least, most = 10 ** (digits - 1), 10**digits - 1
    for number, text in [
        (least, "1" + "0" * (digits - 1)),
        (most, "9" * digits),
        (least + 7, "1" + "0" * (digits - 2) + "7"),
    ]:
        assert encode([number, -number], DEFAULT) == f"[{text},-{text}]"
        assert exactly(decode(f"[{text},-{text}]", DEFAULT), [number, -number])
        assert display({"n": number}) == f'{{"n":{text}}}'


def test_one_digit_more_than_the_limit_is_refused_in_both_directions() -> None:
    for number in (10**DIGITS, -(10**DIGITS), 9 * 10**DIGITS):
        assert refusal(encode, {"n": [number]}) == ("max_integer_digits", DIGITS, DIGITS + 1)
        assert refusal(decode, "1" + "0" * DIGITS, DEFAULT) == ("max_integer_digits", DIGITS, DIGITS + 1)
    text = encode(10**DIGITS, ValueLimits(max_integer_digits=DIGITS + 1))
    assert text == "1" + "0" * DIGITS == display(10**DIGITS)
    assert decode(text) == 10**DIGITS


def test_a_digit_string_of_a_megabyte_is_refused_and_a_string_of_digits_is_not() -> None:
    digits = "7" * 1_000_000
    assert refusal(decode, f'{{"n":-{digits}}}', DEFAULT) == ("max_integer_digits", DIGITS, 1_000_000)
    assert refusal(encode, [1 << 3_321_928]) == ("max_integer_digits", DIGITS, 1_000_000)
    assert decode(f'["{digits}",0.{digits}]', DEFAULT) == [digits, 7 / 9]


@pytest.mark.parametrize("limit", [1, 2, 5, 599, 600, 601, 1024])
def test_a_small_limit_of_digits_is_kept_to_the_digit(limit: int) -> None:
    limits = ValueLimits(max_integer_digits=limit)
    for number in (0, 1 - 10**limit, 10**limit - 1):
        assert decode(encode(number, limits), limits) == number
    for number in (10**limit, -(10**limit)):
        assert refusal(encode, [number], limits) == ("max_integer_digits", limit, limit + 1)
        assert refusal(decode, encode([number]), limits) == ("max_integer_digits", limit, limit + 1)


@given(st.integers(0, 5000), st.integers(-2, 2), st.sampled_from([1, -1]))
def test_integers_beside_powers_of_ten_are_exact(power: int, beside: int, sign: int) -> None:
    number = sign * (10**power + beside)
    text = encode(number)
    value = 0
    for digit in text.removeprefix("-"):
        value = value * 10 + int(digit)
    assert (-value if text.startswith("-") else value) == number == decode(text)


def test_long_integers_need_no_more_than_the_lowest_digit_limit() -> None:
    told = child(
        "for n in (640, 641, 690, 1300, 9000): assert decode(encode([-(10**n)])) == [-(10**n)]\n"
        "print(sys.get_int_max_str_digits())",
        PYTHONINTMAXSTRDIGITS="640",
    )
    assert told == "640\n"


def test_depth_does_not_rest_on_the_recursion_limit_nor_on_the_stack_of_the_thread() -> None:
    told = child(
        "sys.setrecursionlimit(1_000_000)\n"
        "threading.stack_size(1024 * 1024)\n"
        "text = '[' * 100_000 + ']' * 100_000\n"
        "thread = threading.Thread(target=lambda: print(display(decode(text)) == encode(decode(text)) == text))\n"
        "thread.start()\n"
        "thread.join()"
    )
    assert told == "True\n"


def child(code: str, **environment: str) -> str:
    """What `code` printed in an interpreter of its own: it may be one that crashes."""
    lines = "import sys, threading\nfrom app.session.values import decode, display, encode\n" + code
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", lines],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout
