"""A command ends when it has to, whoever dies first, and neither its output nor our secrets get out of hand."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from app.cancel import CancelSignal
from app.tools import command as module
from app.tools.command import CommandResult, clean_environment, run
from app.tools.types import ToolError

LIMIT_S = 30  # nobody should ever wait as long: it only keeps a failed test from hanging

# A child and a grandchild in one group, both holding the fifo named in argv[1] open: it ends when both are gone.
FAMILY = """
import os, signal, sys, time
{prelude}
fifo = os.open(sys.argv[1], os.O_WRONLY)
if os.fork() == 0:
    os.write(fifo, b"grandchild\\n")
    time.sleep(1000)
os.write(fifo, b"child\\n")
time.sleep(1000)
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


async def never():
    await asyncio.Event().wait()


async def run_in(directory: Path, *command: str, **options) -> CommandResult:
    options = {"environment": dict(os.environ), "timeout_s": LIMIT_S, "cancelled": never, **options}
    return await run(command, directory=directory, **options)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def python(source: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(source), *arguments)


def result(**parts) -> CommandResult:
    usual = {
        "ended": "exited",
        "exit_code": 0,
        "signal": None,
        "stdout": "",
        "stdout_truncated": False,
        "stderr": "",
        "stderr_truncated": False,
    }
    return CommandResult(**{**usual, **parts})


async def refusal(directory: Path, *command: str, **options) -> tuple[str, str]:
    with pytest.raises(ToolError) as caught:
        await run_in(directory, *command, **options)
    return caught.value.code, caught.value.message


