"""The product broken on purpose, one way a row, each with the cheapest layer that has to notice.

A layer is `worlds` (tests/simulation), or the tests that are named. A mutant that survives its layer is a missing test.
"""

from __future__ import annotations

from dataclasses import dataclass

WORLDS = "worlds"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which stands once in `file`, becomes `new`; so does each of `more`, where two things guard one."""

    name: str
    file: str
    old: str
    new: str
    layer: str = WORLDS
    more: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.file, self.old, self.new), *self.more)


MUTANTS = [
    # -- checkpoints
    Mutant(
        "no flush before a request",
        "policy/checkpoint.py",
        'await self._sessions.flush(session, "request")',
        "pass",
    ),
    Mutant(
        "no flush before a body",
        "policy/checkpoint.py",
        'await self._sessions.flush(session, "tool")',
        "pass",
    ),
    Mutant(
        "a failed flush lets the body in",
        "policy/checkpoint.py",
        'return ToolResult.error("CHECKPOINT_FAILED", str(error))',
        "pass",
    ),
    Mutant(
        "a failed flush lets the request out",
        "policy/checkpoint.py",
        'await self._sessions.flush(session, "request")',
        """try:
            await self._sessions.flush(session, "request")
        except Exception:
            pass""",
    ),
    Mutant(
        "no flush after a step",
        "policy/checkpoint.py",
        'await self._sessions.flush(step.session, "post-step")',
        "pass",
        "tests/conformance/test_policy_step.py",
    ),
    Mutant(
        "a request goes out though it was cancelled",
        "policy/checkpoint.py",
        "if _is_cancelled(request):\n            raise",
        "if False:\n            raise",
        "tests/conformance/test_policy_request.py",  # in the worlds the reader of the stream stops it before it begins
    ),
    Mutant(
        "no look at the lease before an effect",
        "app/session/store.py",
        "if session.durable:\n            await lease.ensure(self._lease_margin_s)",
        "pass",
        "tests/conformance/test_lease.py",
    ),
    Mutant(
        "no heartbeat",
        "app/agent/agent.py",
        "async with self._sessions.heartbeat(self.session):",
        "if True:",
        "tests/conformance/test_lease.py",
    ),
    # -- the drain
    Mutant(
        "a flush returns after one write, whatever is left",
        "app/session/drain.py",
        "while self._session.durable < mark:",
        "if self._session.durable < mark:",
    ),
    Mutant(
        "a timeout counts as success",
        "app/session/drain.py",
        "raise FlushTimeout(self._session.id, self._limits.flush_timeout_ms)",
        "return",
        "tests/conformance/test_flush.py",
    ),
    Mutant(
        "events count as durable before they are sent",
        "app/session/drain.py",
        "batch = self._unsettled\n",
        "batch = self._unsettled\n        session.mark_durable(batch.next_seq)\n",
    ),
    Mutant(
        "a batch of unknown outcome is made anew",
        "app/session/drain.py",
        "if self._unsettled is None:\n            events",
        "if True:\n            events",
    ),
    Mutant(
        "a batch of unknown outcome is forgotten",
        "app/session/drain.py",
        "await self._write(batch, sent_before)\n        self._unsettled = None",
        "self._unsettled = None\n        session.mark_durable(batch.next_seq)\n"
        "        await self._write(batch, sent_before)",
    ),
    Mutant(
        "two writes of a session at a time",
        "app/session/drain.py",
        "writing = self._start(reason) if self._writing is None else self._writing",
        "writing = self._start(reason)",
    ),
    Mutant(
        "a failed write is nobody's error",
        "app/session/drain.py",
        "raise error",
        "return",
    ),
    Mutant(
        "a refusal is taken for success",
        "app/session/store.py",
        "raise error from refusal",
        "return",
    ),
    Mutant(
        "the chain does not go on",
        "app/session/drain.py",
        "self.head = batch.digest",
        "pass",
    ),
    # -- ownership
    Mutant(
        "an old epoch may write",
        "persistence/rules.py",
        "if (row.epoch, row.token) != (epoch.number, epoch.token):",
        "if False:",
    ),
    Mutant(
        "an epoch is proved by its number alone",
        "persistence/rules.py",
        "if (row.epoch, row.token) != (epoch.number, epoch.token):",
        "if row.epoch != epoch.number:",
        "tests/contracts/test_memory.py",
    ),
    Mutant(
        "the next epoch is the old one",
        "app/session/ownership.py",
        "return cls(number + 1, secrets.token_hex(16), owner)",
        "return cls(number, secrets.token_hex(16), owner)",
        "tests/contracts/test_memory.py",
    ),
    Mutant(
        "a lease that runs keeps nobody out",
        "persistence/rules.py",
        "if force or row.owner is None or",
        "if True or",
        "tests/contracts/test_memory.py",
    ),
    Mutant(
        "a deleted session leaves no tombstone",
        "persistence/memory.py",
        'self._sessions[session_id] = "deleted"',
        "del self._sessions[session_id]",
        "tests/contracts/test_memory.py",
    ),
    Mutant(
        "a regressed store is taken for a take-over",
        "app/session/refusals.py",
        "if stored is not None and (found := _regression(session, head, stored)):",
        "if False:",
        "tests/conformance/test_ownership.py",
    ),
    # -- what the store decides
    Mutant(
        "a batch is stored wherever it starts",
        "persistence/rules.py",
        "if (batch.first_seq, batch.previous) == (row.next_seq, row.head):",
        "if True:",
    ),
    Mutant(
        "a batch that is there already is a conflict",
        "persistence/rules.py",
        "if batch.next_seq <= row.next_seq and digest_at(batch.next_seq - 1) == batch.digest:",
        "if False:",
    ),
    Mutant(
        "any batch of the past counts as stored",
        "persistence/rules.py",
        "if batch.next_seq <= row.next_seq and digest_at(batch.next_seq - 1) == batch.digest:",
        "if batch.next_seq <= row.next_seq:",
        "tests/contracts/test_memory.py",
    ),
    # -- recovery
    Mutant(
        "closers are not stored",
        "app/session/resuming.py",
        "self._closing = None if asks_first else _closing_batch(stored, fold, {})\n        self._claim = epoch\n"
        "        return self._closing",
        "self._closing = _closing_batch(stored, fold, {})\n        self._claim = epoch\n        return None",
    ),
    Mutant(
        "recovery says that a started call was never started",
        "app/session/recovery.py",
        "if call.seq is None or isinstance(answer, NotStarted):",
        "if True:",
    ),
    Mutant(
        "recovery says that no call is known",
        "app/session/recovery.py",
        "if call.seq is None or isinstance(answer, NotStarted):",
        "if isinstance(answer, NotStarted):",
    ),
    Mutant(
        "recovery answers one call only",
        "app/session/recovery.py",
        "for call in state.turn.open_calls)",
        "for call in state.turn.open_calls[:1])",
    ),
    Mutant(
        "recovery leaves the step open",
        "app/session/recovery.py",
        "if turn.state in (REQUEST, CALLS, DONE):",
        "if False:",
    ),
    # -- the turn
    Mutant(
        "results in the order in which bodies end",
        "app/agent/tool_calls.py",
        "and opened[0].id in self._results:\n                await",
        "and self._results:\n                opened = [c for c in opened if c.id in self._results] or opened\n"
        "                await",
    ),
    Mutant(
        "a body is run twice",
        "app/tools/service.py",
        "answer = await run_body(tool, admission.validated, execution, timeout_s)",
        "await run_body(tool, admission.validated, execution, timeout_s)\n"
        "            answer = await run_body(tool, admission.validated, execution, timeout_s)",
    ),
    Mutant(
        "a cancelled call is entered",
        "policy/checkpoint.py",
        "if execution.signal.is_cancelled:\n            return ABORTED_BEFORE_DISPATCH\n        return",
        "return",
        layer="tests/conformance/test_stopped_anywhere.py",
        more=(
            (
                "app/tools/service.py",
                "if _is_cancelled(execution):\n        return outcomes.ABORTED_BEFORE_DISPATCH\n    if exe",
                "if exe",
            ),
        ),
    ),
    Mutant(
        "calls that were not started have no result",
        "app/agent/tool_calls.py",
        "await self._skip_rest()",
        "pass",
        "tests/conformance/test_cancelled_calls.py",
    ),
    Mutant(
        "the id of a call may come again",
        "app/agent/answering.py",
        "verdict = assembler.verdict(turn.session.state.call_ids,",
        "verdict = assembler.verdict(set(),",
        "tests/conformance/test_model_stream.py",
    ),
    # -- files and servers
    Mutant(
        "no sync of a file",
        "persistence/jsonl/disk.py",
        "os.fdatasync(file)",
        "pass",
        "tests/contracts/test_jsonl_faults.py",
    ),
    Mutant(
        "no sync of a name",
        "persistence/jsonl/disk.py",
        "os.fsync(directory)",
        "pass",
        "tests/contracts/test_jsonl_faults.py",
    ),
    Mutant(
        "a short write is taken for a whole one",
        "persistence/jsonl/disk.py",
        "    while rest:\n        written",
        "    if rest:\n        written",
        "tests/contracts/test_jsonl_faults.py",
    ),
    Mutant(
        "digests are not looked at",
        "app/session/verification.py",
        "if head != end.digest:",
        "if False:",
        "tests/contracts/test_sqlite_damage.py",
    ),
    Mutant(
        "SQLite may lose what it acknowledged",
        "persistence/sqlite/database.py",
        'connection.execute("PRAGMA synchronous = FULL")',
        'connection.execute("PRAGMA synchronous = NORMAL")',
        "tests/contracts/test_sqlite_file.py",
    ),
    Mutant(
        "SQLite is told to sync less, and is not asked",
        "persistence/sqlite/database.py",
        'if (journal, file.number(connection, "PRAGMA synchronous")) != ("wal", 2):',
        'connection.execute("PRAGMA synchronous = NORMAL")\n        if journal != "wal":',
        "tests/crash/test_power_cuts.py",
    ),
    Mutant(
        "a deletion is not synced",
        "persistence/jsonl/writing.py",
        "disk.sync_names(file.directory)",
        "pass",
        "tests/crash/test_power_cuts.py",
    ),
    Mutant(
        "a connection that can only read is kept for writing",
        "persistence/sqlite/database.py",
        "if errors.primary(error) == sqlite3.SQLITE_READONLY:",
        "if False:",
        "tests/crash/test_failing_calls.py",
    ),
    Mutant(
        "a lost connection is taken for success",
        "persistence/postgres/group.py",
        "waiting.end(errors.meaning(error, waiting.session_id) if isinstance(error, errors.FOREIGN) else error)",
        "waiting.end()",
        "tests/integration/postgres/test_crashing_servers.py",
    ),
    Mutant(
        "a commit with a warning counts",
        "persistence/postgres/connecting.py",
        "self.warnings += 1",
        "pass",
        "tests/integration/postgres/test_failover.py",
    ),
    Mutant(
        "a journal is opened that lost what was committed",
        "persistence/sqlite/file.py",
        "journal.check(path)",
        "pass",
        "tests/contracts/test_sqlite_damage.py",
    ),
    Mutant(
        "an index that leaves a session out is not looked at",
        "persistence/sqlite/reading.py",
        """    return [line for line in found if line != "ok" and not line.startswith("***")] + [""",
        "    return [] + [",
        "tests/conformance/test_verifying.py",
    ),
    Mutant(
        "the rest of a write is not cut away",
        "persistence/jsonl/file.py",
        "if os.fstat(self._descriptor).st_size != at:",
        "if False:",
        "tests/crash/test_failing_calls.py",
    ),
]


def listed() -> str:
    """Every mutant and the layer that catches it, as docs/guarantees.md has it."""
    return "\n".join(f"| {mutant.name} | `{mutant.layer.removeprefix('tests/')}` |" for mutant in MUTANTS)
