"""For tests inside a guest whose first process is systemd: commands, units, the journal, connections."""

import json
import subprocess
import sys
import time

PATIENCE = 120


def run(*command, check=True, **options):
    done = subprocess.run(command, text=True, capture_output=True, **options)
    if check and done.returncode != 0:
        print(run("journalctl", "--no-pager", "--lines=60", check=False).stdout)
        sys.exit(f"{command} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def systemctl(*arguments, check=True):
    return run("systemctl", *arguments, check=check).stdout.strip()


def is_active(unit):
    return systemctl("is-active", unit, check=False) == "active"


def journal(*matches):
    text = run("journalctl", "--quiet", "--output=json", "--no-pager", *matches, check=False).stdout
    return [json.loads(line) for line in text.splitlines()]


def eventually(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        if time.monotonic() > deadline:
            print(run("journalctl", "--no-pager", "--lines=80").stdout)
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.2)
    return found


def expect(condition, what, *told):
    if not condition:
        print(run("journalctl", "--no-pager", "--lines=80").stdout)
        sys.exit(f"{what}: {told}")
    print(f"ok: {what}", flush=True)


class Connection:
    """`usher connect` as a user, to a service of the host `here`."""

    def __init__(self, user, service):
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        self.process = subprocess.Popen(
            [*command, "usher", "connect", f"here:{service}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self):
        return self.process.stdout.readline().strip()

    def echoes(self, line):
        self.write(line)
        return self.read() == line

    def end(self):
        self.process.stdin.close()
        return self.process.wait(PATIENCE)
