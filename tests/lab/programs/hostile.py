"""The beginning of hostile processes' programs: the calls' packets, made by hand (docs/PROTOCOL.md)."""

import array, collections, ctypes, errno, os, platform, resource, select, signal, socket
import struct, sys, threading, time

VERSION = 2
CALLS = "/run/usher/keeper/calls.sock"
ATTACH, PRE_ACCEPT, SET_NET_USER, SETTLED, ACCEPTED, INFO = range(1, 7)
ANSWERS = {129: "attached", 130: "reserved", 131: "identity", 132: "queue", 133: "connection"}
REFUSED = 134
REFUSALS = {
    1: "truncated",
    2: "oversized",
    3: "unknown_version",
    4: "malformed",
    133: "overloaded",
    192: "not_this_account",
    194: "reservation_lapsed",
    195: "process_shared",
    196: "already_settled",
    198: "no_connection",
    199: "foreign_connection",
    200: "lacks_capabilities",
}

library = ctypes.CDLL(None, use_errno=True)
# Python's own calls change every thread of a process: the kernel's change one.
SYSTEM_CALLS = {
    "x86_64": {
        "setgroups": 116,
        "setresgid": 119,
        "setresuid": 117,
        "seccomp": 317,
        "pidfd_getfd": 438,
    },
    "aarch64": {
        "setgroups": 159,
        "setresgid": 149,
        "setresuid": 147,
        "seccomp": 277,
        "pidfd_getfd": 438,
    },
}[platform.machine()]

Reply = collections.namedtuple("Reply", "what body descriptors")


def tell(*words):
    print(*words, flush=True)


def hear():
    """The next line of the test's. Unbuffered, so that children hear what is for them."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit()
        line += byte
    return line.decode().strip()


def system_call(name, *arguments):
    result = library.syscall(SYSTEM_CALLS[name], *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def attempt(call, *arguments):
    """The result of a call: `done`, or the error's name."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"


def in_child(body):
    """Runs it in a forked child, to its end."""
    child = os.fork()
    if child == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            tell("failed:", repr(error))
            os._exit(1)
    os.waitpid(child, 0)


def allow_tracing():
    """By those who may at all: a process that has changed its user is no longer traced by others
    of that user, nor looked into."""
    PR_SET_DUMPABLE = 4
    library.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def only_thread():
    """Waits until the threads that were joined have gone from the kernel, too."""
    while len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.001)


class Keeper:
    """A conversation with the keeper."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(CALLS)

    def ask(self, kind, body=b""):
        return self.say(bytes([VERSION, kind]) + body)

    def say(self, packet, *descriptors):
        try:
            socket.send_fds(self.socket, [packet], descriptors)
        except BrokenPipeError:
            # Refused already, and the refusal may wait to be read.
            pass
        return self.answer()

    def answer(self):
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.socket, 640, 4)
        except ConnectionResetError:
            # The keeper has not read all; what it had sent comes after this.
            packet, descriptors, _, _ = socket.recv_fds(self.socket, 640, 4)
        if not packet:
            return Reply("closed", b"", [])
        kind, body = packet[1], packet[2:]
        if kind == REFUSED:
            (code,) = struct.unpack(">H", body)
            return Reply(REFUSALS.get(code, code), b"", [])
        return Reply(ANSWERS[kind], body, descriptors)


def attach(port=7000):
    keeper = Keeper()
    return keeper, keeper.ask(ATTACH, struct.pack(">H", port))


def reserve(port=7000):
    """A user for whom a connection waits: the conversation, the reservation, the user's number."""
    keeper, attached = attach(port)
    assert attached.what == "attached", attached
    reserved = keeper.ask(PRE_ACCEPT)
    assert reserved.what == "reserved", reserved
    return keeper, reserved.body[:16], struct.unpack(">I", reserved.body[16:])[0]


def claim(reservation):
    keeper = Keeper()
    return keeper, keeper.ask(SET_NET_USER, reservation)


def identity(reply):
    uid, gid, count = struct.unpack_from(">IIH", reply.body)
    return uid, gid, list(struct.unpack_from(f">{count}I", reply.body, 10))


def take_groups(gid, groups):
    numbers = (ctypes.c_uint32 * len(groups))(*groups)
    system_call("setgroups", len(groups), numbers)
    system_call("setresgid", gid, gid, gid)


def take_user(uid):
    return attempt(system_call, "setresuid", uid, uid, uid)


def settle(reservation):
    """Becomes the user and keeps the capabilities: gives the conversation and the queue."""
    keeper, reply = claim(reservation)
    assert reply.what == "identity", reply
    uid, gid, groups = identity(reply)
    take_groups(gid, groups)
    outcome = take_user(uid)
    assert outcome == "done", outcome
    queue = keeper.ask(SETTLED)
    assert queue.what == "queue", queue
    return keeper, queue.descriptors[0]


def filter_of_everything(answer):
    """A socket or seccomp filter with one answer to everything, as the kernel takes it."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, answer))
    program = ctypes.create_string_buffer(struct.pack("HP", 1, ctypes.addressof(code)), 16)
    program.code = code
    return program


def watch_own_calls():
    """A seccomp filter that permits everything, and the descriptor of its listener."""
    PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER, NEW_LISTENER, ALLOW = 38, 1, 8, 0x7FFF0000
    library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return system_call("seccomp", SET_MODE_FILTER, NEW_LISTENER, filter_of_everything(ALLOW))


def accept(queue):
    """The next connection of a queue, whose O_NONBLOCK is the keeper's."""
    listener = socket.socket(fileno=queue)
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    waiting.poll()
    connection, _ = listener.accept()
    connection.setblocking(True)
    listener.detach()
    return connection


def ids():
    """Real, effective, saved and file system user."""
    return open("/proc/self/status").read().split("Uid:")[1].split()[:4]


def greet(connection):
    connection.sendall(f"pid {os.getpid()} for {' '.join(ids())}\n".encode())


def serve(queue):
    """One connection: tells who serves, then sends back what comes."""
    connection = accept(queue)
    greet(connection)
    while data := connection.recv(4096):
        connection.sendall(data)


def take(target, file):
    """Takes a copy of another process's descriptor."""
    process = os.pidfd_open(target)
    try:
        os.close(system_call('pidfd_getfd', process, file, 0))
    finally:
        os.close(process)


def trace(target):
    PTRACE_ATTACH, PTRACE_DETACH = 16, 17
    if library.ptrace(PTRACE_ATTACH, target, None, None) == -1:
        raise OSError(ctypes.get_errno(), 'ptrace')
    os.waitpid(target, 0x40000000)
    library.ptrace(PTRACE_DETACH, target, None, None)


def open_memory(target):
    os.close(os.open(f'/proc/{target}/mem', os.O_RDWR))


def open_again(target, file):
    os.close(os.open(f'/proc/{target}/fd/{file}', os.O_RDWR | os.O_NONBLOCK))


def serve_and_tell(queue):
    """One connection, after telling this process's number, the connection's descriptor and a
    pipe's."""
    connection = accept(queue)
    pipe, other_end = os.pipe()
    tell(os.getpid(), connection.fileno(), pipe)
    greet(connection)
    while data := connection.recv(4096):
        connection.sendall(data)
