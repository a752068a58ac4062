"""A process and all that it starts: for tests/vm/suites, and as a program.

    python3 processes.py COMMAND...

As a program it runs the command, then ends what the command has left behind, and exits with its
status. On SIGTERM it ends all of them. The last line of its standard error is the processor seconds that
they used.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# Signals that end the project's tests, from a terminal, a supervisor or `make`.
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Set once such a request has come: nothing more begins.
ENDING = threading.Event()
TICKS = os.sysconf("SC_CLK_TCK")


def adopt_orphans():
    """Makes orphaned descendants children of this process, so that none of them is ever lost."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")


def end_on_request():
    """Turns a request to end into SystemExit in the main thread."""

    def end(number, _frame):
        # A second request would interrupt the ending.
        for request in REQUESTS_TO_END:
            signal.signal(request, signal.SIG_IGN)
        ENDING.set()
        sys.exit(128 + number)

    for request in REQUESTS_TO_END:
        signal.signal(request, end)


def status(process):
    """The fields of /proc/PID/stat from the third on, the state; None when there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Before them is the name, which may contain anything.
    return text[text.rindex(")") + 2 :].split()


def processor_seconds(process):
    """The processor time that a process has used, 0 once it has been reaped."""
    fields = status(process)
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0


def descendants():
    """The living descendants of this process."""
    children = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        if (fields := status(process)) and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(process))
    found = []
    parents = [os.getpid()]
    while parents:
        mine = children.get(parents.pop(), [])
        found += mine
        parents += mine
    return found


def end_descendants():
    """Kills all descendants, including those that they start meanwhile, and waits for their end."""
    while found := descendants():
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
        # The first process of a PID namespace ends only after the others have been waited for.
        reap()


def reap(until=None):
    """Waits for the end of the child `until` and returns its status. Without it, collects children
    that have ended already."""
    while True:
        try:
            process, status = os.waitpid(-1, 0 if until else os.WNOHANG)
        except ChildProcessError:
            return None
        if process == 0:
            return None
        if process == until:
            return os.waitstatus_to_exitcode(status)


def main():
    adopt_orphans()
    end_on_request()
    code = 128 + signal.SIGTERM
    try:
        child = subprocess.Popen(sys.argv[1:])
        code = reap(until=child.pid)
    finally:
        end_descendants()
        reap()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"\n{used.ru_utime + used.ru_stime:.1f}", file=sys.stderr)
    # As a shell reports a signal.
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
