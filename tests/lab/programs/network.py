"""The beginning of network attackers' programs."""

import errno, os, select, socket, struct, sys


def tell(*words):
    print(*words, flush=True)


def hear():
    if not sys.stdin.readline():
        sys.exit()


def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def connect(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    peer = socket.socket(family, socket.SOCK_STREAM)
    peer.settimeout(60)
    return attempt(peer.connect, (address, port))


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff


def forge(source, server, port, flags):
    """Sends a TCP segment of no socket's, and gives the flags of the answer."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    raw.settimeout(60)
    own = 40000 + flags
    segment = lambda sum: struct.pack(">HHIIBBHHH", own, port, 7, 7, 5 << 4, flags, 1024, sum, 0)
    ends = socket.inet_aton(source) + socket.inet_aton(server)
    header = ends + struct.pack(">HH", socket.IPPROTO_TCP, 20)
    raw.sendto(segment(checksum(header + segment(0))), (server, 0))
    while True:
        packet = raw.recv(4096)
        answer = packet[(packet[0] & 15) * 4:]
        if struct.unpack(">HH", answer[:4]) == (port, own):
            names = {1: "FIN", 2: "SYN", 4: "RST", 8: "PSH", 16: "ACK"}
            return "+".join(names[bit] for bit in sorted(names) if answer[13] & bit)


def listen(address, port):
    """At a port that others may share who let this one share it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind((address, port))
    listener.listen(16)
    listener.setblocking(False)
    return listener


def waits(listener):
    try:
        listener.accept()
        return "stolen"
    except BlockingIOError:
        return "nothing"
