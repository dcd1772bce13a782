"""The payment of examples/payment.py, killed when it is made and nobody knows: called again, it is made once."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.integration.cli.command import Command, outcomes

ROOT = Path(__file__).parents[3]


class Vendor(ThreadingHTTPServer):
    """Makes a payment for each key that it has not seen, and of the first one says nothing until it is released."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Counter)
        self.payments: dict[str, dict[str, object]] = {}
        self.asked = 0
        self.paid, self.released = threading.Event(), threading.Event()


class Counter(BaseHTTPRequestHandler):
    server: Vendor

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.payments.setdefault(self.headers["Idempotency-Key"], body)
        self.server.asked += 1
        if self.server.asked == 1:
            self.server.paid.set()
            self.server.released.wait()
        self.send_response(201)
        self.end_headers()
        self.wfile.write(json.dumps({"id": len(self.server.payments)}).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def vendor() -> Iterator[Vendor]:
    server = Vendor()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_payment_whose_answer_was_lost_in_a_crash_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beforehand = Command(tmp_path, write_behind_ms="off", tools__extra__pay="examples.payment:pay")
    bill = {"to": "Ada", "cents": 1200, "purpose": "bill 7"}
    model = beforehand.script({"call": "pay", "arguments": bill, "id": "c1"})
    with vendor() as server:
        monkeypatch.setenv("PAYMENTS_URL", f"http://127.0.0.1:{server.server_port}")
        with beforehand.start("run", "pay bill 7", "--session", "s", "--model", model) as running:
            assert server.paid.wait(60)
            running.kill()
        again = {"call": "pay", "arguments": bill, "id": "c2"}
        other = {"call": "pay", "arguments": bill | {"purpose": "bill 8"}, "id": "c3"}
        steps = [{"when": {"contains": "go on"}, "answer": [again, other]}, {"say": "Paid."}]
        done = beforehand("resume", "s", "go on", "--model", beforehand.script(*steps, name="next"))
    assert (done.out, done.code) == ("Paid.\n", 0), done.err
    assert [payment["purpose"] for payment in server.payments.values()] == ["bill 7", "bill 8"]
    assert server.asked == 3
    (shown,) = beforehand("show", "s", "--json").records
    results = [event["data"] for event in shown["events"] if event["type"] == "tool/result"]
    assert "may simply be called again" in results[0]["error"]["message"]
    assert outcomes(shown["events"]) == [("c1", "TOOL_OUTCOME_UNKNOWN"), ("c2", "payment 1"), ("c3", "payment 2")]


def test_the_page_about_tools_shows_this_tool() -> None:
    page = (ROOT / "docs" / "tools.md").read_text()
    shown = re.search(r"```python\n# examples/payment\.py\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1] in (ROOT / "examples" / "payment.py").read_text()
