"""`export`, `import`, `prune`: sessions moved between stores, and old ones cleared away."""

from tests.integration.cli.command import Command, Done


def test_an_exported_session_is_imported_into_another_store_and_goes_on_there(beforehand: Command) -> None:
    beforehand("run", "hi", "--session", "s", "--model", beforehand.script({"say": "Hello"}))
    exported = beforehand("export", "s")
    assert exported.code == 0
    (beforehand.directory / "s.jsonl").write_text(exported.out)
    there = {"persistence__path": "there.db"}
    assert beforehand("import", "s.jsonl", **there) == Done(0, "s\n", "")
    assert beforehand("export", "s", **there) == exported
    told = beforehand("import", "s.jsonl", **there)
    assert told == Done(2, "", "beforehand: session 's' exists already; choose another id, or resume it\n")
    again = beforehand("resume", "s", "again", "--model", beforehand.script({"say": "Still here"}), **there)
    assert again.out == "Still here\n"


def test_a_cut_export_is_refused_with_its_line(beforehand: Command) -> None:
    beforehand("run", "hi", "--session", "s", "--model", beforehand.script({"say": "Hello"}))
    lines = beforehand("export", "s").out.splitlines()
    (beforehand.directory / "cut.jsonl").write_text("\n".join(lines[:5]))
    told = beforehand("import", "cut.jsonl", persistence__path="there.db")
    assert (told.code, told.out) == (5, "")
    assert told.err == (
        "beforehand: the log of session 's' is damaged at line 5: it has to be the number of events, which is 3; "
        "the export may be cut; nothing was changed\n"
    )
    assert beforehand("sessions", persistence__path="there.db") == Done(0, "no sessions are stored here\n", "")


def test_old_sessions_are_named_first_and_deleted_when_told_so(beforehand: Command) -> None:
    for session_id in ("a", "b"):
        beforehand("run", "hi", "--session", session_id, "--model", beforehand.script({"say": "Hello"}))
    assert beforehand("prune", "--older-than", "1d") == Done(0, "", "0 sessions would be deleted; say --yes to do it\n")
    named = beforehand("prune", "--older-than", "0s")
    assert named == Done(0, "b  hi\na  hi\n", "2 sessions would be deleted; say --yes to do it\n")
    assert beforehand("prune", "--older-than", "0s", "--yes").err == "deleted 2 sessions\n"
    assert beforehand("sessions").out == "no sessions are stored here\n"
    told = beforehand("prune", "--older-than", "soon")
    assert told == Done(2, "", "beforehand: --older-than 'soon' is no age: it takes a number and one of d, h, m, s\n")
