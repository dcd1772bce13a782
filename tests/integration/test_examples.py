"""What README and the examples show is what happens."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What a command printed on standard output; it has to succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BEFOREHAND_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tool_of_the_readme_is_the_example_and_works(tmp_path):
    shown = re.search(r"# weather\.py\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    (tmp_path / "weather.py").write_text(shown[1])
    script = str(ROOT / "examples" / "weather.json")
    prompt = ("-m", "app", "run", "How is the weather in Hamburg?", "--session", "w", "--model", f"script:{script}")
    answer = run(*prompt, cwd=tmp_path, BEFOREHAND_TOOLS__EXTRA__WEATHER="weather:weather")
    assert answer == "It is sunny in Hamburg.\n"
    timeline = run("-m", "app", "show", "w", cwd=tmp_path)
    assert "call-1 ok: sunny in Hamburg" in timeline


def test_the_listener_of_the_readme_stands_where_the_readme_says(tmp_path):
    settings = {
        "BEFOREHAND_POST_STEP__EXTRA__AUDIT": "examples.audit:Audit",
        "BEFOREHAND_POST_STEP__ORDER": "usage,audit,checkpoint,title",
    }
    explained = run("-m", "app", "explain", cwd=tmp_path, **settings)
    shown = re.search(r"```text\n(agent/post-step.*?)\n```", README, re.DOTALL)
    assert shown is not None
    assert explained.rstrip().endswith(shown[1])
    script = str(ROOT / "examples" / "weather.json")
    prompt = ("-m", "app", "run", "How is the weather?", "--session", "w", "--model", f"script:{script}")
    run(*prompt, cwd=tmp_path, BEFOREHAND_TOOLS__EXTRA__WEATHER="examples.weather:weather", **settings)
    timeline = run("-m", "app", "show", "w", cwd=tmp_path)
    lines = [line.split()[2] for line in timeline.splitlines() if re.match(r" +\d+ ", line)]
    audited = lines.index("audit/calls")
    assert lines[audited - 1 : audited + 1] == ["tool/result", "audit/calls"]


@pytest.mark.parametrize("name", ["cancel", "guard", "listeners", "reconcile"])
def test_an_example_prints_what_it_says_that_it_prints(tmp_path, name):
    _, told = (ROOT / "examples" / f"{name}.py").read_text().split('"""')[1].split(" prints::\n\n")
    printed = run("-W", "error", "-m", f"examples.{name}", cwd=tmp_path, EXAMPLE_PLACE=str(tmp_path))
    assert printed == textwrap.dedent(told)


@pytest.mark.parametrize("options", [(), ("--postgres",)], ids=["sqlite", "postgres"])
def test_the_demo_tells_the_story_that_the_readme_tells(options: tuple[str, ...]):
    """Every line of it is read from what happened, so the counts are."""
    story = run("-m", "examples.demo", *options, cwd=ROOT)
    counted = re.findall(r"bodies entered[a-z ]*: (.*)", story)
    assert counted == ["publish 1, notify 0", "publish 1, notify 1", "publish 0, notify 0"]
    assert story.count("SIGKILL") == 2
    told = re.findall(r'^  \{"tool": "(\w+)", "text": "(.*)"\}$', story, re.MULTILINE)
    assert [(name, text[:60]) for name, text in told] == [
        ("publish", "Error: tool call was started, but its result was not recorde"),
        ("notify", "Error: tool call was never started; call the tool again if i"),
    ]
    assert re.findall(r"\+ \d+ tool/result  (\w+ \w+);", story) == [
        "publish TOOL_OUTCOME_UNKNOWN",
        "notify TOOL_NOT_STARTED",
    ]
    left_behind = story.split("2. Killed")[1]
    assert "tool/call           publish" not in left_behind
