"""Acts about other processes, and about what comes and goes while a module decides, for actor.py, which
comes after this text and after attack_acts.py."""

import ctypes
import errno
import mmap
import os
import socket
import struct
import threading

# Another process of the same user.


def other(way):
    """Reaches for a process that waits."""
    reader, writer = os.pipe()
    room = ctypes.create_string_buffer(b"secret", 8)
    child = os.fork()
    if child == 0:
        dumpable()
        os.write(writer, b"x")
        while True:
            threading.Event().wait()
    try:
        assert os.read(reader, 1)
        reach(way, child, room, reader)
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(child, 9)
        os.waitpid(child, 0)


def reach(way, child, room, file):
    links = ("cwd", "root", "exe", "ns/mnt", "fd/0")
    files = ("mem", "environ", "maps", "auxv", "fdinfo/0", "smaps", "pagemap")
    if way in links:
        os.readlink(f"/proc/{child}/{way}")
    elif way.removeprefix("open ") in files:
        with open(f"/proc/{child}/{way.removeprefix('open ')}", "rb"):
            pass
    elif way == "open fd":
        with open(f"/proc/{child}/fd/{file}", "rb"):
            pass
    elif way in ("read", "write"):
        own = ctypes.create_string_buffer(8)
        here = words(ctypes.addressof(own), 8)
        there = words(ctypes.addressof(room), 8)
        system_call(310 if way == "read" else 311, child, here, 1, there, 1, 0)
    elif way == "seize":
        # PTRACE_SEIZE
        checked(kernel.ptrace(0x4206, child, None, None))
    elif way == "attach":
        checked(kernel.ptrace(16, child, None, None))
    elif way == "compare":
        # kcmp(2) of files.
        system_call(312, os.getpid(), child, 0, file, file)
    elif way == "locks":
        # get_robust_list(2)
        system_call(274, child, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))
    elif way == "take":
        # pidfd_getfd(2)
        process = os.pidfd_open(child)
        try:
            os.close(system_call(438, process, file, 0))
        finally:
            os.close(process)
    else:
        raise AssertionError(way)


def traced_by_parent():
    # PTRACE_TRACEME
    apart(lambda: checked(kernel.ptrace(0, 0, None, None)))


def received(path):
    """Gets an open file from another process. EBADF: it was left out."""
    one, other = socket.socketpair()
    with one, other:
        apart(lambda: socket.send_fds(other, [b"x"], [os.open(path, os.O_RDONLY)]))
        _, files, _, _ = socket.recv_fds(one, 1, 1)
    for file in files:
        os.close(file)
    if not files:
        raise OSError(errno.EBADF, "left out")


def received_by_ring(path):
    """Reads a file that another process has opened, and has put into this one's io_uring."""
    own = Ring()
    own.register(-1)

    def run():
        other = Ring()
        other.register(os.open(path, os.O_RDONLY))
        # IORING_MSG_SEND_FD of the first file there to the first one here, without an event here.
        content = entry(MSG_RING, own.file, address=1) + struct.pack("I", 1)
        other.submit(content.ljust(44, b"\0") + struct.pack("<IQ", 1, 0))

    apart(run)
    room = ctypes.create_string_buffer(1)
    content = bytearray(entry(READ, 0, address=ctypes.addressof(room), length=1))
    # The number is of the ring's table.
    content[1] = 1
    assert own.submit(bytes(content)) == 1
    os.close(own.file)


# Sockets.


def abstract_stream():
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as one:
        listener.bind(f"\0usher-attack-{os.getpid()}")
        listener.listen()
        one.connect(listener.getsockname())


def abstract_datagram():
    kind = socket.SOCK_DGRAM
    with socket.socket(socket.AF_UNIX, kind) as to, socket.socket(socket.AF_UNIX, kind) as one:
        to.bind(f"\0usher-attack-{os.getpid()}")
        one.sendto(b"x", to.getsockname())


def connect_by_ring():
    with socket.socket() as listener, socket.socket() as one:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ring_result(ring_connect(one, listener.getsockname()))


# Acts that go on while the test does something else.

begun = {}


def begin_call(text):
    """A thread sets a label, and waits in the kernel, which copies the text."""
    content = text.encode()
    context = words(BPF, 0, 32 + len(content), len(content)) + content
    room = Delayed(context, 8)
    begun["call"] = (room, room.begin(LSM_SET_SELF_ATTR, NOW, len(context)))


def end_call():
    room, caller = begun.pop("call")
    room.end()
    caller.join()
    if room.error != DONE:
        raise OSError(room.error, os.strerror(room.error))


def begin_pipe(path):
    """A thread opens a pipe, and waits for a writer."""
    opener = threading.Thread(target=lambda: os.close(os.open(path, os.O_RDONLY)))
    opener.start()
    place = ""
    while place != "wait_for_partner":
        with open(f"/proc/self/task/{opener.native_id}/wchan") as file:
            place = file.read()
    begun["pipe"] = opener


def end_pipe(path):
    os.close(os.open(path, os.O_WRONLY))
    begun.pop("pipe").join()


def begin_exec(program, path, text):
    """A child is to get this label when it becomes a program that reads the file."""
    (ready, tell), (wait, go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            os.dup2(1, 2)
            label_at_exec(text)
            os.write(tell, b"x")
            os.read(wait, 1)
            os.execv(program, [program, path])
        finally:
            os._exit(255)
    os.close(tell)
    assert os.read(ready, 1)
    begun["exec"] = (child, go)


def end_exec():
    child, go = begun.pop("exec")
    os.write(go, b"x")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), status
    if status:
        raise OSError(errno.EACCES, "the program was refused the file")


def forks_race(rounds):
    """A thread changes the label, at last to one that stays, while another one makes children. Each child
    has a label of its parent, and those that were begun after the change cannot leave the last one."""
    for _ in range(int(rounds)):
        apart(forks)


def forks():
    changed = threading.Event()

    def change():
        try:
            for number in range(50):
                label(f"test/other{number % 4}")
            label("test/stays")
        finally:
            changed.set()

    def leaves():
        try:
            apart(label, "test/plain")
        except OSError as error:
            return error.errno
        return 0

    assert leaves() == 0
    changer = threading.Thread(target=change)
    changer.start()
    while not changed.is_set():
        assert leaves() in (0, errno.EPERM)
    assert leaves() == errno.EPERM
    changer.join()


def while_it_decides(path, state):
    """Opens the file again and again until the state is 255. The state is odd while the module decides, and
    even while it does not; 0: perhaps. Each number comes once, so an opening that begins and ends in the same
    one was all in it."""
    with open(state, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 2)
    print("begun", flush=True)
    while (before := memory[0]) != 255:
        try:
            read(path)
            was_opened = True
        except PermissionError:
            was_opened = False
        if before == memory[0] != 0:
            if was_opened == bool(before % 2):
                raise OSError(errno.EPROTO, f"{was_opened} in state {before}")
            # Seen in this state.
            memory[1] = before


PROCESS_ACTS = {
    act.__name__: act
    for act in (
        other,
        traced_by_parent,
        received,
        received_by_ring,
        abstract_stream,
        abstract_datagram,
        connect_by_ring,
        begin_call,
        end_call,
        begin_pipe,
        end_pipe,
        begin_exec,
        end_exec,
        forks_race,
        while_it_decides,
    )
}
