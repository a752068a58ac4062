"""Acts of senders and receivers at network interfaces, for actor.py, which comes after this text and after
packet_acts.py.

The host has the interfaces `usher-a` and `usher-b`, of 10.77.1.1 and 10.77.2.1. The interface `peer` of the
network namespace `usher-a` is at the other end of the first, with 10.77.1.2, and so with `usher-b`.

Time does not decide. `sent` and `got` wait for what must come. `unsent` and `ungot` let a marker follow, by a way
that is open: what has not come before the marker does not come, since each packet is processed where it is sent."""

import ctypes
import itertools
import os
import select
import socket as sockets
import struct

ALL, ARP, OTHER = 3, 0x806, 0x88B5
# linux/if_packet.h
PACKET_LEVEL, RECEIVING_RING, BYPASS = 263, 5, 20
XDP = 44
HOST, PEER, BEYOND = "10.77.1.1", "10.77.1.2", "10.77.2.2"
HOST_6, PEER_6 = "fd77:1::1", "fd77:1::2"
# A packet that arrives at all arrives sooner.
LONG = 600

tokens = itertools.count(1)
taps = {}


def ip(arguments):
    assert os.spawnvp(os.P_WAIT, "ip", ["ip", *arguments.split(" ")]) == 0, arguments


def tap(name, interface, network=""):
    """Captures by an interface from now on, as libpcap does."""

    def make():
        one = sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, 0)
        one.bind((interface, ALL))
        return one

    taps[name] = made_in(network, make)


def tap_all(name):
    """Captures by all interfaces."""
    taps[name] = sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, sockets.htons(ALL))


def rebind(name, interface):
    taps[name].bind((interface, ALL))


def takes_ring(name):
    taps[name].setsockopt(PACKET_LEVEL, RECEIVING_RING, struct.pack("4I", 4096, 1, 2048, 2))


def drained(name):
    """Reads what a socket has captured."""
    one = taps[name]
    one.setblocking(False)
    try:
        while True:
            one.recv(4096)
    except BlockingIOError:
        pass


def frames(one):
    one.setblocking(True)
    one.settimeout(LONG)
    while True:
        yield one.recv(4096)


def sends_datagram(network, address, port, payload):
    """A process sends a datagram."""
    family = sockets.AF_INET6 if ":" in address else sockets.AF_INET
    with made_in(network, lambda: sockets.socket(family, sockets.SOCK_DGRAM)) as one:
        one.sendto(payload, (address, port))


def checksum(text):
    total = sum(struct.unpack(f"!{len(text) // 2}H", text))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def echo(network, address, token):
    """Asks for an echo (ping)."""
    # Of an even length, by which the sum is made.
    body = payload(token) + b"."
    head = struct.pack("!BBHHH", 8, 0, 0, token, 1)
    text = struct.pack("!BBHHH", 8, 0, checksum(head + body), token, 1) + body
    raw = (sockets.AF_INET, sockets.SOCK_RAW, sockets.IPPROTO_ICMP)
    with made_in(network, lambda: sockets.socket(*raw)) as one:
        one.sendto(text, (address, 0))


def syn(network, address, port):
    with made_in(network, lambda: sockets.socket()) as one:
        one.setblocking(False)
        error = one.connect_ex((address, port))
        if error not in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
            raise OSError(error, os.strerror(error))


def station(interface, network=""):
    """The address of an interface on its link."""
    with made_in(network, lambda: sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, 0)) as one:
        one.bind((interface, 0))
        return one.getsockname()[4]


def packet(payload, interface, network="", bypass=False, is_named=False):
    """A packet socket sends a frame."""
    frame = b"\xff" * 6 + b"\2usher" + struct.pack("!H", OTHER) + payload
    with made_in(network, lambda: sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, 0)) as one:
        if bypass:
            one.setsockopt(PACKET_LEVEL, BYPASS, 1)
        if is_named:
            one.sendto(frame, (interface, OTHER))
            return
        # Of a protocol that does not come, so that it does not capture.
        one.bind((interface, OTHER))
        one.send(frame)


def keep_packet(interface):
    """Makes a packet socket that passes by queues, for `send_kept`."""
    one = sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, 0)
    one.setsockopt(PACKET_LEVEL, BYPASS, 1)
    one.bind((interface, OTHER))
    taps["kept"] = one


def send_kept(payload):
    taps["kept"].send(b"\xff" * 6 + b"\2usher" + struct.pack("!H", OTHER) + payload)


def payload(token):
    return b"usher%08d" % token


def ask_arp(address, interface, network=""):
    """Asks on the link who has an address."""
    own = station(interface, network)
    head = b"\xff" * 6 + own + struct.pack("!HHHBBH", ARP, 1, 0x800, 6, 4, 1)
    text = head + own + sockets.inet_aton(PEER) + bytes(6) + sockets.inet_aton(address)
    with made_in(network, lambda: sockets.socket(sockets.AF_PACKET, sockets.SOCK_RAW, 0)) as one:
        one.bind((interface, OTHER))
        one.send(text)


def mark(network, interface, token):
    """A marker that a tap of this interface sees."""
    packet(b"marker%08d" % token, interface, network)


def is_arp(operation, address):
    """Whether a frame is of ARP: a question for the address (1), or an answer from it (2)."""
    at = 38 if operation == 1 else 28
    head, wanted = struct.pack("!H", operation), sockets.inet_aton(address)
    return lambda frame: (
        frame[12:14] == struct.pack("!H", ARP) and frame[20:22] == head and frame[at : at + 4] == wanted
    )


