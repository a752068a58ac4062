#!/bin/bash
# Whether dnsmasq asks its server again when no answer comes.
#
# A question that waits for the first SA with a server is lost if the negotiation takes longer than the kernel keeps
# the packet, and a test of names over IPsec sends one question through a forwarder.
#
# Guess before the run: yes, after some seconds, as a resolver of the C library does.
# Seen with dnsmasq 2.90: no. It passes each datagram of its client on, and none of its own: one question in the 12
# seconds for which a client waits that asks once, three for a client that asks three times.
#
# Needs apt and Debian 12, and no privilege. Exit status 0: as seen.
set -euo pipefail

PACKAGES=(dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libnetfilter-conntrack3 libnfnetlink0)
SERVER=5399
FORWARDER=5398

folder=$(mktemp -d)
cleanup() {
    local pids
    pids=$(jobs -p)
    # Both may have ended by themselves.
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]}" >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done

# A server that notes questions and answers none.
python3 - "$SERVER" >questions <<'PYTHON' &
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", int(sys.argv[1])))
while True:
    server.recvfrom(512)
    print("question", flush=True)
PYTHON
LD_LIBRARY_PATH=$(echo "$folder"/files/usr/lib/*-linux-gnu) files/usr/sbin/dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user="$(id -un)" \
    --no-resolv --no-hosts --listen-address=127.0.0.1 --bind-interfaces --port="$FORWARDER" \
    --server="127.0.0.1#$SERVER" 2>/dev/null &
sleep 1

# Asks so many times, each time after so many seconds, and prints how many questions the server has had.
ask() {
    python3 - "$FORWARDER" "$@" <<'PYTHON'
import socket, sys, time
port, times, seconds = map(int, sys.argv[1:])
name = b"\3www\7example\3com\0"
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(("127.0.0.1", port))
for _ in range(times):
    client.send(b"\1\2\1\0\0\1\0\0\0\0\0\0" + name + b"\0\1\0\1")
    time.sleep(seconds)
PYTHON
    wc -l <questions
}
once=$(ask 1 12)
thrice=$(($(ask 3 4) - once))
echo "questions at the server: $once of a client that asks once, $thrice of one that asks three times"
[ "$once $thrice" = "1 3" ] || { echo "dnsmasq asks by itself" >&2; exit 1; }
echo "as seen: dnsmasq passes questions on and repeats none"
