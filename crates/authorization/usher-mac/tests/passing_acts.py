"""Acts that no check of reading and writing sees, for actor.py, which comes after this text."""

import ctypes
import fcntl
import mmap
import os
import pty
import signal
import socket
import struct
import threading

COMMANDS = {
    "loop_set": 0x4C00,
    "loop_clear": 0x4C01,
    "loop_status": 0x4C05,
    "loop_change": 0x4C06,
    "loop_free": 0x4C82,
    "size": 0x80081272,
    # FS_IOC_SETFLAGS
    "flags": 0x40086602,
}

REGISTER_BUFFERS, READ_FIXED = 0, 4


def control(path, command, other=""):
    """ioctl(2) of a descriptor that is open to read; with another one, or with a room that begins with the
    flag FS_NODUMP_FL."""
    file = os.open(path, os.O_RDONLY)
    argument = bytearray(struct.pack("I256x", 0x40))
    try:
        fcntl.ioctl(file, COMMANDS[command], os.open(other, os.O_RDONLY) if other else argument)
    finally:
        os.close(file)


def maps_held(element, uid, path, next, change):
    """A process opens a file, takes another element, and maps what it has open. In between root has the file
    of an overlay copied up (`copied`), and labels it (a level of `mls`), or does nothing (`none`)."""
    opened, changed = os.pipe(), os.pipe()

    def run():
        become(element, uid)
        file = os.open(path, os.O_RDONLY)
        os.write(opened[1], b"x")
        assert os.read(changed[0], 1) == b"x"
        label(next)
        mmap.mmap(file, 1, mmap.MAP_PRIVATE, mmap.PROT_READ).close()

    def answer():
        assert os.read(opened[0], 1)
        if change != "none":
            os.close(os.open(path, os.O_WRONLY))
        if change not in ("none", "copied"):
            label_file(path, change + ",lomac/equal")

    # A process, because children of one with several threads are not lowered.
    helper = os.fork()
    if helper == 0:
        done = b"!"
        try:
            answer()
            done = b"x"
        finally:
            os.write(changed[1], done)
            os._exit(0)
    try:
        apart(run)
    finally:
        # It waits where the process was refused the file.
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)


def receives_held(path, text):
    """Gets a file that another process has opened on an overlay; it was copied up since, and the copy labelled."""

    def make():
        file = os.open(path, os.O_RDONLY)
        os.close(os.open(path, os.O_WRONLY))
        label_file(path, text)
        return file

    one, other = socket.socketpair()
    apart(lambda: socket.send_fds(other, [b"x"], [make()]))
    files = socket.recv_fds(one, 1, 1)[1]
    if not files:
        raise OSError(errno.EACCES, "left out")
    os.close(files[0])


def types():
    """TIOCSTI on a terminal of its own."""
    main, line = pty.openpty()
    try:
        fcntl.ioctl(line, 0x5412, b"x")
    finally:
        os.close(line)
        os.close(main)


def makes_socket(family, kind, protocol="0"):
    """A kernel without the family says so after it has asked."""
    try:
        socket.socket(int(family), int(kind), int(protocol)).close()
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
            raise


def reaches_by_ring(element, path):
    """A child has its parent's io_uring, takes an element, and reads a file into the memory that its parent
    has registered. EXDEV: it is in the parent's memory."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    own = Ring()
    system_call(427, own.file, REGISTER_BUFFERS, words(address, mmap.PAGESIZE), 1)

    def run():
        label(element)
        file = os.open(path, os.O_RDONLY)
        # The number of the buffer is 0.
        assert own.submit(entry(READ_FIXED, file, address=address, length=4)) == 4

    apart(run)
    if memory[0]:
        raise OSError(errno.EXDEV, "the child writes its parent's memory")


def gets(element, what):
    """Gets a `ring` or a `pipe` of another process by pidfd_getfd(2), closes it, and takes an element. A ring can be
    used on by what it has mapped or registered."""
    told, ends = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        dumpable()
        os.close(ends[1])
        own = Ring().file if what == "ring" else told[1]
        os.write(told[1], bytes([own]))
        os.read(ends[0], 1)
        os._exit(0)
    try:
        os.close(system_call(438, os.pidfd_open(child), os.read(told[0], 1)[0], 0))
        label(element)
    finally:
        # A process that has another element may not signal it.
        os.close(ends[1])
        os.waitpid(child, 0)


def sets_protocol(name, state):
    """TCP_ULP of a socket that is `connected` or not. A kernel without the protocol says so after it has asked."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as own:
        if state == "connected":
            own.connect(server.getsockname())
        try:
            own.setsockopt(socket.IPPROTO_TCP, 31, name.encode())
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def executes_with_ring(element, stays):
    """A program gets an element, and the ring, if that stays open."""

    def run():
        own = Ring()
        os.set_inheritable(own.file, stays == "yes")
        label_at_exec(element)
        os.execv("/bin/true", ["true"])

    apart(run)


def observes_processes():
    """Makes descriptors of itself and of a child, signals the child by one, and counts with eventfd(2)."""
    os.close(os.pidfd_open(os.getpid()))
    child = os.fork()
    if child == 0:
        while True:
            threading.Event().wait()
    process = os.pidfd_open(child)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)
        os.waitpid(child, 0)
    counter = os.eventfd(0)
    os.eventfd_write(counter, 1)
    assert os.eventfd_read(counter) == 1


def names_thread():
    """Names another thread of this process."""
    dumpable()
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        with open(f"/proc/self/task/{thread.native_id}/comm", "w") as file:
            file.write("named")
        with open(f"/proc/self/task/{thread.native_id}/comm") as file:
            assert file.read() == "named\n"
    finally:
        ends.set()
        thread.join()


def names_child():
    """Opens the name of another process, to write it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        dumpable()
        os.write(writer, b"x")
        while True:
            threading.Event().wait()
    try:
        assert os.read(reader, 1)
        write(f"/proc/{child}/comm")
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(child, 9)
        os.waitpid(child, 0)


def uses_queue(maker, element, way):
    """A process with an element opens a message queue of one with another element, or removes its name."""
    name = ("/" + fresh_name("queue")).encode()

    def make():
        if maker != "none":
            label(maker)
        queue = checked(kernel.mq_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, None))
        checked(kernel.mq_send(queue, b"some of it", 10, 0))

    def use():
        if element != "none":
            label(element)
        if way == "removes":
            checked(kernel.mq_unlink(name))
        else:
            flags = {"reads": os.O_RDONLY, "writes": os.O_WRONLY}[way]
            os.close(checked(kernel.mq_open(name, flags)))

    apart(make)
    try:
        apart(use)
    finally:
        kernel.mq_unlink(name)


PASSING_ACTS = {
    act.__name__: act
    for act in (
        control,
        maps_held,
        receives_held,
        types,
        makes_socket,
        reaches_by_ring,
        gets,
        sets_protocol,
        executes_with_ring,
        observes_processes,
        names_thread,
        names_child,
        uses_queue,
    )
}
