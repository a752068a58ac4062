"""Acts of users, groups and partitions on ports and on each other's processes, for actor.py, which comes
after this text and after label_acts.py, attack_acts.py and service_acts.py."""

import ctypes
import errno
import os
import resource
import signal
import socket
import struct

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


# Other processes.


class Waiting:
    """A child that has done something, and waits. It ends by itself, as this process may not be permitted to
    signal it."""

    def __init__(self, begin):
        (ready, tell), (wait, self.end) = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self.end)
                begin()
                dumpable()
                # PR_SET_PTRACER: by anybody, where Yama asks.
                libc.prctl(0x59616D61, -1, 0, 0, 0)
                os.write(tell, b"x")
                os.read(wait, 1)
            finally:
                os._exit(0)
        os.close(tell)
        os.close(wait)
        assert os.read(ready, 1)
        os.close(ready)

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        os.close(self.end)
        os.waitpid(self.process, 0)


def seize(process):
    # PTRACE_SEIZE
    checked(kernel.ptrace(0x4206, process, None, None))


def read_memory(process):
    own = ctypes.create_string_buffer(8)
    here = words(ctypes.addressof(own), 8)
    # Any address: whether the memory may be read is asked first.
    try:
        system_call(310, process, here, 1, words(8, 8), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


def environ(process):
    with open(f"/proc/{process}/environ", "rb"):
        pass


def listed_in(process, place):
    if str(process) not in os.listdir(place):
        raise FileNotFoundError(errno.ENOENT, place)


WAYS = {
    "kill": lambda process: os.kill(process, 0),
    "continue": lambda process: os.kill(process, signal.SIGCONT),
    "seize": seize,
    "read": read_memory,
    "environ": environ,
    "scheduler": lambda process: os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0)),
    "affinity": lambda process: os.sched_setaffinity(process, os.sched_getaffinity(0)),
    "nice": lambda process: os.setpriority(os.PRIO_PROCESS, process, 1),
    "limit": lambda process: resource.prlimit(process, resource.RLIMIT_CORE, (0, 0)),
}


# All capabilities but CAP_SYS_ADMIN and CAP_PERFMON, by which the kernel lets a process read the environment
# and the maps of every other one without asking a module.
WITHOUT_PERFMON = (1 << 41) - 1 & ~(1 << 21 | 1 << 38)


def keep_capabilities(which):
    low, high = which & 0xFFFFFFFF, which >> 32
    header, content = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", low, low, 0, high, high, 0)
    checked(kernel.capset(header, content))


def traced_by(uid, gid):
    """A child asks this process, which gets these ids after fork(2), to trace it. The child is as this one
    was."""
    (ready, tell), (wait, go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(wait, 1)
        # PTRACE_TRACEME
        result = kernel.ptrace(0, 0, None, None)
        os._exit(ctypes.get_errno() if result else 0)
    take_groups(gid)
    os.setresuid(int(uid), 0, 0)
    os.write(go, b"x")
    ends(child)


def reaches(kind, uid, gid, other, other_gid, way, place):
    """A process of a user does something to one of another user, whose saved uid is the first one's. `root`:
    with capabilities of root, `admin`: with all of them, by its effective uid."""

    def be_other():
        take_groups(other_gid)
        os.setresuid(int(other), int(uid) if kind == "plain" else int(other), int(uid))

    def run():
        take_groups(gid)
        own = int(uid) if kind == "plain" else 0
        os.setresuid(int(uid), own, own)
        if kind == "root":
            keep_capabilities(WITHOUT_PERFMON)
        if way == "traceme":
            traced_by(other, other_gid)
        elif way == "entry":
            listed_in(process, place)
        else:
            WAYS[way](process)

    with Waiting(be_other) as process:
        apart(run)


# Partitions.


def within(element, name, *arguments):
    """Does an act as a process with this element."""

    def run():
        if element != "none":
            label(element)
        ACTS[name](*arguments)

    apart(run)


def kill_by_program(process):
    """By a program that this process executes."""
    child, errors = errors_of("/bin/kill", "-0", str(process))
    if "not permitted" in errors:
        os.waitpid(child, 0)
        raise PermissionError(errno.EPERM, errors)
    ended(child)


def enters_by_program(element):
    """A process without a partition has its next program enter one; what that executes cannot signal this
    process, which is in none."""

    child = os.fork()
    if child == 0:
        try:
            label_at_exec(element)
            os.execv("/bin/sh", ["sh", "-c", f"! /bin/kill -0 {os.getppid()} 2>/dev/null"])
        finally:
            os._exit(255)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise PermissionError(errno.EPERM, "the program is in no partition")



class Made:
    """Objects with names, of a process with an element."""

    KEY = 0x55534852

    def __init__(self):
        self.name = f"\0usher-partition-{os.getpid()}"

    def make(self):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.bind(self.name + "s")
        self.stream.listen()
        self.datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagram.bind(self.name + "d")
        # IPC_CREAT and 0666: msgget, semget, shmget.
        system_call(68, self.KEY, 0o1666)
        system_call(64, self.KEY, 1, 0o1666)
        system_call(29, self.KEY, 4096, 0o1666)

    def stream_connects(self):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(self.name + "s")

    def datagram_sends(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(b"x", self.name + "d")

    def end(self):
        """Root removes what outlives its maker: IPC_RMID."""
        for get, control, arguments in ((68, 71, (0,)), (64, 66, (0, 0)), (29, 31, (0, 0))):
            try:
                number = system_call(get, self.KEY, *arguments)
            except FileNotFoundError:
                continue
            system_call(control, number, 0, 0, 0)


def crosses(uid, own, other, way):
    """A process of a user with an element does something to one with another element, or to what that has
    made."""
    made = Made()
    ways = {
        "in_child": lambda process: apart(os.kill, process, 0),
        "by_program": kill_by_program,
        "stream": lambda _: made.stream_connects(),
        "datagram": lambda _: made.datagram_sends(),
        "queue": lambda _: system_call(68, Made.KEY, 0),
        "semaphore": lambda _: system_call(64, Made.KEY, 0, 0),
        "memory": lambda _: system_call(29, Made.KEY, 0, 0),
        **WAYS,
    }

    def begin():
        become(other, uid)
        if way in ("stream", "datagram", "queue", "semaphore", "memory"):
            made.make()

    def run(process):
        become(own, uid)
        ways[way](process)

    try:
        with Waiting(begin) as process:
            apart(run, process)
    finally:
        made.end()


HOST_ACTS = {
    "as": as_ids,
    "binds": binds,
    "reaches": reaches,
    "within": within,
    "enters_by_program": enters_by_program,
    "crosses": crosses,
}