class Family:
    """The reading end of the fifo that the processes of FAMILY hold open."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._said = b""

    def wait_for_both(self) -> None:
        while self._said.count(b"\n") < 2:
            assert self._read(), "the family died before it was complete"

    def wait_for_the_end(self) -> None:
        while self._read():
            pass

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._fd], [], [], LIMIT_S)
        assert ready, "a process is still there"
        said = os.read(self._fd, 1000)
        self._said += said
        return said

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def family(tmp_path: Path):
    family = Family(tmp_path / "fifo")
    yield family
    family.close()


async def test_a_command_gets_its_arguments_as_they_are_and_its_streams_come_back_apart(tmp_path):
    arguments = ["$HOME", "a b", "", "*", "; echo no", "é", "'", "\\", "-c"]
    source = "import sys; print(sys.argv[1:]); print('to stderr', file=sys.stderr); sys.exit(3)"

    answer = await run_in(tmp_path, *python(source, *arguments))

    assert answer == result(exit_code=3, stdout=f"{arguments}\n", stderr="to stderr\n")


async def test_a_command_runs_in_the_given_directory_with_an_empty_standard_input_and_no_terminal(tmp_path):
    source = """
        import os, sys
        print([os.getcwd(), os.environ["PWD"], sys.stdin.read()])
        try:
            os.open("/dev/tty", os.O_RDWR)
        except OSError as error:
            print(error.strerror)
    """
    answer = await run_in(tmp_path, *python(source))

    assert answer == result(stdout=f"{[str(tmp_path), str(tmp_path), '']}\nNo such device or address\n")


async def test_a_command_leads_a_group_of_its_own_in_another_session_and_gets_no_descriptor_of_ours(tmp_path):
    ours = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        source = """
            import os
            print(os.getpgid(0) == os.getpid(), os.getpgid(0) != os.getpgid(os.getppid()))
            print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")), os.getsid(0))
        """
        answer = await run_in(tmp_path, *python(source))
    finally:
        os.close(ours)

    group, descriptors = answer.stdout.splitlines()
    assert group == "True True"
    assert descriptors.rsplit(" ", 1)[0] == "['0', '1', '2'] 4"  # the fourth is that of the listing itself
    assert int(descriptors.rsplit(" ", 1)[1]) != os.getsid(0)


async def test_a_command_has_the_usual_signal_handling_though_python_ignores_some(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        answer = await run_in(tmp_path, "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])

    blocked, ignored = (int(line.split()[1], 16) for line in answer.stdout.splitlines())
    named = [number.name for number in signal.Signals if ignored >> (number - 1) & 1 and number < signal.SIGRTMIN]
    assert blocked == 0
    assert [name for name in named if signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN] == []
    assert not {"SIGPIPE", "SIGXFSZ"} & {*named}  # which Python ignores; who started it may ignore others


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
async def test_a_command_that_a_signal_ended_says_which(name, tmp_path):
    answer = await run_in(tmp_path, "sh", "-c", f"ulimit -c 0; kill -{name[3:]} $$")

    assert answer == result(ended="signalled", exit_code=None, signal=name)


async def test_a_program_that_cannot_be_started_is_refused_and_says_why(tmp_path):
    (tmp_path / "plain.txt").write_text("no program")
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)

    assert [
        await refusal(tmp_path, "no-such-program-anywhere", "x"),
        await refusal(tmp_path, "./script"),
        await refusal(tmp_path, "./plain.txt"),
        await refusal(tmp_path, "/"),
        await refusal(tmp_path),
        await refusal(tmp_path, ""),
        await refusal(tmp_path, "echo", "a\0b"),
        await refusal(tmp_path, "echo", "\ud800"),
    ] == [
        ("COMMAND_NOT_FOUND", "there is no program 'no-such-program-anywhere', or it is a script without interpreter"),
        ("COMMAND_NOT_FOUND", "there is no program './script', or it is a script without interpreter"),
        ("COMMAND_NOT_STARTED", "'./plain.txt' could not be started: Permission denied"),
        ("COMMAND_NOT_STARTED", "'/' could not be started: Permission denied"),
        ("INVALID_ARGUMENTS", "the command names no program"),
        ("INVALID_ARGUMENTS", "the command names no program"),
        ("INVALID_ARGUMENTS", "argument 1 holds a NUL or an unpaired surrogate"),
        ("INVALID_ARGUMENTS", "argument 1 holds a NUL or an unpaired surrogate"),
    ]


async def test_a_missing_directory_and_an_argument_beyond_the_systems_limit_are_told(tmp_path):
    gone = tmp_path / "gone"

    assert await refusal(gone, "true") == (
        "COMMAND_NOT_STARTED",
        f"the command could not be started: [Errno 2] No such file or directory: {str(gone)!r}",
    )
    assert (await refusal(tmp_path, "true", "x" * 5_000_000))[0] == "COMMAND_NOT_STARTED"


async def test_modules_in_the_directory_are_not_taken_for_the_supervisors(tmp_path):
    for name in ("os", "select", "signal", "time", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")

    answer = await run_in(tmp_path, "echo", "fine", environment={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert answer == result(stdout="fine\n")


async def test_a_command_over_its_time_is_ended_and_what_it_printed_is_kept(tmp_path):
    answer = await run_in(tmp_path, "sh", "-c", "echo before; sleep 1000; echo after", timeout_s=0.3)

    assert answer == result(ended="timed_out", exit_code=None, signal="SIGTERM", stdout="before\n")


async def test_a_command_may_use_the_grace_to_end_in_order(tmp_path):
    source = """
        import signal, sys, time
        def end(*_):
            print("put away", flush=True)
            sys.exit(7)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(1000)
    """
    answer = await run_in(tmp_path, *python(source), timeout_s=1, grace_s=LIMIT_S)

    assert answer == result(ended="timed_out", exit_code=7, stdout="ready\nput away\n")


async def test_a_group_that_ignores_the_first_signal_is_killed_after_the_grace(tmp_path, family):
    running = asyncio.create_task(
        run_in(tmp_path, *python(FAMILY.format(prelude=STUBBORN), str(family.path)), timeout_s=1, grace_s=0.1)
    )
    await asyncio.to_thread(family.wait_for_both)

    assert await running == result(ended="timed_out", exit_code=None, signal="SIGKILL")
    await asyncio.to_thread(family.wait_for_the_end)


async def test_cancelling_the_turn_ends_the_whole_group(tmp_path, family):
    cancel = CancelSignal()
    running = asyncio.create_task(
        run_in(tmp_path, *python(FAMILY.format(prelude=""), str(family.path)), cancelled=cancel.wait)
    )
    await asyncio.to_thread(family.wait_for_both)
    cancel.cancel()

    assert await running == result(ended="cancelled", exit_code=None, signal="SIGTERM")
    await asyncio.to_thread(family.wait_for_the_end)


async def test_cancelling_the_task_ends_the_whole_group_before_the_task_is_over(tmp_path, family):
    running = asyncio.create_task(run_in(tmp_path, *python(FAMILY.format(prelude=""), str(family.path))))
    await asyncio.to_thread(family.wait_for_both)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    family.wait_for_the_end()  # the loop does not run meanwhile: nothing but what is done already can help


async def test_cancelling_the_task_twice_still_ends_the_whole_group(tmp_path, family):
    running = asyncio.create_task(
        run_in(tmp_path, *python(FAMILY.format(prelude=STUBBORN), str(family.path)), grace_s=0.5)
    )
    await asyncio.to_thread(family.wait_for_both)
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running

    await asyncio.to_thread(family.wait_for_the_end)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # the loop has still to note the end


@pytest.mark.parametrize("prelude", ["", STUBBORN], ids=["obedient", "stubborn"])
def test_a_command_and_its_children_do_not_outlive_a_process_that_is_killed(prelude, tmp_path, family):
    """SIGKILL: no handler, no finally, no atexit of the process that runs the command."""
    source = f"""
        import asyncio, sys
        from pathlib import Path
        from app.tools.command import run
        command = {python(FAMILY.format(prelude=prelude), str(family.path))!r}
        asyncio.run(run(command, directory=Path("."), environment={{}}, timeout_s=1000, cancelled=asyncio.Event().wait,
                        grace_s=0.2))
    """
    repository = Path(module.__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], cwd=repository) as owner:
        family.wait_for_both()
        owner.kill()

    family.wait_for_the_end()


def test_a_command_does_not_outlive_a_process_that_ends_without_waiting_for_it(tmp_path, family):
    source = f"""
        import asyncio, os
        from pathlib import Path
        from app.tools.command import run

        async def main():
            command = {python(FAMILY.format(prelude=""), str(family.path))!r}
            task = asyncio.create_task(
                run(command, directory=Path("."), environment={{}}, timeout_s=1000, cancelled=asyncio.Event().wait))
            await asyncio.to_thread(input)
            os._exit(0)

        asyncio.run(main())
    """
    repository = Path(module.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], cwd=repository, stdin=subprocess.PIPE
    ) as owner:
        family.wait_for_both()
        owner.communicate(b"go\n")

    family.wait_for_the_end()


async def test_what_a_command_leaves_running_in_its_group_ends_with_it(tmp_path, family):
    source = FAMILY.format(prelude=STUBBORN).rsplit("time.sleep", 1)[0]  # the child does not stay
    answer = await run_in(tmp_path, *python(source, str(family.path)))

    assert answer == result()
    await asyncio.to_thread(family.wait_for_the_end)


async def test_a_process_that_left_the_group_and_holds_the_output_open_is_not_waited_for(tmp_path, family):
    source = """
        import os, sys, time
        print("started", flush=True)
        if os.fork() == 0:
            os.setsid()
            fifo = os.open(sys.argv[1], os.O_WRONLY)
            os.write(fifo, f"{os.getpid()}\\n".encode())
            time.sleep(1000)
        os.open(sys.argv[1] + ".go", os.O_RDONLY)
    """
    os.mkfifo(f"{family.path}.go")
    running = asyncio.create_task(run_in(tmp_path, *python(source, str(family.path))))
    ready, _, _ = await asyncio.to_thread(select.select, [family._fd], [], [], LIMIT_S)
    escaped = int(os.read(family._fd, 100)) if ready else 0
    try:
        await asyncio.to_thread(lambda: os.close(os.open(f"{family.path}.go", os.O_WRONLY)))
        assert await running == result(stdout="started\n")
        os.kill(escaped, 0)  # it is still there: no sandbox
        after = await run_in(tmp_path, "head", "-c", "3000000", "/dev/zero")  # its pipes have the same numbers
        assert (after.ended, after.exit_code) == ("exited", 0)
    finally:
        os.kill(escaped, signal.SIGKILL)


async def test_a_process_that_left_the_group_and_prints_for_ever_does_not_hold_up_the_end(tmp_path):
    source = """
        import os
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.write(writer, b"gone")
            while True:
                os.write(1, b"y" * 4096)  # until nobody has the other end any more
        os.read(reader, 4)
    """
    answer = await run_in(tmp_path, *python(source), keep_bytes=10)

    assert (answer.ended, answer.exit_code) == ("exited", 0)


async def test_output_that_the_loop_had_no_time_to_read_is_taken_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *_: None)

    answer = await run_in(tmp_path, "sh", "-c", "echo out; echo err >&2")

    assert answer == result(stdout="out\n", stderr="err\n")


async def test_output_that_is_left_out_is_not_held_in_memory(tmp_path, monkeypatch):
    held = []
    really_close = module._Output.close

    def weigh_and_close(output):
        held.append(len(output._head) + len(output._tail))
        really_close(output)

    monkeypatch.setattr(module._Output, "close", weigh_and_close)
    await run_in(tmp_path, "head", "-c", "3000000", "/dev/zero", keep_bytes=20)

    assert max(held) <= 3 * 20


async def test_a_killed_supervisor_is_told_and_not_taken_for_an_end(tmp_path):
    assert await refusal(tmp_path, "sh", "-c", "kill -KILL $PPID") == (
        "COMMAND_LOST",
        "the command's supervisor was killed: the command may still be running",
    )


async def test_a_terminals_signals_do_not_make_the_supervisor_leave_its_command_alone(tmp_path):
    answer = await run_in(tmp_path, "sh", "-c", "kill -INT $PPID; kill -TERM $PPID; kill -HUP $PPID; echo still here")

    assert answer == result(stdout="still here\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_of_too_much_output_the_first_and_the_last_part_are_kept_and_all_of_it_is_drained(stream, tmp_path):
    source = f"""
        import sys
        out = sys.{stream}.buffer
        out.write(b"first" + b"-" * 3_000_000 + b"last")
        out.flush()
        print("done", file=sys.{"stderr" if stream == "stdout" else "stdout"})
    """
    answer = await run_in(tmp_path, *python(source), keep_bytes=20)

    other = "stderr" if stream == "stdout" else "stdout"
    text = "first-----\n[... 2999989 bytes left out ...]\n------last"
    assert answer == result(**{stream: text, f"{stream}_truncated": True, other: "done\n"})


@pytest.mark.parametrize("size", [0, 1, 10, 19, 20])
async def test_output_up_to_the_limit_is_whole_also_where_a_character_lies_across_the_middle(size, tmp_path):
    text = ("aé" * 10).encode()[:size].decode("utf-8", "ignore")

    answer = await run_in(
        tmp_path, *python("import sys; sys.stdout.buffer.write(sys.argv[1].encode())", text), keep_bytes=20
    )

    assert answer == result(stdout=text)


async def test_output_that_is_no_text_keeps_what_is_text(tmp_path):
    answer = await run_in(tmp_path, "printf", r"a\377b\000c\r\n")

    assert answer == result(stdout="a\ufffdb\0c\r\n")


async def test_a_command_that_never_stops_printing_is_still_ended_in_time(tmp_path):
    answer = await run_in(tmp_path, "yes", timeout_s=0.3)

    assert (answer.ended, answer.signal, answer.stdout_truncated) == ("timed_out", "SIGTERM", True)
    assert answer.stdout.startswith("y\ny\n")


async def test_a_command_that_closes_its_output_early_runs_on(tmp_path):
    answer = await run_in(tmp_path, "sh", "-c", "exec 1>&- 2>&-; exit 4")

    assert answer == result(exit_code=4)


async def test_several_commands_run_at_once_and_their_output_stays_apart(tmp_path):
    answers = await asyncio.gather(*(run_in(tmp_path, "echo", str(number)) for number in range(8)))

    assert answers == [result(stdout=f"{number}\n") for number in range(8)]


async def test_nothing_is_left_open_however_a_command_ends(tmp_path):
    await run_in(tmp_path, "true")  # what asyncio itself opens once is open now
    before = open_descriptors()

    await run_in(tmp_path, "true")
    await run_in(tmp_path, "sleep", "1000", timeout_s=0.1)
    await refusal(tmp_path, "no-such-program-anywhere")
    await refusal(tmp_path / "gone", "true")
    await refusal(tmp_path, "sh", "-c", "kill -KILL $PPID")
    task = asyncio.create_task(run_in(tmp_path, "sleep", "1000"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert open_descriptors() == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_looks_like_a_secret_is_taken_out_of_the_environment():
    kept = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "PWD": "/here",
        "OLDPWD": "/there",
        "LANG": "C.UTF-8",
        "GIT_AUTHOR_NAME": "Me",
        "COMPASS": "north",
        "HTTP_PROXY": "http://proxy:3128",
        "HOMEPAGE": "https://example.org/desk-top/@me",
        "EMPTY": "",
    }
    secret = {
        "BEFOREHAND_PROFILE": "dev",
        "beforehand_profile": "dev",
        "OPENAI_API_KEY": "x",
        "ApiKey": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_SESSION_TOKEN": "x",
        "GITHUB_TOKEN": "x",
        "DB_PASSWORD": "x",
        "PGPASSFILE": "x",
        "MYSQL_PWD": "x",
        "DB_PASS": "x",
        "SSH_AUTH_SOCK": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "x",
        "SENTRY_DSN": "x",
        "SESSION_COOKIE": "x",
        "GPG_PASSPHRASE": "x",
        "GITHUB_PAT": "x",
        "DATABASE_URL": "postgres://me:p/a#ss@db/x",
        "REDIS_URL": "redis://:word@cache:6379",
        "DEPLOY": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        "SOME": "sk-abcdef",
        "OTHER": "ghp_abcdef",
    }

    assert clean_environment(kept | secret) == kept


async def test_a_command_sees_the_environment_it_is_given_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAK", "x")
    answer = await run_in(tmp_path, "/usr/bin/env", environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})

    assert sorted(answer.stdout.splitlines()) == ["LANG=C.UTF-8", "PATH=/usr/bin:/bin", f"PWD={tmp_path}"]


def test_waiting_for_a_command_does_not_hold_up_the_loop(tmp_path):
    async def main() -> list[str]:
        order = []
        running = asyncio.create_task(run_in(tmp_path, "sh", "-c", "read line < go; echo $line"))
        os.mkfifo(tmp_path / "go")

        def give() -> None:
            with (tmp_path / "go").open("w") as fifo:
                fifo.write("given\n")

        await asyncio.to_thread(give)  # could not happen if the command's end were waited for on this thread
        order.append((await running).stdout)
        return order

    started = time.monotonic()
    assert asyncio.run(main()) == ["given\n"]
    assert time.monotonic() - started < LIMIT_S
