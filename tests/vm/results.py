"""Test programs, and their results, read from their output: for tests/vm/suites."""

import re
from collections import Counter
from dataclasses import dataclass, field

# The time that each program has: several times what the longest takes, for slow machines.
PROGRAM_SECONDS = 2700
# Programs that take at least this long are listed separately.
LONG_SECONDS = 30
LIBTEST_STATUSES = (0, 101)
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
IGNORED = re.compile(r"^test (\S+) \.\.\. ignored(?:, (.*))?$", re.M)
FAILED = re.compile(r"^    ([\w:]+)$", re.M)
# A test's line; what the test prints uncaptured comes before its outcome, which then has its own line.
BEGUN = re.compile(r"^test (\S+) \.\.\. ?(.*)$")
OUTCOMES = ("ok", "FAILED")
CAPTURED = re.compile(r"^---- (\S+) stdout ----$")
# With uncaptured output, it follows the name: `test NAME ... skipped: REASON`.
SKIPPED = re.compile(r"(?:^|test (\S+) \.\.\. )skipped(?: ([\w:]*\w))?: (.+)$")


@dataclass
class Program:
    """A test program: one process."""

    suite: str
    # The kernels of the list; None for all.
    kernels: list[str] | None
    name: str
    command: list[str]
    directory: str
    # It prints libtest's result; otherwise its exit status is the result.
    is_libtest: bool
    # Of the suite's guest.
    processors: int = 1
    # Whether it needs its own guest, whose first process is systemd.
    systemd: bool = False
    # Whether it prints several results, one after the other, as cargo does.
    has_parts: bool = False
    # In a guest: whether it runs only the tests that this machine has skipped.
    is_rest: bool = False
    # How many tests the command names; None when it names none.
    named: int | None = None

    def __str__(self):
        return f"{self.suite}: {self.name}"

    def limited(self):
        """Its command, which ends in time."""
        return ["timeout", "--kill-after=10", str(PROGRAM_SECONDS), *self.command]


@dataclass
class Took:
    """How long something ran, and how long processors of this machine worked for it."""

    seconds: float
    # 0 if it did not end, because then nothing has measured it.
    processor_seconds: float


@dataclass
class Tally:
    """Results."""

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    # Reasons, with the test that gave each.
    skipped: list[tuple[str, str]] = field(default_factory=list)
    # The same tests by libtest's names; None among them: one whose name it did not print.
    skipped_tests: set[str | None] = field(default_factory=set)
    seconds: float = 0
    # Of each suite's programs.
    programs: dict[str, dict[str, Took]] = field(default_factory=dict)

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skipped += other.skipped
        for suite, programs in other.programs.items():
            self.programs.setdefault(suite, {}).update(programs)

    def add_program(self, program, status, took, output):
        """Adds what came of one program, by its exit status and output."""
        of_program = judge(program, status, output)
        self.add(of_program)
        self.add_time(program.suite, program.name, took)
        return of_program

    def add_time(self, suite, name, took):
        """Adds the time of work that has no result of its own."""
        self.programs.setdefault(suite, {})[name] = took


def judge(program, status, output):
    tally = Tally()
    # Tests that start themselves again print results within the result: the last one counts.
    totals = RESULT.findall(output)
    # It ends otherwise only if its time is over, or by a signal.
    if program.is_libtest and (not totals or status not in LIBTEST_STATUSES):
        failed, running = before_its_end(output)
        during = f", during {running}" if running else ""
        tally.failures.append(f"{program}: no result, exit status {status}{during}")
        tally.failures += [f"{program}: {name}" for name in failed]
        # libtest prints what tests have skipped at the end.
        tally.skipped_tests.add(None)
        return tally
    if not program.has_parts:
        totals = totals[-1:]
    if not program.is_libtest:
        totals = [(status == 0, 0, 0)]
    passed, failed, ignored = (sum(map(int, column)) for column in zip(*totals))
    tally.skipped, tally.skipped_tests = skips(program, output)
    if ignored:
        tally.skipped += [(name, reason or "ignored") for name, reason in IGNORED.findall(output)]
    tally.passed = passed - (len(tally.skipped) - ignored)
    if failed:
        names = FAILED.findall(output[output.rfind("\nfailures:\n") :])
        tally.failures += [f"{program}: {name}" for name in names or [f"{failed} tests"]]
    elif status != 0:
        tally.failures.append(f"{program}: exit status {status}")
    if program.named is not None and passed + failed + ignored != program.named:
        ran = passed + failed + ignored
        tally.failures.append(f"{program}: {ran} tests ran of {program.named} that were named")
    return tally


def before_its_end(output):
    """Of a program without a result: the tests that failed, each once, and the one that ran last."""
    failed = {}
    running = None
    for line in output.splitlines():
        outcome = line
        if begun := BEGUN.match(line):
            running, outcome = begun.groups()
        if running and (outcome in OUTCOMES or begun and outcome.startswith("ignored")):
            if outcome == "FAILED":
                failed[running] = True
            running = None
    return list(failed), running


def skips(program, output):
    """Tests that said they cannot run here, each once, with the reason; and libtest's names of them."""
    found = {}
    tests = set()
    captured = None
    for line in output.splitlines():
        if block := CAPTURED.match(line):
            captured = block[1]
        elif line in ("successes:", "failures:"):
            captured = None
        elif said := SKIPPED.search(line):
            name = said[2] or said[1] or captured or f"{program.name}, number {len(found) + 1}"
            found.setdefault(name, said[3])
            tests.add(said[1] or captured)
    return list(found.items()), tests


def summarize(tallies, versions, seconds):
    """Prints tables of the kernels' results and of times, then skipped tests and failures."""
    print(f"\n{'kernel':<8}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  version")
    for kernel, tally in tallies.items():
        counts = f"{tally.passed:>8}{len(tally.failures):>8}{len(tally.skipped):>9}"
        print(f"{kernel:<8}{counts}{tally.seconds:>9.0f}  {versions[kernel]}")
    print_times(tallies, seconds)
    for kernel, tally in tallies.items():
        for reason, count in Counter(reason for _, reason in tally.skipped).items():
            names = ", ".join(name for name, why in tally.skipped if why == reason)
            print(f"skipped on {kernel}, {count}: {reason} ({names})")
        for failure in tally.failures:
            print(f"FAILED on {kernel}: {failure}")


def print_times(tallies, seconds):
    """Prints the times of suites and long programs, those with most processor time first."""
    suites = []
    programs = []
    for kernel, tally in tallies.items():
        for suite, of_suite in tally.programs.items():
            total = sum_of(of_suite.values())
            suites.append((total, suite, kernel))
            programs += [(took, f"{suite}: {name}", kernel) for name, took in of_suite.items()]
    # Guests that boot have no programs.
    long = [row for row in programs if row[0].seconds >= LONG_SECONDS and not row[1].startswith("(")]
    for title, rows in (("suite", suites), (f"program of {LONG_SECONDS} s or more", long)):
        if not rows:
            continue
        print(f"\n{title:<40}{'kernel':<8}{'seconds':>9}{'processor minutes':>19}")
        for took, name, kernel in sorted(rows, key=lambda row: -row[0].processor_seconds):
            minutes = took.processor_seconds / 60
            print(f"{name:<40}{kernel:<8}{took.seconds:>9.0f}{minutes:>19.1f}")
    minutes = sum_of(took for took, _, _ in suites).processor_seconds / 60
    print(f"\nall of it: {seconds / 60:.1f} minutes, {minutes:.1f} processor minutes")


def sum_of(times):
    times = list(times)
    return Took(sum(t.seconds for t in times), sum(t.processor_seconds for t in times))
