"""Does with sockets what a test says, one line of code after another, and answers each."""

import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time

SO_MARK = 36

# The seconds that calls on new sockets wait.
limit = 60


def mark(of):
    return of.getsockopt(socket.SOL_SOCKET, SO_MARK) & 0xFFFFFFFF


def new(family, kind):
    made = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, kind)
    made.settimeout(limit)
    return made


def tcp(family=4):
    return new(family, socket.SOCK_STREAM)


def udp(family=4):
    return new(family, socket.SOCK_DGRAM)


def reset(source, port, destination, to):
    """Forges a reset from another program's port, in the clear."""
    segment = struct.pack("!HHIIBBHHH", port, to, 1, 1, 0x50, 4, 0, 0, 0)
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    words = struct.unpack("!16H", ends + struct.pack("!BBH", 0, 6, len(segment)) + segment)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    segment = segment[:16] + struct.pack("!H", ~total & 0xFFFF) + segment[18:]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)
    raw.bind((source, 0))
    raw.sendto(segment, (destination, 0))


def freeze(table):
    """Makes a pinned table read-only for system calls."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    path = ctypes.create_string_buffer(table.encode())

    def bpf(command, attributes):
        attributes = ctypes.create_string_buffer(attributes, 128)
        result = libc.syscall(number, command, attributes, len(attributes))
        if result < 0:
            raise OSError(ctypes.get_errno(), table)
        return result

    opened = bpf(7, struct.pack("=Q", ctypes.addressof(path)))  # BPF_OBJ_GET
    bpf(22, struct.pack("=I", opened))  # BPF_MAP_FREEZE
    os.close(opened)


def capture(interface):
    """Sees every packet that arrives at the interface."""
    seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    seen.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    seen.bind((interface, 0))
    seen.setblocking(False)
    return seen


def protocols(seen):
    """How many packets of each protocol came, and for ESP of each SPI; not neighbour discovery."""
    found = {}
    while True:
        try:
            packet = seen.recv(65536)
        except BlockingIOError:
            return dict(sorted(found.items()))
        kind = packet[12:14]
        if kind == b"\x08\x00":
            protocol, header = packet[23], 34
        elif kind == b"\x86\xdd" and packet[20] not in (0, 58):
            protocol, header = packet[20], 54
        else:
            continue
        if protocol == 50:
            protocol = int.from_bytes(packet[header : header + 4], "big")
        found[protocol] = found.get(protocol, 0) + 1


def stop():
    """Ends what goes on until then, in all processes."""
    open("/mnt/stop", "w").close()


def is_over():
    return os.path.exists("/mnt/stop")


def keep_trying(acts):
    """Counts the outcomes of each act, by errno, until `stop`."""
    counts = {name: {} for name in acts}
    while not is_over():
        for name, act in acts.items():
            number = 0
            try:
                act()
            except OSError as error:
                number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
            counts[name][number] = counts[name].get(number, 0) + 1
        time.sleep(0.001)
    return counts


def destinations(seen):
    """Counts packets of TCP and UDP in the clear by their destinations, until `stop`."""
    counts = {}
    seen.settimeout(0.1)
    while True:
        try:
            packet = seen.recv(65536)
        except TimeoutError:
            if is_over():
                return counts
            continue
        if packet[12:14] == b"\x08\x00" and packet[23] in (6, 17):
            to = socket.inet_ntop(socket.AF_INET, packet[30:34])
        elif packet[12:14] == b"\x86\xdd" and packet[20] in (6, 17):
            to = socket.inet_ntop(socket.AF_INET6, packet[38:54])
        else:
            continue
        counts[to] = counts.get(to, 0) + 1


known = globals()
print("ready", flush=True)
for line in sys.stdin:
    known["r"] = None
    try:
        exec(line.strip().replace("\x1e", "\n"), known)
        print("ok", repr(known["r"]).replace("\n", " "), flush=True)
    except OSError as error:
        number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
        print("errno", number, flush=True)
    except Exception as error:
        print("failed", repr(error).replace("\n", " "), flush=True)
