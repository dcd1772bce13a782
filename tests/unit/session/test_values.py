"""What the text of a value keeps and refuses. That the stores keep it too is for their contract to show."""

import datetime
import decimal
import enum
import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.session.errors import LimitExceeded, UnstorableValue
from app.session.values import JsonValue, ValueLimits, decode, display, encode
from tests.unit.session.exactly import exactly

PAIR = "\ud83d\ude00"  # two code units; the character itself is "😀"

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**900), 10**900)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(st.sampled_from('\ud83d\ude00😀a"\\\0/~[{]},: \u2028'))
)
keys = st.text(max_size=3) | st.text(st.sampled_from("\ud83d\ude00😀"), max_size=3)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))
limits = st.builds(ValueLimits, st.integers(0, 5), st.integers(1, 5))


def joined(value: object) -> object:
    """`value` with each split pair as its character."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, list):
        return [joined(item) for item in value]
    return {joined(key): joined(item) for key, item in value.items()} if isinstance(value, dict) else value


def twins(value: object) -> bool:
    """Whether some object in `value` has two keys that are one when joined."""
    if isinstance(value, dict):
        return len({joined(key) for key in value}) < len(value) or any(map(twins, value.values()))
    return isinstance(value, list) and any(map(twins, value))


# -- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *["\0", {"\0": "a\0b"}, "\udc81", "\ud83d", "\ude00", "\ude00\ud83d", {"\ud800": "\udfff"}, '"\\\n\u2028'],
        *[2**53, 2**53 + 1, 2**64, -(2**63) - 1, 10**639, 10**640, -(10**5000), 10**5000 + 1, 10**20_000 - 1],
        *[1, 1.0, 0, 0.0, -0.0, True, False, None, [1, 1.0, True], [0, 0.0, -0.0, False]],
        *[1e-7, 0.1 + 0.2, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e16, 1e22, 123456789012345680.0],
        {"b": 1, "a": 2, "": 3, "__proto__": {"constructor": 4}, "ß": 5, "ss": 6, "SS": 7, "é": 8, "e\u0301": 9},
        *["", [], {}, [[]], [{}], {"": {}}, [None, "", [], {}]],
    ],
    ids=lambda value: ascii(value)[:40] if not isinstance(value, int) else f"{value.bit_length()} bits",
)
def test_a_value_comes_back_with_its_types_signs_bits_and_order(value: object) -> None:
    text = encode(value)
    assert text.isascii()
    assert exactly(decode(text), value)
    assert encode(decode(text)) == text
    assert exactly(decode(display(value)), value)


@given(values)
def test_any_value_comes_back_and_has_one_text(value: JsonValue) -> None:
    if twins(value):
        with pytest.raises(UnstorableValue, match="twice"):
            encode(value)
        return
    text = encode(value)
    assert text.isascii()
    assert exactly(decode(text), joined(value))
    assert text == encode(joined(value)) == encode(decode(text)) == encode(decode(display(value)))


def test_a_pair_of_surrogates_is_the_character_it_encodes() -> None:
    assert (
        encode([PAIR, {PAIR: "x" + PAIR}])
        == encode(["😀", {"😀": "x😀"}])
        == ('["\\ud83d\\ude00",{"\\ud83d\\ude00":"x\\ud83d\\ude00"}]')
    )
    assert decode(encode(PAIR)) == "😀"


def test_the_text_is_what_it_was_at_the_time_of_the_call_and_each_reading_is_new() -> None:
    value: dict[str, list[int]] = {"a": [1]}
    text = encode(value)
    value["a"].append(2)
    first = decode(text)
    assert isinstance(first, dict)
    first["b"] = None
    assert decode(text) == {"a": [1]}


def test_what_is_shared_but_not_inside_itself_is_written_at_each_place() -> None:
    shared: list[object] = [{"x": []}]
    assert encode([shared, {"again": shared}, shared]) == '[[{"x":[]}],{"again":[{"x":[]}]},[{"x":[]}]]'


# -- what is refused -----------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Items(list[int]):
    pass


class Members(dict[str, int]):
    pass


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


NOT_VALUES = [
    *[(math.nan, "NaN"), (math.inf, "an infinity"), (-math.inf, "an infinity")],
    *[(b"x", "bytes"), ({1}, "set"), ((1,), "tuple"), (range(1), "range"), (1j, "complex"), (Rude(), "Rude")],
    *[(datetime.date(2024, 1, 1), "date"), (datetime.datetime(2024, 1, 1), "datetime"), (int, "type")],  # noqa: DTZ001
    *[(decimal.Decimal(1), "Decimal"), (Colour.RED, "Colour"), (Level.LOW, "Level, a subclass of int")],
    *[(Text("x"), "Text, a subclass of str"), (Number(1), "Number, a subclass of int")],
    *[(Real(1), "Real, a subclass of float"), (Items(), "Items, a subclass of list")],
    (Members(), "Members, a subclass of dict"),
]


@pytest.mark.parametrize(("bad", "kind"), NOT_VALUES, ids=lambda part: part if isinstance(part, str) else "")
def test_what_is_no_value_is_refused_by_place_and_kind(bad: object, kind: str) -> None:
    for value, path in [(bad, ""), ([bad], "/0"), ({"a": [0, {"b/c": {"~": bad}}], "z": bad}, "/a/1/b~1c/~0")]:
        with pytest.raises(UnstorableValue) as refused:
            encode(value)
        assert (refused.value.path, refused.value.kind) == (path, kind)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        *[(1, "its key 1 is no str but int"), (None, "its key None is no str but NoneType")],
        *[(True, "its key True is no str but bool"), (1.5, "its key 1.5 is no str but float")],
        *[(Text("x"), "its key 'x' is no str but Text, a subclass of str")],
        *[(Rude(), "its key <Rude instance> is no str but Rude"), ((), "its key () is no str but tuple")],
        *[(10**5000, "its key (not to be shown) is no str but int")],
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_key_that_is_no_string_is_refused_by_its_object_and_itself(key: object, kind: str) -> None:
    for value, path in [({key: 0}, ""), ([0, {"a": {"b": 1, key: 2}}], "/1/a")]:
        with pytest.raises(UnstorableValue) as refused:
            encode(value)
        assert (refused.value.path, refused.value.kind) == (path, kind)


@pytest.mark.parametrize(
    "keys", [("😀", PAIR), (PAIR, "😀"), ("😀" + PAIR, PAIR + "😀"), ("a", "x" + PAIR, "b", "x😀")], ids=ascii
)
def test_two_keys_that_are_one_character_by_character_are_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(UnstorableValue) as refused:
        encode([{"o": dict.fromkeys(keys)}])
    assert refused.value.path == "/0/o"
    assert "twice" in refused.value.kind


def test_keys_that_only_share_halves_of_a_character_are_different() -> None:
    value = dict.fromkeys(["\ud83d", "\ude00", "\ude00\ud83d", "😀"])
    assert exactly(decode(encode(value)), value)


def test_a_cycle_is_refused_where_it_closes_however_wide_it_is() -> None:
    wide: list[object] = []
    wide += [1, wide, wide]
    around: dict[str, object] = {}
    around["a"] = [{"b": around}]
    for value, path in [(wide, "/1"), (around, "/a/0/b"), ([0, around], "/1/a/0/b")]:
        with pytest.raises(UnstorableValue) as refused:
            encode(value)
        assert (refused.value.path, refused.value.kind) == (path, "a cycle, it is inside itself")
    wide.clear()
    around.clear()


def first_fault(value: object, limits: ValueLimits, path: str = "", depth: int = 0) -> tuple[object, ...] | None:
    """The same rules as a plain recursion: the place, or the limit, of the first fault."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**limits.max_integer_digits:
        return ("max_integer_digits", limits.max_integer_digits, len(str(abs(value))))
    if (isinstance(value, float) and not math.isfinite(value)) or isinstance(value, bytes):
        return (path,)
    if not isinstance(value, list | dict):
        return None
    if depth == limits.max_depth:
        return ("max_depth", limits.max_depth, depth + 1)
    for key, item in enumerate(value) if isinstance(value, list) else value.items():
        if isinstance(value, dict) and not isinstance(key, str):
            return (path,)
        place = f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if (fault := first_fault(item, limits, place, depth + 1)) is not None:
            return fault
    return None