def neighbour(address):
    ip(f"neigh replace {address} dev usher-a use")


# Packets that leave the host by `usher-a`: how each is sent, and how its frame is known at the other end.
def leaving(kind, token):
    text = payload(token)
    has_text = lambda frame: text in frame
    fresh, fresh_6 = f"10.77.1.{token % 200 + 20}", f"fd77:1::{token + 32:x}"
    return {
        "udp": (lambda: sends_datagram("", PEER, 9, text), has_text),
        "udp6": (lambda: sends_datagram("", PEER_6, 9, text), has_text),
        "ping": (lambda: echo("", PEER, token), has_text),
        "tcp": (
            lambda: syn("", PEER, 4000 + token),
            lambda frame: frame[23:24] == b"\6" and frame[36:38] == struct.pack("!H", 4000 + token),
        ),
        "arp": (lambda: neighbour(fresh), is_arp(1, fresh)),
        "nd": (
            lambda: neighbour(fresh_6),
            lambda frame: frame[54:55] == b"\x87"
            and frame[62:78] == sockets.inet_pton(sockets.AF_INET6, fresh_6),
        ),
        "forwarded": (lambda: sends_datagram("usher-b", PEER, 9, text), has_text),
        "packet": (lambda: packet(text, "usher-a"), has_text),
        "named": (lambda: packet(text, "usher-a", is_named=True), has_text),
        "bypass": (lambda: packet(text, "usher-a", bypass=True), has_text),
        "kept": (lambda: send_kept(text), has_text),
    }[kind]


# Packets that enter the host by an interface from its peer: how each is sent, the tap that captures what
# follows, and how that frame is known.
def entering(kind, token, network):
    text = payload(token)
    has_text = lambda frame: text in frame
    port = 4000 + token
    return {
        "arp": (lambda: ask_arp(HOST, "peer", network), "peer", is_arp(2, HOST)),
        "ping": (
            lambda: echo(network, HOST, token),
            "peer",
            lambda frame: frame[34:35] == b"\0" and text in frame,
        ),
        "reset": (
            lambda: syn(network, HOST, port),
            "peer",
            lambda frame: frame[34:36] == struct.pack("!H", port) and frame[47] & 4,
        ),
        "forwarded": (lambda: sends_datagram(network, BEYOND, 9, text), "beyond", has_text),
    }[kind]


def awaited(name, is_wanted):
    next(frame for frame in frames(taps[name]) if is_wanted(frame))


def missed(name, network, token, is_wanted):
    """Requires that nothing like this has come. The marker leaves by the interface of the tap."""
    mark(network, "peer", token)
    marker = b"marker%08d" % token
    for frame in frames(taps[name]):
        if is_wanted(frame):
            raise OSError(errno.EEXIST, "it came")
        if marker in frame:
            return


def sent(kind):
    send, is_wanted = leaving(kind, next(tokens))
    send()
    awaited("peer", is_wanted)


def unsent(kind):
    """Is sent and does not come. Where the sender is told, the result is the error."""
    token = next(tokens)
    send, is_wanted = leaving(kind, token)
    error = None
    try:
        send()
    except OSError as told:
        error = told
    missed("peer", "usher-a", token, is_wanted)
    if error:
        raise error


def got(kind, network="usher-a"):
    send, name, is_wanted = entering(kind, next(tokens), network)
    send()
    awaited(name, is_wanted)


def ungot(kind, network="usher-a"):
    token = next(tokens)
    send, name, is_wanted = entering(kind, token, network)
    send()
    missed(name, {"peer": "usher-a", "beyond": "usher-b"}[name], token, is_wanted)


def receives(address, network="usher-a"):
    """A socket of the host gets a datagram of the peer: before one that this host sends itself."""
    text = payload(next(tokens))
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as one:
        one.bind((address, 0))
        one.settimeout(LONG)
        port = one.getsockname()[1]
        sends_datagram(network, address, port, text)
        sends_datagram("", address, port, b"marker")
        first = one.recv(64)
        if first == b"marker":
            raise OSError(errno.EACCES, "dropped")
        assert first == text
        assert one.recv(64) == b"marker"


def sends(address, network=""):
    sends_datagram(network, address, 9, payload(next(tokens)))


def catches(name, network="usher-a"):
    """A tap of the host sees what the peer sends to an address that nobody has."""
    text = payload(next(tokens))
    packet(text, "peer", network)
    awaited(name, lambda frame: text in frame)


def binds_xdp(interface):
    """A socket of AF_XDP is bound; without memory the kernel itself refuses that (EINVAL)."""
    with sockets.socket(XDP, sockets.SOCK_RAW) as one:
        address = struct.pack("HHIII", XDP, 0, sockets.if_nametoindex(interface), 0, 0)
        checked(kernel.bind(one.fileno(), address, len(address)))


INTERFACE_ACTS = {
    "tap": tap,
    "tap_all": tap_all,
    "rebind": rebind,
    "takes_ring": takes_ring,
    "drained": drained,
    "keep_packet": keep_packet,
    "sent": sent,
    "unsent": unsent,
    "got": got,
    "ungot": ungot,
    "receives": receives,
    "sends": sends,
    "catches": catches,
    "binds_xdp": binds_xdp,
}
