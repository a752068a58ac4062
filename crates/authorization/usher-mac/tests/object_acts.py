"""Acts about labels of objects without names, for actor.py, which comes after this text, label_acts.py and
attack_acts.py."""

import ctypes
import errno
import itertools
import os
import socket as sockets
import struct

kernel.mq_open.restype = ctypes.c_int
kernel.shmat.restype = ctypes.c_long
NOWAIT, CREATE = 0o4000, 0o1000
PRIVATE, REMOVE, STATE = 0, 0, 2
REMOUNT, BIND = 0x20, 0x1000
OPEN_TREE, MOVE_MOUNT = 428, 429
KEY = 0x6D6163
names = itertools.count()
# The ends that no use needs, so that they stay open.
ends_kept = []


def fresh_name(kind):
    return f"{kind}_{os.getpid()}_{next(names)}"


def pipe():
    reader, writer = os.pipe()
    os.write(writer, b"some of it")
    return [
        lambda: os.write(writer, b"x"),
        lambda: os.read(reader, 1),
        lambda: os.fstat(reader),
        lambda: os.close(os.open(f"/proc/self/fd/{reader}", os.O_RDONLY)),
    ]


def memory_file():
    file = os.memfd_create("memory")
    os.write(file, b"some of it")
    return [
        lambda: os.pwrite(file, b"x", 0),
        lambda: os.pread(file, 1, 0),
        lambda: os.fstat(file),
        lambda: os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY)),
    ]


def huge_memory_file():
    file = os.memfd_create("memory", os.MFD_HUGETLB)
    return [
        lambda: os.fstat(file),
        lambda: os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY)),
    ]


def posix_queue():
    name = ("/" + fresh_name("queue")).encode()
    checked(kernel.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None))
    return [lambda: os.close(checked(kernel.mq_open(name, os.O_RDWR)))]


def stream_pair():
    one, other = sockets.socketpair()
    ends_kept.append(other)
    other.send(b"some of it")
    return [
        lambda: one.send(b"x"),
        lambda: one.recv(1),
        lambda: one.getsockname(),
        lambda: os.write(one.fileno(), b"x"),
        lambda: os.read(one.fileno(), 1),
    ]


def listener(family, address):
    one = sockets.socket(family)
    one.bind(address)
    one.listen()
    return one


def connected(family, address):
    one = sockets.socket(family)
    one.connect(address)
    ends_kept.append(one)
    return one


def unix_listener():
    address = "\0" + fresh_name("listener")
    one = listener(sockets.AF_UNIX, address)
    connected(sockets.AF_UNIX, address)
    return [
        lambda: connected(sockets.AF_UNIX, address),
        lambda: one.accept(),
        lambda: one.listen(),
    ]


def unix_accepted():
    address = "\0" + fresh_name("accepted")
    one = listener(sockets.AF_UNIX, address)
    label("test/client")
    client = sockets.socket(sockets.AF_UNIX)
    label("test/closed")
    client.connect(address)
    client.send(b"some of it")
    ends_kept.append(client)
    accepted, _ = one.accept()
    return [lambda: accepted.send(b"x"), lambda: accepted.recv(1)]


def unix_datagrams():
    address = "\0" + fresh_name("datagrams")
    one = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
    one.bind(address)

    def send():
        other = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
        other.sendto(b"x", address)

    return [send, lambda: one.sendto(b"x", address)]


def tcp_listener():
    one = listener(sockets.AF_INET, ("127.0.0.1", 0))
    connected(sockets.AF_INET, one.getsockname())
    return [lambda: one.accept(), lambda: one.listen()]


def tcp_accepted(protocol=0):
    one = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, protocol)
    one.bind(("127.0.0.1", 0))
    one.listen()
    address = one.getsockname()
    label("test/client")
    connected(sockets.AF_INET, address).send(b"some of it")
    label("test/closed")
    accepted, _ = one.accept()
    return [
        lambda: accepted.send(b"x"),
        lambda: accepted.recv(1),
        lambda: accepted.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1),
        lambda: accepted.getsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE),
        lambda: accepted.getpeername(),
        lambda: accepted.shutdown(sockets.SHUT_RD),
    ]


def mptcp_accepted():
    """From a client that speaks TCP only."""
    return tcp_accepted(sockets.IPPROTO_MPTCP)


def udp():
    one = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    one.sendto(b"some of it", one.getsockname())
    return [
        lambda: one.sendto(b"x", ("127.0.0.1", 9)),
        lambda: one.recv(1),
        lambda: one.connect(("127.0.0.1", 9)),
    ]


def message_queue():
    queue = checked(kernel.msgget(PRIVATE, CREATE | 0o600))
    message = struct.pack("l8s", 1, b"message")
    checked(kernel.msgsnd(queue, message, 8, NOWAIT))
    buffer = ctypes.create_string_buffer(16)
    state = ctypes.create_string_buffer(4096)

    def receive():
        try:
            checked(kernel.msgrcv(queue, buffer, 8, 0, NOWAIT))
        except OSError as error:
            # The kernel passes over a message that a module refuses.
            assert error.errno == errno.ENOMSG, error
            raise OSError(errno.EACCES, "the message stays there") from None

    return [
        lambda: checked(kernel.msgsnd(queue, message, 8, NOWAIT)),
        receive,
        lambda: checked(kernel.msgctl(queue, STATE, state)),
        lambda: checked(kernel.msgctl(queue, REMOVE, None)),
    ]


