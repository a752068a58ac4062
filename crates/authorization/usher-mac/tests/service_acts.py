"""Acts about services, for actor.py, which comes after this text and after label_acts.py and
attack_acts.py."""

import array
import os
import signal
import socket
import threading
import time


def serve(element, uid, name, *arguments):
    """Does an act as a process of a service: root starts it, with an element, or `none`, and as a user."""

    def run():
        become(element, uid)
        ACTS[name](*arguments)

    apart(run)


def become(element, uid):
    if element != "none":
        label(element)
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))


def writes_on(element, uid, path, change):
    """A process writes a file that it has open, twice, then once more after the change, which gets what
    the process waits with."""
    before, after = os.pipe(), os.pipe()

    def run():
        become(element, uid)
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(file, b"x")
        os.write(file, b"x")
        change(lambda: (os.write(before[1], b"x"), os.read(after[0], 1)))
        os.write(file, b"x")

    def answer(act):
        os.read(before[0], 1)
        act()
        os.write(after[1], b"x")

    return run, answer


def write_relabelled(element, uid, path, next):
    """The process changes its element in between."""
    run, _ = writes_on(element, uid, path, lambda _: label(next))
    apart(run)


def write_file_relabelled(element, uid, path, next):
    """Root labels the file in between."""
    run, answer = writes_on(element, uid, path, lambda wait: wait())
    relabels = threading.Thread(target=answer, args=(lambda: label_file(path, next),))
    relabels.start()
    apart(run)
    relabels.join()


def connect_mapped(port):
    """As connect, by IPv6."""
    with socket.socket(socket.AF_INET6) as one:
        try:
            one.connect(("::ffff:127.0.0.1", int(port)))
        except ConnectionRefusedError:
            pass


def fast_open(port):
    """Connects by sending (MSG_FASTOPEN)."""
    with socket.socket() as one:
        try:
            one.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", int(port)))
        except ConnectionRefusedError:
            pass


def send_to(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", int(port)))


def udp_lite():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136).close()


def bind_all(port):
    with socket.socket(socket.AF_INET6) as one:
        one.bind(("::", int(port)))


def bind_udp(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", int(port)))


def connects(command):
    """Runs a command that connects to a port where nothing listens, if it may."""
    child, errors = errors_of(*command)
    os.waitpid(child, 0)
    if "Errno 13" in errors:
        raise PermissionError(13, errors)
    assert "Errno 111" in errors, errors


def executes_connect(port):
    """A program connects, which this process executes."""
    program = f"import socket; socket.create_connection(('127.0.0.1', {int(port)}))"
    # Not the one that runs this, which may be root's alone.
    connects(["/usr/bin/python3", "-I", "-S", "-c", program])


def executes_as(account, uid, port):
    """A process that may become any user executes a program as an account, which becomes a user and
    connects."""
    program = (
        f"import os, socket; os.setresuid({uid}, {uid}, {uid}); "
        f"socket.create_connection(('127.0.0.1', {int(port)}))"
    )
    ids = [f"--reuid={account}", f"--regid={account}", "--clear-groups"]
    kept = ["--inh-caps=+setuid", "--ambient-caps=+setuid"]
    connects(["setpriv", *ids, *kept, "/usr/bin/python3", "-I", "-S", "-c", program])


def set_clock():
    """Sets the clock to the time that it has, which takes CAP_SYS_TIME."""
    time.clock_settime(time.CLOCK_REALTIME, time.time())


def listener_of(element, uid):
    """A listening socket that a process with this element has made."""
    one, other = socket.socketpair()

    def run():
        become(element, uid)
        made = socket.socket()
        made.bind(("127.0.0.1", 0))
        made.listen()
        other.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))])

    apart(run)
    _, parts, _, _ = one.recvmsg(1, 64)
    made = socket.socket(fileno=int.from_bytes(parts[0][2], "little"))
    made.setblocking(False)
    return made


def accepts(maker, element, uid):
    """Accepts at a socket that a process with another element has made."""
    with listener_of(maker, uid) as made:

        def run():
            become(element, uid)
            try:
                made.accept()
            except BlockingIOError:
                pass

        apart(run)


def listens(maker, element, uid):
    with listener_of(maker, uid) as made:

        def run():
            become(element, uid)
            made.listen(7)

        apart(run)


def traces(traced, element, uid):
    """Traces a process with another element, of the same user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        become(traced, uid)
        dumpable()
        # PR_SET_PTRACER: by anybody, where Yama asks.
        libc.prctl(0x59616D61, -1, 0, 0, 0)
        os.write(writer, b"x")
        while True:
            signal.pause()
    try:
        assert os.read(reader, 1)

        def run():
            become(element, uid)
            # PTRACE_SEIZE
            checked(kernel.ptrace(0x4206, child, None, None))

        apart(run)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


SERVICE_ACTS = {
    "set_clock": set_clock,
    "serve": serve,
    "write_relabelled": write_relabelled,
    "write_file_relabelled": write_file_relabelled,
    "connect_mapped": connect_mapped,
    "fast_open": fast_open,
    "send_to": send_to,
    "udp_lite": udp_lite,
    "bind_all": bind_all,
    "bind_udp": bind_udp,
    "executes_connect": executes_connect,
    "executes_as": executes_as,
    "accepts": accepts,
    "listens": listens,
    "traces": traces,
}
