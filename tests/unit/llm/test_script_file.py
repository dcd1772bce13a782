"""A script that is wrong is refused with its file, the place, and what may stand there."""

import json

import pytest

from app.llm import scripted
from app.llm.script_file import read
from app.messages import FAILURE_CODES
from app.session.errors import ConfigurationError
from tests.unit.llm.parts import request

PARTS = "a part is an object with one of the keys say, reason, call, fail, pause, cut, chunk"


def refusal(path):
    with pytest.raises(ConfigurationError) as refused:
        read(path)
    return str(refused.value)


def test_a_missing_file_is_told(tmp_path):
    path = tmp_path / "none.json"
    assert refusal(path) == f"cannot read the script '{path}': No such file or directory"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'{"steps": [\n  {"say" "a"}\n]}', "line 2 column 10: Expecting ':' delimiter"),
        (b"", "line 1 column 1: Expecting value"),
    ],
)
def test_bad_json_is_told_with_line_and_column(tmp_path, text, fault):
    path = tmp_path / "script.json"
    path.write_bytes(text)
    assert refusal(path) == f"the script '{path}' is not JSON, {fault}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b'{"steps": [{"pause": NaN}]}', "NaN is not JSON"),
    ],
)
def test_what_is_no_json_text_at_all_is_told(tmp_path, text, fault):
    path = tmp_path / "script.json"
    path.write_bytes(text)
    assert refusal(path) == f"the script '{path}' is not JSON: {fault}"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ([], "at its top: an object is due here, with the keys steps"),
        ({}, "at its top: the key steps is missing"),
        ({"steps": {}}, "at /steps: a list is due here"),
        ({"steps": [], "a/b~c": 1}, "at /a~1b~0c: unknown key; allowed are steps"),
        ({"steps": [{"say": "a"}, {"sya": "b"}]}, f"at /steps/1: {PARTS}"),
        ({"steps": [[{"say": "a"}, "b"]]}, f"at /steps/0/1: {PARTS}"),
        ({"steps": [{"say": 1}]}, "at /steps/0/say: a string is due here"),
        ({"steps": [{"say": "a", "call": "b"}]}, "at /steps/0/call: unknown key; allowed are say, chunks, every_s"),
        ({"steps": [{"say": "a", "chunks": 0}]}, "at /steps/0/chunks: an integer from 1 is due here"),
        ({"steps": [{"say": "a", "chunks": True}]}, "at /steps/0/chunks: an integer from 1 is due here"),
        ({"steps": [{"reason": "a", "every_s": -1}]}, "at /steps/0/every_s: a number of seconds is due here"),
        ({"steps": [{"call": "a", "arguments": []}]}, "at /steps/0/arguments: an object or a string is due here"),
        ({"steps": [{"pause": "1"}]}, "at /steps/0/pause: a number of seconds is due here"),
        ({"steps": [{"cut": False}]}, "at /steps/0/cut: true is due here"),
        (
            {"steps": [{"fail": "BUSY"}]},
            f"at /steps/0/fail: one of {', '.join(FAILURE_CODES)} is due here",
        ),
        ({"steps": [{"fail": "AUTH", "status": "401"}]}, "at /steps/0/status: an integer from 0 is due here"),
        ({"steps": [{"chunk": {"kind": "text_delta"}}]}, "at /steps/0/chunk: a text_delta chunk lacks index, text"),
        ({"steps": [{"when": {"contains": "a"}}]}, "at /steps/0: the key answer is missing"),
        (
            {"steps": [{"when": {"contain": "a"}, "answer": {"say": "b"}}]},
            "at /steps/0/when/contain: unknown key; allowed are contains, assistant_messages",
        ),
        ({"steps": [{"when": "a", "answer": {"say": "b"}}]}, "at /steps/0/when: an object is due here"),
        ({"steps": [{"repeat": 1, "answer": {"say": "b"}}]}, "at /steps/0/repeat: true or false is due here"),
        ({"steps": [{"answer": [{"say": "b"}, {}]}]}, f"at /steps/0/answer/1: {PARTS}"),
    ],
)
def test_a_malformed_step_is_told_with_its_place_and_what_is_allowed(tmp_path, script, fault):
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    assert refusal(path) == f"the script '{path}' is wrong {fault}"


def test_the_example_in_the_documentation_is_a_script(tmp_path):
    example = scripted.__doc__.split("::\n\n")[2].split("\n\nA step")[0]
    path = tmp_path / "script.json"
    path.write_text(example)
    steps = read(path)
    assert [(len(step.parts(request())), step.contains) for step in steps] == [(1, None), (2, None), (1, "go on")]
