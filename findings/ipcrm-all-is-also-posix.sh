#!/bin/bash
# What `ipcrm -a` removes.
#
# Tests and administrators end what processes have left behind with it. Its manual page has always been about System V
# IPC: message queues, semaphore sets, shared memory segments.
#
# Guess before the run: System V objects only, as in util-linux 2.38.
# Seen with util-linux 2.41.5: also each POSIX message queue, and each shared memory segment of other programs in
# /dev/shm. If /dev/mqueue is not mounted it says so, and its status is 0. `--all=shm`, `--all=sem`
# and `--all=msg` remove what they did before, and nothing POSIX.
#
# Needs root, apt and Debian 13. Exit status 0: as seen.
set -euo pipefail

VERSION=2.41.5-0+deb13u1

# Objects and mounts of its own.
if [ -z "${FINDING_INSIDE-}" ]; then
    FINDING_INSIDE=1 exec unshare --ipc --mount bash "$0"
fi
folder=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet "util-linux=$VERSION" >/dev/null 2>&1 ||
    { echo "cannot download util-linux $VERSION" >&2; exit 1; }
dpkg-deb --extract ./*.deb files
PATH=$folder/files/usr/bin:$PATH

mount -t tmpfs none /dev/shm
mkdir -p /dev/mqueue
mount -t mqueue none /dev/mqueue
# One object of each kind, of System V and of POSIX.
make_objects() {
    ipcmk --queue --semaphore 1 --shmem 100 >/dev/null
    touch /dev/mqueue/queue /dev/shm/segment
}
# The kinds of objects that there are.
left() {
    echo "$(wc -l </proc/sysvipc/msg) $(wc -l </proc/sysvipc/sem) $(wc -l </proc/sysvipc/shm)" \
        "$(ls /dev/mqueue) $(ls /dev/shm | xargs)"
}
make_objects
before=$(left)
for kind in msg sem shm; do ipcrm --all=$kind; done
by_kind=$(left)
make_objects
ipcrm -a
all=$(left)
printf 'before: %s\nby kind: %s\n-a: %s\n' "$before" "$by_kind" "$all"
[ "$before" = '2 2 2 queue segment' ] || { echo "the objects are not as meant" >&2; exit 1; }
[ "$by_kind" = '1 1 1 queue segment' ] || { echo "--all=KIND removes something else" >&2; exit 1; }
[ "$all" = '1 1 1  ' ] || { echo "-a leaves POSIX objects" >&2; exit 1; }
echo "as seen: -a removes POSIX objects as well"
