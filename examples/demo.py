"""Shows the main job: an agent killed in the middle of a tool goes on, and its model is told the truth.

    python3 dev.py demo               on SQLite
    python3 dev.py demo --postgres    on a Postgres server that is made for it and thrown away
    python3 dev.py demo --real-model  with a real, very small model that runs here, instead of a script

Everything printed is read from what happened: the log that was left behind, the files that the tools changed, and what
the model was sent. The child process is an ordinary `beforehand run`; it is killed with SIGKILL.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

NOTES = {
    "harbour.md": "Two ships wait outside the harbour for the storm to pass.\n",
    "weather.md": "The storm reaches the coast at noon and passes tonight.\n",
}
PARTS = "examples.demo_parts"
PROMPT = "Read the notes, write a report, publish it, and tell the harbour master."


class Stage:
    """A directory with notes and a store, and the files in which tools and model keep score."""

    def __init__(self, root: Path, store: Mapping[str, str]) -> None:
        self.workspace = root / "notes"
        self.score, self.world, self.requests = root / "score", root / "world", root / "requests"
        self.workspace.mkdir(parents=True)
        for name, text in NOTES.items():
            (self.workspace / name).write_text(text)
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("BEFOREHAND_")},
            "BEFOREHAND_PERSISTENCE__PATH": str(root / "sessions.db"),
            "DEMO_STORE": store.get("BEFOREHAND_PERSISTENCE__KIND", "sqlite"),
            **store,
            "BEFOREHAND_TOOLS__EXTRA__PUBLISH": f"{PARTS}:publish",
            "BEFOREHAND_TOOLS__EXTRA__NOTIFY": f"{PARTS}:notify",
            "BEFOREHAND_TOOLS__EXTRA__LOOK_UP_PUBLISHED": f"{PARTS}:look_up_published",
            "BEFOREHAND_WORKSPACE": str(self.workspace),
            "DEMO_SCORE": str(self.score),
            "DEMO_WORLD": str(self.world),
            "DEMO_REQUESTS": str(self.requests),
        }

    def beforehand(self, *words: str) -> str:
        """Run the command to its end; what it printed, both streams."""
        return subprocess.run(
            [sys.executable, "-m", "app", *words],
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        ).stdout

    def run_and_kill(self, where: str, *words: str, **environment: str) -> int:
        """Run the command, wait until it says that it is at `where`, send SIGKILL; its exit status."""
        reached, tell = os.pipe()
        never, hold = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-m", "app", *words],
            env=self._environment
            | {"DEMO_HOLD": where, "DEMO_REACHED": str(tell), "DEMO_NEVER": str(never)}
            | environment,
            pass_fds=(tell, never),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(tell)
        os.close(never)
        point = os.read(reached, 100).decode()
        child.kill()
        output, _ = child.communicate()
        os.close(reached)
        os.close(hold)
        if point != where:
            raise SystemExit(f"the child never came to {where!r}; it printed:\n{output}")
        return child.returncode

    def bodies(self) -> str:
        """How often each body was entered, in the bodies' own words."""
        entered = Counter(self.score.read_text().split() if self.score.exists() else [])
        return f"publish {entered['publish']}, notify {entered['notify']}"

    def last_request(self) -> list[dict[str, str]]:
        """The messages of the last request that the model was sent, as they were sent."""
        messages: list[dict[str, str]] = json.loads(self.requests.read_text().splitlines()[-1])
        return messages

    def request_after(self, count: int) -> list[dict[str, str]]:
        """The messages of the first request after the first `count`."""
        messages: list[dict[str, str]] = json.loads(self.requests.read_text().splitlines()[count])
        return messages


def killed_after_the_effect(stage: Stage, who: str = "DemoModel") -> None:
    heading("1. Killed inside a tool, after its effect, before its result")
    model = ("--model", f"python:{PARTS}:{who}")
    status = stage.run_and_kill("after-effect", "run", PROMPT, "--session", "demo", *model)
    say(f"the child ran inside the body of `publish` and was killed: {signal.Signals(-status).name}")
    say(f"what the world shows: {stage.world.read_text().strip()}")
    say(f"bodies entered so far: {stage.bodies()}")
    heading("   The log that it left behind: beforehand show demo")
    print(stage.beforehand("show", "demo"))
    asked = len(stage.requests.read_text().splitlines())
    heading('   Going on: beforehand resume demo "go on" --wait')
    print(stage.beforehand("resume", "demo", "go on", "--wait", *model))
    heading("   What the model was told, word for word, in the first request after the crash")
    for message in stage.request_after(asked)[-3:]:
        say(json.dumps(message))
    heading("   The log now, from that call on: beforehand show demo")
    print(from_line(stage.beforehand("show", "demo"), " publish {"))
    say(f"what the world shows: {'; '.join(stage.world.read_text().splitlines())}")
    say(f"bodies entered in all: {stage.bodies()}")


def killed_before_the_checkpoint(stage: Stage) -> None:
    heading("2. Killed while the write of the tool checkpoint is held back")
    model = ("--model", f"python:{PARTS}:DemoModel")
    held = {
        "BEFOREHAND_PERSISTENCE__KIND": "held",
        "BEFOREHAND_PERSISTENCE__EXTRA__HELD": f"{PARTS}:held_back",
    }
    status = stage.run_and_kill("tool-checkpoint", "run", PROMPT, "--session", "demo", *model, **held)
    say(f"the store had not taken the checkpoint before `publish`: {signal.Signals(-status).name}")
    heading("   The log that it left behind, its last steps: beforehand show demo")
    print(from_line(stage.beforehand("show", "demo"), "calls write_file"))
    say(f"bodies entered: {stage.bodies()}")


def from_line(timeline: str, mark: str) -> str:
    """The end of a timeline, from the first line that holds `mark`."""
    lines = timeline.splitlines()
    start = next(n for n, line in enumerate(lines) if mark in line)
    return "\n".join(["    …", *lines[start:], ""])


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def say(text: str) -> None:
    print(f"  {text}", flush=True)


@contextmanager
def postgres() -> Iterator[dict[str, str]]:
    """A server for the time of the demo. A lease on a database outlives its owner, so here it is short."""
    from tests.support.postgres_local import LocalServer

    with LocalServer() as server:
        say(f"Postgres {server.version}, thrown away afterwards")
        yield {
            "BEFOREHAND_PERSISTENCE__KIND": "postgres",
            "BEFOREHAND_PERSISTENCE__DSN": server.dsn(),
            "BEFOREHAND_LEASE_S": "3",
            "BEFOREHAND_LEASE_MARGIN_S": "1",
        }


def main(*options: str) -> None:
    if not set(options) <= {"--postgres", "--real-model"}:
        raise SystemExit("usage: python3 dev.py demo [--postgres] [--real-model]")
    with tempfile.TemporaryDirectory(prefix="beforehand-demo-") as directory, ExitStack() as stack:
        store = stack.enter_context(postgres()) if "--postgres" in options else {}
        if "--real-model" in options:
            say("SmolLM2-135M answers: what it is held to it does, what it says is its own")
            killed_after_the_effect(Stage(Path(directory) / "real", store), "RealModel")
            return
        for part, play in (("one", killed_after_the_effect), ("two", killed_before_the_checkpoint)):
            play(Stage(Path(directory) / part, {**store, "BEFOREHAND_PERSISTENCE__SCHEMA_NAME": f"part_{part}"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