faulty = st.recursive(
    st.integers(-200, 100_000) | st.sampled_from([math.nan, math.inf, b"", "é", None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("a/~é", max_size=2) | st.integers(0, 3), inner, max_size=3)
    ),
)


@given(faulty, limits)
def test_the_first_fault_from_left_to_right_is_told(value: object, limits: ValueLimits) -> None:
    told: tuple[object, ...] | None
    try:
        told = None if encode(value, limits) else ()
    except UnstorableValue as refused:
        told = (refused.path,)
    except LimitExceeded as exceeded:
        told = (exceeded.setting, exceeded.limit, exceeded.size)
    assert told == first_fault(value, limits)


# -- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e400", "-1e400", "[1, 1E+999]", "1" * 400 + ".0", "NaN", "Infinity", "[-Infinity]"])
def test_a_number_that_is_not_finite_is_no_json(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        decode(text)
    assert "is beyond all floats" in str(refused.value) or "is not JSON" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", " ", "[1,]", "{'a':1}", "01", "1 2", "nul", '"\n"', "\ufeff1", "[", '"', "\ud83d", '"\\\ud83d"']
)
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        decode(text)


def test_other_writers_may_use_spaces_escapes_equal_keys_and_other_forms_of_numbers() -> None:
    text = ' {"a" :1,\n\t"b":[1E2, -0.0e-0 ,1e-999],"\\u0061":{"c":"\\/\\u00e9é\\ud83d"}}\r '
    assert exactly(decode(text), {"a": {"c": "/éé\ud83d"}, "b": [100.0, -0.0, 0.0]})


@pytest.mark.parametrize("high", ["\ud83d", "\\ud83d", "\\uD83D"])
@pytest.mark.parametrize("low", ["\ude00", "\\ude00", "\\uDE00"])
def test_a_pair_is_joined_however_each_half_is_written(high: str, low: str) -> None:
    assert decode(f'{{"{high}{low}":1,"é😀":["\\\\{high}{low}"],"😀":2}}') == {"😀": 2, "é😀": ["\\😀"]}
    assert decode(f'["{low}{high}","\\\\{high}"]') == ["\ude00\ud83d", "\\\ud83d"]


@given(st.text(st.sampled_from('[]{}",:1\\u0 \ud83d\ude00é')) | values.map(json.dumps))
def test_reading_agrees_with_the_standard_library_on_what_is_json(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: json.loads(""))
    except json.JSONDecodeError:
        with pytest.raises(ValueError):
            decode(text)
    else:
        assert exactly(decode(text), joined(expected))


# -- what is shown -------------------------------------------------------------------------------


def test_a_shown_text_is_compact_and_keeps_characters_beyond_ascii() -> None:
    value = {"b": ["é", "日本", "😀", PAIR, "\ud83d", 1.0, -0.0, None, "\n\0\x7f\u2028"], "ä": True}
    assert display(value) == '{"b":["é","日本","😀","😀","\ud83d",1.0,-0.0,null,"\\n\\u0000\x7f\u2028"],"ä":true}'


@given(values)
def test_a_value_is_shown_the_same_before_and_after_it_was_stored(value: JsonValue) -> None:
    assume(not twins(value))
    assert display(value) == display(decode(encode(value)))
