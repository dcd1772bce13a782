"""`migrate`, and the same commands on another store by settings alone."""

from tests.integration.cli.command import Command, Done, types


def on_postgres(command: Command, dsn: str, **more: object) -> Command:
    """The same command, with the settings of another store."""
    return Command(command.directory, persistence__kind="postgres", persistence__dsn=dsn, **more)


def test_a_store_without_a_schema_of_its_own_needs_no_migration(beforehand: Command) -> None:
    told = "sqlite has nothing to migrate: it is made as it is opened\n"
    assert beforehand("migrate") == Done(0, "", told)


def test_a_database_is_migrated_once_and_checked(beforehand: Command, empty_postgres_dsn: str) -> None:
    store = on_postgres(beforehand, empty_postgres_dsn, persistence__migrate_on_start="false")
    told = store("sessions")
    assert (told.code, told.out) == (3, "")
    assert "run `beforehand migrate`" in told.err
    missing = store("migrate", "--check")
    assert (missing.code, missing.out) == (3, "missing  0001_session_log\n")
    assert store("migrate") == Done(0, "applied  0001_session_log\n", "")
    assert store("migrate", "--check") == Done(0, "", "the schema is up to date\n")
    assert store("sessions").out == "no sessions are stored here\n"


def test_a_conversation_runs_on_postgres_by_settings_alone(beforehand: Command, postgres_dsn: str) -> None:
    """The same events, in batches with the same reasons, as on the embedded store."""
    stores = {"sqlite": beforehand, "postgres": on_postgres(beforehand, postgres_dsn)}
    shown = {}
    for name, store in stores.items():
        calls = [{"say": "One moment."}, {"call": "list_files", "arguments": {}, "id": "c1"}]
        model = beforehand.script(calls, {"say": "Done."}, name=name)
        done = store("run", "hi", "--session", "s", "--model", model, write_behind_ms="off")
        assert (done.code, done.out) == (0, "One moment.\nDone.\n")
        (shown[name],) = store("show", "s", "--json").records
    assert types(shown["postgres"]) == types(shown["sqlite"])
    reasons = {name: [batch["reason"] for batch in document["batches"]] for name, document in shown.items()}
    assert reasons["postgres"] == reasons["sqlite"]
    assert stores["postgres"]("verify", "--all").code == 0
