"""`sessions`, `show`, `tail`, `verify`, `fork`, `delete`: what is stored, for people and for programs."""

from __future__ import annotations

import re
import sqlite3

from app.session.batch import Header
from tests.integration.cli.command import EXTENSIONS, Command, Done

HELLO = {"say": "Hello"}


def test_sessions_are_listed_newest_first_and_in_pages(beforehand: Command) -> None:
    beforehand.seed("a", "b", "c")
    whole = beforehand("sessions", "--json").records
    assert [(row["id"], row["title"], row["next_seq"], row["owner"]["name"]) for row in whole] == [
        ("c", "hi c", 11, None),
        ("b", "hi b", 11, None),
        ("a", "hi a", 11, None),
    ]
    first = beforehand("sessions", "--limit", "2")
    lines = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line).split() for line in first.out.splitlines()]
    assert lines == [
        ["session", "created", "(UTC)", "events", "owner", "title"],
        ["c", "TIME", "11", "-", "hi", "c"],
        ["b", "TIME", "11", "-", "hi", "b"],
    ]
    assert (
        len({line.index(word) for line, word in zip(first.out.splitlines(), ("owner", "-    ", "-    "), strict=True)})
        == 1
    )
    assert first.err == f"more: beforehand sessions --after {whole[1]['cursor']}\n"
    second = beforehand("sessions", "--limit", "2", "--after", whole[1]["cursor"], "--json")
    assert (second.records, second.err) == (whole[2:], "")


def test_an_unknown_session_is_told_as_such(beforehand: Command) -> None:
    beforehand.seed("s")
    told = "beforehand: session 'nobody' is not stored here; `beforehand sessions` lists those that are\n"
    for command in ("show", "tail", "verify", "export", "fork", "resume"):
        assert beforehand.inside(command, "nobody") == Done(2, "", told)


