"""docker-compose.yml as people use it: the image of the Dockerfile, on the composition's own database."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.command import outcomes, types
from tests.support import stand_ins
from tests.support.engine import Engine
from tests.support.postgres_local import NotAvailable

pytestmark = pytest.mark.timeout(600)  # images are made

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "BEFOREHAND_TOOLS__ENABLED": "run_command",
    "BEFOREHAND_LEASE_S": "4",  # a process in another container cannot tell that the owner is dead: it waits so long
    "BEFOREHAND_LEASE_MARGIN_S": "1",
}


class Composition:
    """docker-compose.yml under a project name, and with a password, of this test run's own."""

    def __init__(self, engine: Engine, client: Any, scripts: Path) -> None:
        self.name = f"beforehand-test-{secrets.token_hex(4)}"
        self._engine = engine
        self._client = client
        self._scripts = scripts
        self._environment = {**engine.environment, "POSTGRES_PASSWORD": secrets.token_hex(16)}

    def __call__(self, *words: str) -> str:
        """Run a command of compose; its output."""
        done = subprocess.run(
            [*self._engine.compose, "--project-name", self.name, *words],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"compose {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, *command: str, program: str = "beforehand") -> str:
        """Run a command in a new container of the service; its output. The schema is there already."""
        return self("run", "--rm", "--no-deps", *self._options(), "--entrypoint", program, "beforehand", *command)

    def agent_in_a_tool(self, session: str) -> Any:
        """The container of a process whose tool has acted (a line in a file named as the session) and goes on."""
        body = {"argv": ["sh", "-c", f"echo acted >> {session}; sleep 600"], "timeout_s": 600}
        model = self.model({"call": "run_command", "arguments": body, "id": "c1"})
        command = ["run", "begin", "--session", session, "--model", model]
        name = f"{self.name}-{session}"
        self("run", "--detach", "--name", name, *self._options(), "beforehand", *command)
        container = self._client.containers.get(name)
        wait_until(lambda: container.exec_run(["cat", session]).exit_code == 0)
        return container

    def model(self, *steps: Any) -> str:
        """A script in a file that the service's containers see; what `--model` takes for it."""
        name = f"{secrets.token_hex(4)}.json"
        (self._scripts / name).write_text(json.dumps({"steps": steps}))
        return f"script:/scripts/{name}"

    def shown(self, session: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.run("show", session, "--json"))
        return shown

    def health(self) -> str:
        """What the engine makes of the database's health check."""
        labels = [f"com.docker.compose.project={self.name}", "com.docker.compose.service=postgres"]
        [container] = self._client.containers.list(filters={"label": labels})
        return str(container.attrs["State"]["Health"]["Status"])

    def _options(self) -> list[str]:
        settings = [word for name, value in SETTINGS.items() for word in ("-e", f"{name}={value}")]
        return ["-T", *settings, "-v", f"{self._scripts}:/scripts:ro"]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def composition(container_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """It is built and its database started; what is left of it goes in the end."""
    scripts = tmp_path_factory.mktemp("scripts")
    scripts.chmod(0o755)  # the service is another user
    with container_engine.client() as client:
        if container_engine.is_own:
            try:
                stand_ins.make_python(client, "python:3.13-slim")
            except NotAvailable as error:
                pytest.skip(f"not run: {error}")
        composition = Composition(container_engine, client, scripts)
        try:
            composition("build", "beforehand")
            composition("up", "--detach", "postgres")
            yield composition
        finally:
            composition("--profile", "service", "down", "--volumes", "--remove-orphans")


def test_the_database_is_healthy_by_its_own_check(composition: Composition):
    wait_until(lambda: composition.health() != "starting")
    assert composition.health() == "healthy"


def test_the_schema_is_there_before_the_service_starts(composition: Composition):
    """By a container of its own; the service in the prod profile migrates nothing."""
    said = composition("run", "--rm", "-T", "beforehand", "doctor")
    assert {line[:3] for line in said.splitlines()} == {"ok "}


def test_the_service_is_a_user_without_rights(composition: Composition):
    assert composition.run("-u", program="id") == "10001\n"
    assert "CapEff:\t0000000000000000" in composition.run("/proc/self/status", program="cat")


def test_a_container_killed_in_a_tool_is_gone_on_from_in_another(composition: Composition):
    """E2E-03: what the dead container had made durable is all there, and the tool is not run again."""
    container = composition.agent_in_a_tool("killed")
    container.kill("SIGKILL")
    assert container.wait()["StatusCode"] == 137
    before = composition.shown("killed")
    assert before["open_calls"] == [{"call_id": "c1", "name": "run_command", "call_seq": len(before["events"]) - 1}]
    model = composition.model({"say": "went on"})
    answer = composition.run("resume", "killed", "go on", "--wait", "--model", model)
    assert answer == "went on\n"
    after = composition.shown("killed")
    at = len(before["events"])
    assert after["events"][:at] == before["events"]
    assert types({"events": after["events"][at : at + 3]}) == ["tool/result", "step/end", "turn/end{interrupted}"]
    assert outcomes(after["events"]) == [("c1", "TOOL_OUTCOME_UNKNOWN")]
    assert composition.run("killed", program="cat") == "acted\n"


def test_a_stopped_container_ends_its_turn_and_lets_go_of_its_session(composition: Composition):
    container = composition.agent_in_a_tool("stopped")
    container.stop()
    assert container.wait()["StatusCode"] == 143
    shown = composition.shown("stopped")
    assert types(shown)[-2:] == ["step/end", "turn/end{aborted}"]
    assert (shown["owner"]["name"], shown["closers"]) == (None, [])