def semaphores():
    key = os.getpid()
    own = checked(kernel.semget(key, 1, CREATE | 0o600))
    return [
        lambda: checked(kernel.semget(key, 1, 0)),
        lambda: checked(kernel.semop(own, struct.pack("Hhh", 0, 1, NOWAIT), 1)),
        lambda: checked(kernel.semctl(own, 0, REMOVE)),
    ]


def shared_memory():
    segment = checked(kernel.shmget(PRIVATE, 4096, CREATE | 0o600))
    return [
        lambda: checked(kernel.shmat(segment, None, 0)),
        lambda: checked(kernel.shmctl(segment, REMOVE, None)),
    ]


def file_system():
    """Mounted in a namespace of its own, by its root."""
    become_root_of_a_namespace()
    place, other = b"/mnt/within", b"/mnt/other"
    checked(kernel.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None))
    os.mkdir(place)
    os.mkdir(other)
    checked(kernel.mount(b"tmpfs", place, b"tmpfs", 0, None))

    def move():
        tree = checked(kernel.syscall(OPEN_TREE, -100, place, 1))
        try:
            checked(kernel.syscall(MOVE_MOUNT, tree, b"", -100, other, 4))
        finally:
            os.close(tree)

    return [
        lambda: os.statvfs(place),
        lambda: checked(kernel.mount(None, place, None, REMOUNT, b"size=1m")),
        lambda: checked(kernel.mount(place, place, None, BIND, None)),
        move,
        lambda: checked(kernel.umount2(place, 0)),
    ]


OBJECTS = {
    one.__name__: one
    for one in (
        pipe,
        memory_file,
        huge_memory_file,
        posix_queue,
        stream_pair,
        unix_listener,
        unix_accepted,
        unix_datagrams,
        tcp_listener,
        tcp_accepted,
        mptcp_accepted,
        udp,
        message_queue,
        semaphores,
        shared_memory,
        file_system,
    )
}


def used_as(kind, name):
    """Makes an object as `closed` and uses it under a name, in every way. Raises the error that all uses
    have. What the acting process needs itself was open before it had a label."""

    def uses():
        label("test/closed")
        made = OBJECTS[kind]()
        label("test/" + name)
        results = []
        for use in made:
            try:
                use()
                results.append(0)
            except OSError as error:
                results.append(error.errno)
        if any(results):
            assert set(results) == {errno.EACCES}, (kind, results)
            raise OSError(errno.EACCES, "refused")

    apart(uses)


def ipc_as(name):
    """Uses the semaphores of a common key under a name, which makes them if there are none."""

    def use():
        label("test/" + name)
        own = checked(kernel.semget(KEY, 1, CREATE | 0o600))
        checked(kernel.semop(own, struct.pack("Hhh", 0, 1, NOWAIT), 1))

    apart(use)


def remove_ipc():
    checked(kernel.semctl(checked(kernel.semget(KEY, 1, 0)), 0, REMOVE))


def remove_all_ipc():
    """Everybody's objects, also those that only `closed` uses."""

    def remove():
        label("test/closed")
        # `-a` alone is also about POSIX objects since util-linux 2.41.
        for kind in ("msg", "sem", "shm"):
            told("ipcrm", f"--all={kind}")

    apart(remove)


def many_ipc(rounds):
    """The kernel makes objects where others were that have ended: these have no label of those."""
    for _ in range(int(rounds)):

        def labelled():
            label("test/closed")
            for one in (message_queue(), semaphores(), shared_memory()):
                one[-1]()

        def unlabelled():
            for one in (message_queue(), semaphores(), shared_memory()):
                for use in one:
                    use()

        apart(labelled)
        apart(unlabelled)


def waits_for_message(own, maker):
    """A process with one element waits at a message queue that one with another has made; then a process
    without an element sends. EACCES: the message stays in the queue."""
    reader, writer = os.pipe()

    def make():
        label(maker)
        os.write(writer, str(checked(kernel.msgget(PRIVATE, 0o600))).encode())

    apart(make)
    queue = int(os.read(reader, 20))
    message = ctypes.create_string_buffer(struct.pack("l8s", 1, b"message"))
    child = os.fork()
    if child == 0:
        try:
            label(own)
            os.write(writer, b"x")
            kernel.msgrcv(queue, message, 8, 0, 0)
        finally:
            os._exit(0)
    try:
        os.read(reader, 1)
        while state_of(child) != "S":
            os.sched_yield()
        checked(kernel.msgsnd(queue, message, 8, 0))
        if kernel.msgrcv(queue, message, 8, 0, NOWAIT) >= 0:
            raise OSError(errno.EACCES, "the message was not received")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        checked(kernel.msgctl(queue, REMOVE, None))


def state_of(process):
    """As in /proc/PID/stat: `S` while it waits."""
    with open(f"/proc/{process}/stat") as state:
        return state.read().rsplit(")", 1)[1].split()[0]


OBJECT_ACTS = {
    "waits_for_message": waits_for_message,
    "used_as": used_as,
    "many_ipc": many_ipc,
    "ipc_as": ipc_as,
    "remove_ipc": remove_ipc,
    "remove_all_ipc": remove_all_ipc,
}
