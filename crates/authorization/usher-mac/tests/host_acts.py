"""Acts of users and groups on ports, for actor.py, which comes after this text and after label_acts.py."""

import os
import socket

PORT_KINDS = {
    "tcp": (socket.SOCK_STREAM, 6),
    "udp": (socket.SOCK_DGRAM, 17),
    "mptcp": (socket.SOCK_STREAM, 262),
    "lite": (socket.SOCK_DGRAM, 136),
}


def take_groups(gid):
    """The group, and the supplementary ones behind `+`: `80+7`."""
    first, *groups = gid.split("+")
    os.setgroups([int(group) for group in groups])
    os.setresgid(int(first), int(first), int(first))


def as_ids(uid, gid, name, *arguments):
    """Does an act as a process with these ids."""

    def run():
        take_groups(gid)
        os.setresuid(int(uid), int(uid), int(uid))
        ACTS[name](*arguments)

    apart(run)


def binds(kind, version, port):
    family, address = (socket.AF_INET6, "::1") if version == "6" else (socket.AF_INET, "127.0.0.1")
    with socket.socket(family, *PORT_KINDS[kind]) as one:
        one.bind((address, int(port)))


HOST_ACTS = {"as": as_ids, "binds": binds}
