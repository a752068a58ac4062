"""The test programs of the workspace on this machine, several at a time: for tests/vm/suites.

Most of them wait for daemons most of the time. Each makes its own namespaces, folders and control
groups, so they can run beside each other, and beside guests.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import ENDING
from results import Program, Tally, Took

# Programs whose tests start whole hosts take longest, and begin first.
LONG_PACKAGE = "lab"
# The last lines that are shown of a program that failed without printing failures.
END_LINES = 100
# A program and all that it starts ends with this process, however that ends.
CONTAINED = ["setpriv", "--pdeathsig", "TERM", sys.executable, Path(__file__).parent / "processes.py"]


def programs(tests, cargo, first=()):
    """The programs among cargo's messages and the tests in documents: those whose executables are in
    `first`, then long ones."""
    found = [
        Program(
            suite=Path(message["manifest_path"]).parent.name,
            kernels=None,
            name=message["target"]["name"],
            command=[message["executable"], "--show-output"],
            directory=str(Path(message["manifest_path"]).parent),
            is_libtest=True,
        )
        for message in tests
    ]
    documents = Program(
        suite="workspace",
        kernels=None,
        name="documents",
        command=[cargo, "test", "--quiet", "--workspace", "--doc", "--", "--show-output"],
        directory=os.getcwd(),
        is_libtest=True,
        has_parts=True,
    )

    def order(program):
        return program.command[0] not in first, program.suite != LONG_PACKAGE

    return sorted([*found, documents], key=order)


def end(output):
    """The output of failed tests, or the last lines if the program itself failed."""
    # What a failed test printed follows; a test that runs itself again prints "failures:" too.
    failures = output.find("\nfailures:\n\n----")
    return output[failures:] if failures >= 0 else "\n".join(output.splitlines()[-END_LINES:])


class Here:
    """Runs programs, one for each processor at a time and one more."""

    def __init__(self, say):
        self.say = say
        self.tally = Tally()
        self.one_at_a_time = threading.Lock()
        self.begun = time.monotonic()
        self.pool = ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1)
        # By executable: what comes of each program.
        self.started = {}

    def start(self, programs):
        for program in programs:
            self.started[program.command[0]] = self.pool.submit(self._run, program)

    def skipped(self, executable):
        """Waits for a program. Returns the names of the tests that it has skipped; None if it did
        not print all of them."""
        tests = self.started[executable].result().skipped_tests
        return None if None in tests else tests

    def finish(self):
        """Waits, and returns the tally."""
        for one in self.started.values():
            one.result()
        self.tally.seconds = time.monotonic() - self.begun
        return self.tally

    def _run(self, program):
        started = time.monotonic()
        # Files, not pipes: a process that a test leaves behind would keep a pipe open.
        with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as account:
            status = subprocess.run(
                # The program's errors go to its output; the account is that of all its processes.
                [*CONTAINED, "sh", "-c", 'exec "$@" 2>&1', "sh", *program.limited()],
                cwd=program.directory,
                env=os.environ | {"RUST_BACKTRACE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=account,
            ).returncode
            if ENDING.is_set():
                return Tally()
            file.seek(0)
            output = file.read().decode(errors="replace")
            account.seek(0)
            processor_seconds = float(account.read().split()[-1])
        seconds = time.monotonic() - started
        with self.one_at_a_time:
            took = Took(seconds, processor_seconds)
            result = self.tally.add_program(program, status, took, output)
            what = "FAILED" if result.failures else "ok"
            self.say(f"{program}: {what}, {result.passed} passed, {seconds:.0f} s, {processor_seconds:.0f} s of a processor")
            if result.failures:
                self.say(f"=== {program}: {shlex.join(program.command)}\n{end(output)}")
        return result
