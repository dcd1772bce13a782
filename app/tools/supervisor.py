"""Runs one command in a process group that cannot outlive whoever asked for it. A script, not a module to import.

`python -I -S supervisor.py CONTROL GRACE_MS PROGRAM [ARGUMENT...]`, where CONTROL is the descriptor of one end of a
socket pair. The command gets the input, output, environment and directory of this process; if CONTROL is 0, an empty
input. At the end of file on the socket (its other end was shut, or its owner is gone, however it died) the group gets
SIGTERM, and SIGKILL once GRACE_MS have passed. What the command leaves running in its group when it ends gets SIGKILL
too.

Then one line goes into the socket: `exited CODE KILLED`, `signalled NUMBER KILLED` or `refused ERRNO 0`, where KILLED
is 1 if the group was told to end. Linux; only small parts of the standard library, because each command waits for them.
"""

import os
import select
import signal
import sys
import time

OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # ignored here: only the socket says when to end
PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)  # ignored by Python itself; the command shall find the usual


def main(control: int, grace_ms: int, command: list[str]) -> None:
    os.set_inheritable(control, False)
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in OURS:
        signal.signal(number, signal.SIG_IGN)
    try:
        group = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[] if control else [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[*OURS, *PYTHONS],
        )
    except OSError as error:
        report(control, f"refused {error.errno} 0")
        return
    killed = wait_for(group, control, wake, grace_ms)
    send(group, signal.SIGKILL)  # before it is reaped: until then no other group can have its number
    code = os.waitstatus_to_exitcode(os.waitpid(group, 0)[1])
    report(control, f"exited {code} {killed:d}" if code >= 0 else f"signalled {-code} {killed:d}")


def wait_for(group: int, control: int, wake: int, grace_ms: int) -> bool:
    """Return when the command has ended, not yet reaped; True if it was told to."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    killed = False
    deadline: float | None = None
    while os.waitid(os.P_PID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = [fd for fd, _ in poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)]
        if wake in ready:
            os.read(wake, 4096)
        if control in ready:
            killed = True
            poll.unregister(control)
            deadline = time.monotonic() + grace_ms / 1000
            send(group, signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            deadline = None
            send(group, signal.SIGKILL)
    return killed


def send(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except PermissionError:
        pass  # it took another user's rights (sudo, say): nobody here may end it, it is waited for


def report(control: int, line: str) -> None:
    try:
        os.write(control, line.encode())
    except OSError:
        pass  # whoever asked is gone, there is nobody left to tell


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
