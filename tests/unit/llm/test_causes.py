"""The text of an error of foreign code."""

from app.causes import describe


def caused(error, cause):
    error.__cause__ = cause
    return error


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_error_is_its_type_and_its_message():
    assert [describe(ValueError("no")), describe(ValueError())] == ["ValueError: no", "ValueError"]


def test_the_chain_of_causes_is_followed_to_its_end():
    """REC-12"""
    error = caused(ValueError("a"), caused(Mute(), OSError("c")))
    assert describe(error) == "ValueError: a, caused by Mute: (its message cannot be shown), caused by OSError: c"


def test_a_cause_that_says_the_same_is_said_once():
    assert describe(caused(OSError("a"), caused(OSError("a"), OSError("b")))) == "OSError: a, caused by OSError: b"


def test_what_was_being_handled_is_no_cause():
    error = ValueError("later")
    error.__context__ = KeyError("earlier")
    assert describe(error) == "ValueError: later"


def test_a_chain_that_closes_on_itself_ends():
    error = ValueError("a")
    caused(error, caused(OSError("b"), error))
    assert describe(error) == "ValueError: a, caused by OSError: b"


def test_a_group_shows_what_is_in_it():
    group = ExceptionGroup("two of two", [ValueError("a"), Mute()])
    assert describe(group) == (
        "ExceptionGroup: two of two (2 sub-exceptions) [ValueError: a; Mute: (its message cannot be shown)]"
    )


def test_a_long_text_is_cut():
    text = describe(ValueError("x" * 10_000))
    assert (len(text), text[-5:]) == (4_000, "xx...")