def test_show_prints_for_programs_what_the_store_holds(beforehand: Command) -> None:
    beforehand.seed("s")
    done = beforehand("show", "s", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.records == [beforehand.shown("s")]
    assert list(done.records[0]) == [
        "id", "header", "events", "batches", "closers", "open_calls", "owner", "head", "torn", "problem",
    ]  # fmt: skip
    assert done.records[0]["header"]["id"] == "s"


def test_show_draws_each_checkpoint_of_a_turn_with_a_tool(beforehand: Command) -> None:
    model = beforehand.script([{"say": "One moment."}, {"call": "read_file", "arguments": {"path": "x"}}], HELLO)
    beforehand("run", "hi", "--session", "s", "--model", model)
    lines = beforehand("show", "s").out.splitlines()
    assert [line.split(" ── ")[:2] for line in lines if line.startswith("──")] == [
        ["── durable: caller", "before the caller was answered"],
        ["── durable: request", "before the model was asked"],
        ["── durable: tool", "before read_file could act"],
        ["── durable: post-step", "after the step, before it goes on"],
        ["── durable: request", "before the model was asked"],
        ["── durable: post-step", "after the step, before it goes on"],
        ["── durable: final", "at the end of the turn"],
    ]


def test_tail_prints_what_is_there_and_then_what_comes(beforehand: Command) -> None:
    beforehand.seed("s")
    whole = beforehand("tail", "s", "--no-follow", "--json")
    assert whole.records == beforehand.shown("s")["events"]
    assert beforehand("tail", "s", "--no-follow", "--json", "--from", "8").records == whole.records[8:]
    with beforehand.start("tail", "s", "--json", "--from", "10") as tail:
        tail.wait_for_output('"turn/end"')
        beforehand.seed("s")
        tail.wait_for_output('"seq":20,"type":"turn/end"')
    assert len(beforehand.shown("s")["events"]) == 21


def test_a_reader_that_goes_away_ends_show_silently(beforehand: Command) -> None:
    beforehand.seed("s")
    with beforehand.start("show", "s", "--chunks") as shown:
        assert shown.process.stdout is not None
        shown.process.stdout.close()
        assert shown.process.wait() == 141
        assert shown.process.stderr is not None
        assert shown.process.stderr.read() == ""


def test_verify_says_what_is_good_and_its_head(beforehand: Command) -> None:
    beforehand.seed("a", "b")
    heads = {name: beforehand.shown(name)["head"] for name in "ab"}
    assert beforehand("verify", "a") == Done(0, f"ok   a  11 events, head {heads['a']}\n", "")
    for every in ((), ("--all",)):
        assert beforehand("verify", *every) == Done(
            0, f"ok   b  11 events, head {heads['b']}\nok   a  11 events, head {heads['a']}\n", ""
        )
    nothing = dict.fromkeys(("torn", "code", "where", "file", "problem"))
    assert beforehand("verify", "a", "--json").records == [
        {"id": "a", "ok": True, "events": 11, "head": heads["a"], **nothing}
    ]


def test_verify_all_goes_on_after_a_bad_one(beforehand: Command) -> None:
    beforehand.seed("a", "b")
    database = sqlite3.connect(beforehand.database)
    database.execute("DELETE FROM events WHERE session = (SELECT key FROM sessions WHERE id = 'b') AND seq = 3")
    database.commit()
    database.close()
    done = beforehand("verify", "--all")
    bad, good = done.out.splitlines()
    assert (done.code, done.err) == (5, "")
    assert bad.startswith("bad  b  the log of session 'b' is damaged at seq 3: ")
    assert good.startswith("ok   a  11 events, head ")


def test_only_a_head_from_outside_shows_that_the_last_batch_is_missing(beforehand: Command) -> None:
    """DIG-04."""
    beforehand.seed("s")
    older = beforehand.database.read_bytes()
    earlier = beforehand.shown("s")["head"]
    beforehand.seed("s")
    head = beforehand.shown("s")["head"]
    assert beforehand("verify", "s", "--head", head).code == 0
    assert beforehand("verify", "s", "--head", earlier).code == 0
    for path in beforehand.database.parent.iterdir():
        path.unlink()
    beforehand.database.write_bytes(older)
    assert beforehand("verify", "s").code == 0
    told = f"the log does not hold the head {head}: batches are missing at its end, or it is another log"
    assert beforehand("verify", "s", "--head", head) == Done(5, f"bad  s  {told}\n", "")


def test_a_header_is_part_of_what_a_head_stands_for(beforehand: Command) -> None:
    beforehand.seed("s")
    header = beforehand.shown("s")["header"]
    digest = Header.make("s", header["created_at"]).digest.hex()
    assert beforehand("verify", "s", "--head", digest).code == 0


def test_fork_branches_a_session_off_at_the_end_of_a_turn(beforehand: Command) -> None:
    beforehand.seed("s", "s")
    assert beforehand("fork", "s", "--at", "10", "--id", "child") == Done(0, "child\n", "")
    child = beforehand.shown("child")
    assert child["header"]["parent"] == {"id": "s", "seq": 10}
    assert child["events"] == beforehand.shown("s")["events"][:11]
    assert ", forked from s at seq 10\n" in beforehand("show", "child").out
    told = "session 's' cannot be forked at seq 5: a turn is open there; name the seq of a turn/end"
    assert beforehand("fork", "s", "--at", "5") == Done(2, "", f"beforehand: {told}\n")
    told = "session 'child' exists already; choose another id, or resume it"
    assert beforehand("fork", "s", "--id", "child") == Done(2, "", f"beforehand: {told}\n")


def test_delete_leaves_nothing_to_show(beforehand: Command) -> None:
    beforehand.seed("s")
    assert beforehand("delete", "s", "--yes").code == 0
    told = "session 's' was deleted; its id cannot be used again"
    assert beforehand("show", "s") == Done(2, "", f"beforehand: {told}\n")
    assert beforehand("sessions", "--json").out == ""


def test_the_environment_is_explained_and_its_settings_told(beforehand: Command) -> None:
    explained = beforehand("explain")
    assert (explained.code, explained.err) == (0, "")
    assert explained.out.splitlines()[0].split() == ["backend", "sqlite,", "durable"]
    assert beforehand("explain", "--json").records[0]["backend"] == {"kind": "sqlite", "durable": True}
    assert beforehand("config", "check") == Done(0, "the settings are good: profile dev, sqlite\n", "")
    shown = {row["name"]: (row["value"], row["source"]) for row in beforehand("config", "show", "--json").records}
    assert shown["write_behind_ms"] == (None, "BEFOREHAND_WRITE_BEHIND_MS")
    assert shown["flush_timeout_ms"] == (30_000, "default")
    assert beforehand("config", "show").out.count("\n") == len(shown)
    assert not beforehand.database.exists()


def test_a_secret_is_masked(beforehand: Command) -> None:
    settings = {"persistence__kind": "own", "persistence__extra__own": f"{EXTENSIONS}:Refusing"}
    options = {"persistence__options__path": "x.db", "persistence__options__takes": "s3cret-s3cret"}
    for arguments in (("config", "show"), ("config", "show", "--json"), ("config", "check"), ("explain",)):
        done = beforehand(*arguments, **settings, **options)
        assert "s3cret" not in done.out + done.err


def test_tools_are_listed_with_their_effects(beforehand: Command) -> None:
    done = beforehand("tools", "--tools", "read_file,run_command")
    assert [line.split()[:2] for line in done.out.splitlines()[::2]] == [
        ["read_file", "read_only"],
        ["run_command", "side_effect"],
    ]
    (told,) = beforehand("tools", "--tools", "write_file", "--json").records
    assert (told["name"], told["effects"]) == ("write_file", "idempotent")
    assert set(told["schema"]["properties"]) == {"path", "content"}


def test_a_session_of_the_memory_store_ends_with_its_process(beforehand: Command) -> None:
    model = beforehand.script({"say": "Hello"})
    assert beforehand("run", "hi", "--profile", "test", "--model", model).out == "Hello\n"
    assert beforehand("sessions", "--profile", "test") == Done(0, "no sessions are stored here\n", "")
