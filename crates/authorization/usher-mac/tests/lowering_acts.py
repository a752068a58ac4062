"""Acts of processes that a module lowers, for actor.py, which comes after this text and after
object_acts.py. A process that was lowered writes no file above it, also not one that it has open."""

import ctypes
import errno
import mmap
import os
import signal
import socket as sockets
import struct
import threading

READ_ONLY = 0o10000


def made_at(element, make):
    """The descriptor that a child makes, which has the element."""
    one, other = sockets.socketpair()

    def run():
        label(element)
        sockets.send_fds(other, [b"x"], [make()])

    apart(run)
    _, files, _, _ = sockets.recv_fds(one, 1, 1)
    return files[0]


def object_at(element, make):
    """The number of an object of System V IPC that a child makes, which has the element."""
    reader, writer = os.pipe()

    def run():
        label(element)
        os.write(writer, str(make()).encode())

    apart(run)
    return int(os.read(reader, 20))


def full_pipe():
    reader, writer = os.pipe()
    os.write(writer, b"some of it")
    return reader


def full_socket():
    one, other = sockets.socketpair()
    other.send(b"some of it")
    return one.detach()


def full_queue():
    queue = checked(kernel.msgget(PRIVATE, 0o600))
    checked(kernel.msgsnd(queue, struct.pack("l8s", 1, b"message"), 8, NOWAIT))
    return queue


def reads(path):
    file = os.open(path, os.O_RDONLY)
    return lambda: os.read(file, 1)


def opens(path):
    return lambda: os.close(os.open(path, os.O_RDONLY))


def reads_later(path):
    return lambda: os.read(os.open(path, os.O_RDONLY), 1)


def maps(path):
    return lambda: mapped(path)


def lists(path):
    return lambda: (os.listdir(path), os.stat(path))


def reads_pipe(element):
    pipe = made_at(element, full_pipe)
    return lambda: os.read(pipe, 1)


def receives(element):
    one = sockets.socket(fileno=made_at(element, full_socket))
    return lambda: one.recv(1)


def takes_message(element):
    queue = object_at(element, full_queue)
    message = ctypes.create_string_buffer(16)

    def take():
        try:
            checked(kernel.msgrcv(queue, message, 8, 0, NOWAIT))
        except OSError as error:
            assert error.errno == errno.ENOMSG, error
            raise OSError(errno.EACCES, "the message stays there") from None

    return take


def attaches(element):
    segment = object_at(element, lambda: checked(kernel.shmget(PRIVATE, 4096, 0o600)))
    return lambda: checked(kernel.shmat(segment, None, READ_ONLY))


def attaches_to_write(element):
    segment = object_at(element, lambda: checked(kernel.shmget(PRIVATE, 4096, 0o600)))
    return lambda: checked(kernel.shmat(segment, None, 0))


def in_other_thread(path):
    read_it = reads(path)

    def run():
        errors = []

        def act():
            try:
                read_it()
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        for error in errors:
            raise error

    return run


def in_many_threads(path):
    """All of them at once: each is permitted, whichever lowers the process."""

    def run():
        begin = threading.Barrier(8)
        errors = []

        def act():
            file = os.open(path, os.O_RDONLY)
            begin.wait()
            try:
                os.read(file, 1)
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=act) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            raise error

    return run


def reads_sharing(path, shared):
    """With a file mapped that others see written."""
    file = os.open(shared, os.O_RDWR)
    memory = mmap.mmap(file, 1, mmap.MAP_SHARED, mmap.PROT_READ)

    def run():
        assert memory is not None
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


def reads_sharing_memory(path):
    memory = mmap.mmap(-1, 4096)
    return lambda: (memory.flush(), os.read(os.open(path, os.O_RDONLY), 1))


def reads_beside_private(path, shared):
    file = os.open(shared, os.O_RDWR)
    memory = mmap.mmap(file, 1, mmap.MAP_PRIVATE)
    only_read = mmap.mmap(os.open(shared, os.O_RDONLY), 1, mmap.MAP_SHARED, mmap.PROT_READ)

    def run():
        assert memory is not None and only_read is not None
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


def reads_traced(path):
    def run():
        assert kernel.ptrace(TRACEME, 0, None, None) == 0
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


def reads_tracing(path):
    def run():
        trace_a_child()
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


def reads_after_tracing(path):
    def run():
        child = trace_a_child()
        assert kernel.ptrace(DETACH, child, None, None) == 0
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


def reads_listened(path, listens):
    def run():
        listen(listens == "yes")
        os.read(os.open(path, os.O_RDONLY), 1)

    return run


TAKES = {
    act.__name__: act
    for act in (
        reads,
        opens,
        reads_later,
        maps,
        lists,
        reads_pipe,
        receives,
        takes_message,
        attaches,
        attaches_to_write,
        in_other_thread,
        in_many_threads,
        reads_sharing,
        reads_sharing_memory,
        reads_beside_private,
        reads_traced,
        reads_tracing,
        reads_after_tracing,
        reads_listened,
    )
}


def takes(element, path, way, *arguments):
    """A process with an element takes something in, and then writes to a file that it has open. EACCES:
    it was lowered. EPERM: what it wanted was refused. EXDEV: that was refused, and it was lowered all the
    same, which must not happen."""

    def run():
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        take = TAKES[way](*arguments)
        if element != "none":
            label(element)
        os.write(file, b"x")
        refused = None
        try:
            take()
        except OSError as error:
            assert error.errno == errno.EACCES, error
            refused = error
        try:
            os.write(file, b"x")
        except OSError as error:
            assert error.errno == errno.EACCES, error
            raise OSError(errno.EXDEV if refused else errno.EACCES, "lowered") from None
        if refused:
            raise OSError(errno.EPERM, "refused")

    apart(run)


def becomes(element, path, program):
    """A process with an element becomes a shell, which writes to a file that the process had open.
    EACCES: the shell was refused it. EPERM: it was not begun."""
    child = os.fork()
    if child == 0:
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)
            os.dup2(file, 9)
            if element != "none":
                label(element)
            os.execv(program, ["sh", "-c", "echo x >&9 || exit 1"])
        except OSError as error:
            assert error.errno in (errno.EACCES, errno.EPERM), error
            os._exit(2)
        finally:
            os._exit(255)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1, 2), status
    if status:
        raise OSError((errno.EACCES, errno.EPERM)[status - 1], "refused")


def shares(element, program, way, path, low):
    """A process with an element becomes a program that shares memory in some way, or not, and reads."""

    def run():
        label(element)
        os.execv(program, ["sharing", way, path, low])

    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(255)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), status
    if status:
        raise OSError(errno.EACCES, "refused")


def stays_at_failure(element, path, program):
    """A process with an element that fails to execute a program has not got lower by that."""

    def run():
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        label(element)
        try:
            os.execv(program, ["none"])
        except OSError as error:
            assert error.errno in (errno.ENOEXEC, errno.ENOENT), error
        os.write(file, b"x")

    apart(run)


LOWERING_ACTS = {act.__name__: act for act in (takes, becomes, shares, stays_at_failure)}
