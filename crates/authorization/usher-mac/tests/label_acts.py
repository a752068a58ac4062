"""Acts about labels, for actor.py, which comes after this text. Texts of labels have no colon here,
because a colon ends an argument."""

import ctypes
import errno
import os
import signal
import struct
import sys
import threading

LSM_SET_SELF_ATTR = 460
BPF = 109
NOW, AT_EXEC, CALL = 100, 101, 0x4D41
# The errno of success: a hook that returns 0 makes the kernel answer with EOPNOTSUPP.
DONE = 1111
ATTRIBUTE = "security.bpf.mac"
# Of ptrace(2).
TRACEME, CONT, DETACH, SETOPTIONS, EXIT_KILL = 0, 7, 17, 0x4200, 0x100000

# Of prctl(2) and seccomp(2).
NO_NEW_PRIVILEGES, SECCOMP, SET_FILTER, NEW_LISTENER = 38, 317, 1, 8

kernel = ctypes.CDLL(None, use_errno=True)


def set_attribute(number, content):
    """lsm_set_self_attr(2) with struct lsm_ctx."""
    context = b"".join(n.to_bytes(8, "little") for n in (BPF, 0, 32 + len(content), len(content)))
    context += content
    result = kernel.syscall(LSM_SET_SELF_ATTR, number, context, len(context), 0)
    found = ctypes.get_errno()
    assert result == -1, result
    if found != DONE:
        raise OSError(found, os.strerror(found))


def label(text):
    set_attribute(NOW, text.encode())


def label_at_exec(text=""):
    set_attribute(AT_EXEC, text.encode())


def call(module, number, argument):
    name = module.encode().ljust(32, b"\0")
    words = int(number).to_bytes(8, "little") + int(argument).to_bytes(8, "little")
    set_attribute(CALL, name + words)


def label_file(path, text):
    os.setxattr(path, ATTRIBUTE, text.encode(), follow_symlinks=False)


def unlabel_file(path):
    os.removexattr(path, ATTRIBUTE)


def ends(child):
    """Raises what a child, which ended with the number of an error, was refused."""
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), status
    if number := os.WEXITSTATUS(status):
        raise OSError(number, os.strerror(number))


def apart(act, *arguments):
    """Acts in a child, and raises its error."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            act(*arguments)
            status = 0
        except OSError as error:
            status = error.errno
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    ends(child)


def in_child(act, *arguments):
    apart(ACTS[act], *arguments)


def in_thread(act, *arguments):
    errors = []

    def run():
        try:
            ACTS[act](*arguments)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def becomes_reader(program, path):
    """This process becomes a program that reads the file. Status 1: it is refused."""
    os.execv(program, [program, path])


def after_exec(program, path, *before):
    """A child sets labels, and becomes a program that reads the file."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            os.dup2(1, 2)
            for text in before:
                name, _, value = text.partition("=")
                ACTS[name](value)
            becomes_reader(program, path)
        finally:
            os._exit(255)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 1), status
    if status:
        raise OSError(errno.EACCES, "the program was refused the file")


