#!/bin/bash
# nsenter and unshare, when the command that they wait for is stopped and continued.
#
# Both fork where they enter or make a namespace of processes, wait for their command, and pass its exit
# status on. A supervisor that stops the command itself (SIGSTOP, to see what a stalled daemon does) and
# continues it sends both signals to the command.
#
# Guess before the run: both only wait, so they end with the command.
# Seen with util-linux 2.38.1: unshare does. nsenter stops itself when its command stops, stays stopped
# when the command goes on, and so does not take notice of its end, for ever. SIGCONT to nsenter releases
# it, and its exit status is the command's. Whoever stops such a command has to continue nsenter as well.
#
# Needs root and apt. Exit status 0: as seen.
set -euo pipefail

folder=$(mktemp -d)
command=
trap 'kill -KILL $command 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet util-linux=2.38.1-5+deb12u3 2>/dev/null ||
    { echo "cannot download util-linux" >&2; exit 1; }
dpkg-deb --extract util-linux_*.deb files
tools=$folder/files/usr/bin

# The state of a process, one letter; "ended" once it is gone.
state() {
    sed -E 's/.*\) (.).*/\1/' "/proc/$1/stat" 2>/dev/null || echo ended
}

# Waits up to three seconds until a process has this state, and prints the one that it has then.
becomes() {
    for _ in {1..60}; do
        if [ "$(state "$1")" = "$2" ]; then
            break
        fi
        sleep 0.05
    done
    state "$1"
}

# Runs a command by a tool, and stops, continues and ends it. Prints the tool's state afterwards.
try() {
    local tool
    "$@" sh -c 'sleep 100; exit 7' 2>/dev/null &
    tool=$!
    command=$(until pgrep -P "$tool"; do sleep 0.05; done)
    [ "$(becomes "$command" S)" = S ]
    kill -STOP "$command"
    [ "$(becomes "$command" T)" = T ]
    sleep 0.3
    kill -CONT "$command"
    [ "$(becomes "$command" S)" = S ]
    pkill -P "$command"
    becomes "$tool" ended
    kill -CONT "$tool" 2>/dev/null || true
    wait "$tool" || echo "status $?"
}

unshare=$(try "$tools/unshare" --pid --fork | tr '\n' ' ')
nsenter=$(try "$tools/nsenter" --target $$ --pid | tr '\n' ' ')
echo "unshare: $unshare"
echo "nsenter: $nsenter"
[ "$unshare" = "ended status 7 " ]
[ "$nsenter" = "T status 7 " ]
echo "as seen"
