"""Acts about packets, for actor.py, which comes after this text and after label_acts.py and
object_acts.py."""

import ctypes
import errno
import os
import socket as sockets
import struct

NETWORK = 0x40000000
# SO_MEMINFO, which has the packets that the socket has dropped.
MEMORY, DROPPED = 55, 8
# Of a socket: type and protocol. Those who receive speak TCP where those who send speak MPTCP.
KINDS = {
    "tcp": (sockets.SOCK_STREAM, 0),
    "mptcp": (sockets.SOCK_STREAM, sockets.IPPROTO_MPTCP),
    "udp": (sockets.SOCK_DGRAM, 0),
}
GROUP = "239.77.0.1"
# NETLINK_USERSOCK
USERSOCK = 2


def dropped(one):
    return struct.unpack("9I", one.getsockopt(sockets.SOL_SOCKET, MEMORY, 36))[DROPPED]


def made_in(network, make):
    """What this makes in the network namespace of that name; empty: in this one."""
    if not network:
        return make()
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/run/netns/{network}", os.O_RDONLY)
    checked(kernel.setns(other, NETWORK))
    try:
        return make()
    finally:
        checked(kernel.setns(own, NETWORK))


def receiver(family, kind, address):
    one = sockets.socket(family, kind)
    one.bind((address, 0))
    if kind == sockets.SOCK_STREAM:
        one.listen()
    one.setblocking(False)
    return one


def has_come(one):
    try:
        if one.type == sockets.SOCK_STREAM:
            ends_kept.append(one.accept()[0])
        else:
            one.recv(1)
        return True
    except BlockingIOError:
        return False


def netlink_receiver():
    one = sockets.socket(sockets.AF_NETLINK, sockets.SOCK_RAW, USERSOCK)
    one.bind((0, 0))
    one.setblocking(False)
    return one.detach()


def waits_for_netlink(element, sender):
    """A socket of a process with an element gets a netlink message of a process with another one."""
    one = sockets.socket(fileno=made_at(element, netlink_receiver))

    def send():
        label(sender)
        other = sockets.socket(sockets.AF_NETLINK, sockets.SOCK_RAW, USERSOCK)
        other.sendto(struct.pack("IHHII", 16, 16, 0, 0, 0), one.getsockname())

    apart(send)
    try:
        one.recv(1)
    except BlockingIOError:
        raise OSError(errno.EACCES, "nothing came") from None


def be(name):
    """This process has the name from now on; empty: no module has labels."""
    if name:
        label("test/" + name)


def arrive(name, kind, address, sender="", home=""):
    """A packet of a socket `closed` arrives at a socket of this name, each in a network namespace. Time
    does not decide: the packet is there, or the receiving socket has dropped it. The address has `_` for
    `:`."""
    kind, protocol = KINDS[kind]
    address = address.replace("_", ":")
    family = sockets.AF_INET6 if ":" in address else sockets.AF_INET

    def run():
        be(name)
        one = made_in(home, lambda: receiver(family, kind, address))
        be(name and "closed")
        sending = made_in(sender, lambda: sockets.socket(family, kind, protocol))
        sending.setblocking(False)
        assert sending.connect_ex(one.getsockname()) in (0, errno.EINPROGRESS)
        if kind == sockets.SOCK_DGRAM:
            sending.send(b"x")
        be(name)
        await_packet(one)

    apart(run)


def hears(element):
    """A socket of a process with this element, or `none`, gets what it sends to itself by loopback."""

    def run():
        if element != "none":
            label(element)
        one = receiver(sockets.AF_INET, sockets.SOCK_DGRAM, "127.0.0.1")
        one.sendto(b"x", one.getsockname())
        await_packet(one)

    apart(run)


def await_packet(one):
    while not dropped(one):
        if has_come(one):
            return
    assert not has_come(one)
    raise OSError(errno.EACCES, "dropped")


def multicast(name, address):
    """A socket `closed` sends by the interface of this address to a group that a socket of this name has
    joined there: the kernel hands it a copy."""

    def run():
        label("test/" + name)
        one = receiver(sockets.AF_INET, sockets.SOCK_DGRAM, GROUP)
        own = sockets.inet_aton(address)
        group = sockets.inet_aton(GROUP) + own
        one.setsockopt(sockets.IPPROTO_IP, sockets.IP_ADD_MEMBERSHIP, group)
        label("test/closed")
        sending = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM)
        sending.setsockopt(sockets.IPPROTO_IP, sockets.IP_MULTICAST_IF, own)
        sending.sendto(b"x", one.getsockname())
        label("test/" + name)
        await_packet(one)

    apart(run)


def send(name, kind, address, home):
    """A socket of this name sends to one in another network namespace, where nothing is refused."""
    kind, protocol = KINDS[kind]
    address = address.replace("_", ":")
    family = sockets.AF_INET6 if ":" in address else sockets.AF_INET

    def run():
        label("test/closed")
        one = made_in(home, lambda: receiver(family, kind, address))
        place = one.getsockname()
        label("test/" + name)
        sending = sockets.socket(family, kind, protocol)
        sending.connect(place)
        if kind == sockets.SOCK_DGRAM:
            sending.send(b"x")
        label("test/closed")
        while not has_come(one):
            pass

    apart(run)


def datagram(name):
    """A UNIX datagram of a process `closed` arrives at one of this name. It is there when send(2) ends."""

    address = "\0" + fresh_name("packet")

    def run():
        label("test/" + name)
        one = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
        one.bind(address)
        one.setblocking(False)
        label("test/closed")
        sending = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
        sending.sendto(b"x", address)
        label("test/" + name)
        if not has_come(one):
            raise OSError(errno.EACCES, "dropped")

    apart(run)


PACKET_ACTS = {
    "arrive": arrive,
    "hears": hears,
    "waits_for_netlink": waits_for_netlink,
    "multicast": multicast,
    "send": send,
    "datagram": datagram,
}