def exec_traced(program, path, text=""):
    """A child that this process traces sets what it gets at exec, and becomes a program that reads the
    file."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            os.dup2(1, 2)
            assert kernel.ptrace(TRACEME, 0, None, None) == 0
            if text:
                label_at_exec(text)
            becomes_reader(program, path)
        except OSError as error:
            assert error.errno == errno.EPERM, error
            os._exit(2)
        finally:
            os._exit(255)
    while os.WIFSTOPPED(status := os.waitpid(child, 0)[1]):
        assert os.WSTOPSIG(status) == signal.SIGTRAP, status
        assert kernel.ptrace(CONT, child, None, None) == 0
    ended = os.waitstatus_to_exitcode(status)
    assert ended in (0, 1, 2), ended
    if ended:
        raise OSError((errno.EACCES, errno.EPERM)[ended - 1], "refused")


def label_traced(text):
    """A child that this process traces sets its label."""

    def run():
        assert kernel.ptrace(TRACEME, 0, None, None) == 0
        label(text)

    apart(run)


def trace_a_child():
    """This process traces a child from now on, which ends with it."""
    child = os.fork()
    if child == 0:
        assert kernel.ptrace(TRACEME, 0, None, None) == 0
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(255)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    assert kernel.ptrace(SETOPTIONS, child, None, ctypes.c_void_p(EXIT_KILL)) == 0
    return child


def label_tracing(text):
    """A child that traces one of its own sets its label."""

    def run():
        trace_a_child()
        label(text)

    apart(run)


def exec_tracing(program):
    """A child that traces one of its own becomes a program."""

    def run():
        trace_a_child()
        os.execv(program, [program, "/dev/null"])

    apart(run)


def listen(listens=True):
    """This process answers its system calls itself, or has a filter that only permits."""
    permit = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    filters = struct.pack("HxxxxxxP", 1, ctypes.addressof(permit))
    checked(kernel.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    return system_call(SECCOMP, SET_FILTER, NEW_LISTENER if listens else 0, filters)


def label_listened(text):
    """A child whose system calls another process may answer sets its label."""

    def run():
        listen()
        label(text)

    apart(run)


def exec_listened(program, listens="yes"):
    """The same, as it becomes a program."""

    def run():
        listen(listens == "yes")
        os.execv(program, [program, "/dev/null"])

    apart(run)


def exec_of_thread(program, path, text):
    """A thread that is not the main one sets the label, and becomes a program that reads the file."""
    child = os.fork()
    if child == 0:

        def run():
            try:
                os.dup2(os.open("/dev/null", os.O_RDWR), 1)
                os.dup2(1, 2)
                label(text)
                becomes_reader(program, path)
            finally:
                os._exit(255)

        threading.Thread(target=run).start()
        # Until the other thread takes the place of this one.
        while True:
            threading.Event().wait()
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 1), status
    if status:
        raise OSError(errno.EACCES, "the program was refused the file")


def relabels_race(rounds):
    """Two threads set different labels at once, one of which stays for good. Whatever happens in between,
    the process never leaves it."""
    for _ in range(int(rounds)):
        child = os.fork()
        if child == 0:
            status = 255
            try:
                status = race()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, status


def race():
    begin = threading.Barrier(2)

    wrong = []

    def others():
        begin.wait()
        for number in range(20):
            try:
                label(f"test/other{number % 4}")
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EAGAIN):
                    wrong.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    begin.wait()
    while True:
        try:
            label("test/stays")
            break
        except OSError as error:
            assert error.errno == errno.EAGAIN, error
    thread.join()
    if wrong:
        return 3
    try:
        label("test/plain")
    except OSError as error:
        return 0 if error.errno == errno.EPERM else 2
    return 1


def labels(first, count):
    """Sets as many different labels, one after another."""
    for number in range(int(first), int(first) + int(count)):
        label(f"test/many{number}")


def passed_descriptor(path, text):
    """A child with this label opens the file and hands it over; here it is opened anew."""
    import socket as sockets

    one, other = sockets.socketpair()

    def run():
        label(text)
        sockets.send_fds(other, [b"x"], [os.open(path, os.O_RDONLY)])

    apart(run)
    _, files, _, _ = sockets.recv_fds(one, 1, 1)
    os.close(os.open(f"/proc/self/fd/{files[0]}", os.O_RDONLY))


def unnamed_file(path):
    """Makes a file without a name, and names it for good."""
    file = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY, 0o666)
    name = f"/proc/self/fd/{file}".encode()
    checked(kernel.linkat(-100, name, -100, path.encode(), 0x400))
    os.close(file)


def create_open(path):
    """A file that others may read and write."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.chmod(path, 0o666)


def connect_name(path):
    import socket as sockets

    with sockets.socket(sockets.AF_UNIX) as one:
        one.connect(path)


LABEL_ACTS = {
    "tag": lambda path: os.setxattr(path, "user.tag", b"1"),
    "connect_name": connect_name,
    "label": label,
    "label_at_exec": label_at_exec,
    "call": call,
    "label_file": label_file,
    "unlabel_file": unlabel_file,
    "in_child": in_child,
    "in_thread": in_thread,
    "after_exec": after_exec,
    "exec_of_thread": exec_of_thread,
    "exec_traced": exec_traced,
    "label_traced": label_traced,
    "label_listened": label_listened,
    "exec_listened": exec_listened,
    "label_tracing": label_tracing,
    "exec_tracing": exec_tracing,
    "relabels_race": relabels_race,
    "labels": labels,
    "passed_descriptor": passed_descriptor,
    "unnamed_file": unnamed_file,
    "create_open": create_open,
}
