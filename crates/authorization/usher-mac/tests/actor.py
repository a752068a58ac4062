"""Does to files what a test asks for, one act after another, and prints one line each: the act, and
`ok` or the name of the error. Root starts it; it becomes the user first.

Arguments: UID GID GROUPS ACT... ; an act is NAME:PATH[:PATH]. Without one, acts are the lines of its
input. GROUPS are numbers by commas, or empty. `ring` and `entry` are those of ring.py of usher-ipsec's
tests; further acts are those of the other texts whose names end with _acts.py. All come before this
text."""

import ctypes
import errno
import functools
import mmap
import os
import socket
import sys
import threading

# Of io_uring.
OPENAT = 18

# An access control list that says the same as the mode 0666: owner, group and others.
ACL = "system.posix_acl_access"
MODE_ACL = b"".join(bytes([tag, 0, 6, 0]) + b"\xff" * 4 for tag in (1, 4, 32))

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Failed(Exception):
    """The status of a command that has ended without success."""


def ran(path):
    """Runs a program, which is to succeed."""
    ended(os.posix_spawn(path, [path], os.environ))


def ended(child):
    _, status = os.waitpid(child, 0)
    if status := os.waitstatus_to_exitcode(status):
        raise Failed(status)


def errors_of(*command):
    """Runs a command to its end. Returns its number and what it wrote to standard error."""
    reading, writing = os.pipe()
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 2),
    ]
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
    os.close(writing)
    with open(reading, errors="replace") as errors:
        return child, errors.read()


def opened(path, flags):
    os.close(os.open(path, flags))


def read(path):
    opened(path, os.O_RDONLY)


def write(path):
    opened(path, os.O_WRONLY)


def append(path):
    opened(path, os.O_WRONLY | os.O_APPEND)


def create(path):
    opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def execute(path):
    ran(path)


def through_proc(path):
    """A name only, opened again through /proc."""
    name = os.open(path, os.O_PATH)
    try:
        opened(f"/proc/self/fd/{name}", os.O_RDONLY)
    finally:
        os.close(name)


def mapped(path):
    file = os.open(path, os.O_RDONLY)
    try:
        mmap.mmap(file, 1, mmap.MAP_PRIVATE, mmap.PROT_READ).close()
    finally:
        os.close(file)


def by_handle(path):
    """Opens a file by its handle, for writing: looks up no name."""
    handle = (ctypes.c_uint * 34)(128, 0)
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0))
    root = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.close(checked(libc.open_by_handle_at(root, handle, os.O_WRONLY)))
    finally:
        os.close(root)


def by_ring(path):
    """Opens a file by io_uring, in a thread of the kernel."""
    name = ctypes.create_string_buffer(path.encode())
    made = ring(entry(OPENAT, -100, address=ctypes.addressof(name)))
    if made < 0:
        raise OSError(-made, os.strerror(-made))
    os.close(made)


def kill(pid):
    os.kill(int(pid), 0)


def bind(port):
    with socket.socket() as one:
        one.bind(("127.0.0.1", int(port)))


def connect(port):
    with socket.socket() as one:
        try:
            one.connect(("127.0.0.1", int(port)))
        except ConnectionRefusedError:
            pass


def until_killed(path):
    """Opens a file again and again. Prints `reached` if that ever succeeds."""
    print("begun", flush=True)
    while True:
        try:
            opened(path, os.O_RDONLY)
            print("reached", flush=True)
            return
        except PermissionError:
            pass


def on_demand(path):
    """Opens a file when its input ends, and prints the result. Looks nothing up in the meantime."""
    print("begun", flush=True)
    os.read(0, 1)
    try:
        os.open(path, os.O_RDONLY)
        print("ok", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    os.kill(os.getpid(), 19)


def read_later(path):
    """Reads from a file that it has opened before its input ended, then opens it anew."""
    file = os.open(path, os.O_RDONLY)
    print("begun", flush=True)
    os.read(0, 1)
    if os.read(file, 1):
        print("read", flush=True)
    try:
        opened(f"/proc/self/fd/{file}", os.O_RDONLY)
        print("anew ok", flush=True)
    except OSError as error:
        print("anew", errno.errorcode[error.errno], flush=True)


def told(*command):
    """Runs a command, whose refusal by the kernel is the act's."""
    child, errors = errors_of(*command)
    if "Permission denied" in errors:
        os.waitpid(child, 0)
        raise PermissionError(errno.EACCES, errors)
    sys.stderr.write(errors)
    ended(child)


def in_a_namespace(path):
    """As root of a user namespace of its own."""
    told("unshare", "-Ur", "cat", path)


def by_another_mount(path):
    """The folder is bound elsewhere, in namespaces of its own."""
    script = 'mount --bind "$1" /mnt && cat "/mnt/$2"'
    told("unshare", "-Urm", "sh", "-c", script, "sh", *os.path.split(path))


def by_an_overlay(path):
    """The folder is the lower one of an overlay, in namespaces of its own."""
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/lower /mnt/all &&"
        ' mount -t overlay -o "lowerdir=$1:/mnt/lower" none /mnt/all && cat "/mnt/all/$2"'
    )
    told("unshare", "-Urm", "sh", "-c", script, "sh", *os.path.split(path))


def by_symlink(path):
    link = f"{path}.{os.getuid()}"
    os.symlink(path, link)
    try:
        read(link)
    finally:
        os.unlink(link)


def from_its_folder(path):
    """The folder is a name only, and the root another one."""
    folder, name = os.path.split(path)
    folder = os.open(f"/proc/self/root{folder}", os.O_PATH)
    try:
        os.close(os.open(name, os.O_RDONLY, dir_fd=folder))
    finally:
        os.close(folder)


def execute_descriptor(path):
    """Executes what a descriptor names (execveat), which is a name only."""
    program = os.open(path, os.O_PATH)
    os.set_inheritable(program, True)
    try:
        apart(lambda: os.execve(program, ["true"], {}))
    finally:
        os.close(program)


def watch(path):
    """Asks to be told when others open the file."""
    queue = checked(libc.inotify_init1(0))
    try:
        checked(libc.inotify_add_watch(queue, path.encode(), 0x20))
    finally:
        os.close(queue)


def unnamed(folder):
    """Makes a file without a name, and names it."""
    path = os.path.join(folder, "named")
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    try:
        # AT_FDCWD, and AT_SYMLINK_FOLLOW.
        name = f"/proc/self/fd/{file}".encode()
        checked(libc.linkat(-100, name, -100, path.encode(), 0x400))
    finally:
        os.close(file)
    os.unlink(path)


def folder_in(folder):
    path = os.path.join(folder, "folder")
    os.mkdir(path)
    os.rmdir(path)


def symlink_in(folder):
    path = os.path.join(folder, "symlink")
    os.symlink("/", path)
    os.unlink(path)


def pipe_in(folder):
    path = os.path.join(folder, "pipe")
    os.mkfifo(path)
    os.unlink(path)


def socket_in(folder):
    path = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)
    os.unlink(path)


def renamed_in(folder):
    """A permitted file is renamed into the folder."""
    path = os.path.join(folder, "renamed")
    former = f"{folder}.{os.getuid()}"
    create(former)
    try:
        os.rename(former, path)
        os.rename(path, former)
    finally:
        os.unlink(former)


def as_threads(path, *uids):
    """Threads of root, one with the fsuid of each user, open the file at the same time. Raises the only
    error."""
    errors = []
    begin = threading.Barrier(len(uids))

    def run(uid):
        # Of this thread only. The kernel takes the capabilities about files with it.
        libc.setfsuid(uid)
        begin.wait()
        try:
            read(path)
        except OSError as error:
            errors.append((uid, error))

    running = [threading.Thread(target=run, args=(int(uid),)) for uid in uids]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    # The first is the one about which a rule is.
    assert [uid for uid, _ in errors] in ([], [int(uids[0])]), errors
    for _, error in errors:
        raise error


ACTS = {
    "in_a_namespace": in_a_namespace,
    "by_another_mount": by_another_mount,
    "by_an_overlay": by_an_overlay,
    "by_symlink": by_symlink,
    "from_its_folder": from_its_folder,
    "execute_descriptor": execute_descriptor,
    "watch": watch,
    "unnamed": unnamed,
    "folder_in": folder_in,
    "symlink_in": symlink_in,
    "pipe_in": pipe_in,
    "socket_in": socket_in,
    "renamed_in": renamed_in,
    "run": told,
    "as_threads": as_threads,
    "on_demand": on_demand,
    "read_later": read_later,
    "read": read,
    "write": write,
    "append": append,
    "create": create,
    "execute": execute,
    "through_proc": through_proc,
    "mapped": mapped,
    "by_handle": by_handle,
    "by_ring": by_ring,
    "stat": os.stat,
    "truncate": lambda path: os.truncate(path, 12),
    "chmod": lambda path: os.chmod(path, 0o666),
    "set_acl": lambda path: os.setxattr(path, ACL, b"\2\0\0\0" + MODE_ACL),
    "remove_acl": lambda path: os.removexattr(path, ACL),
    "times": lambda path: os.utime(path, (1, 1)),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "link": os.link,
    "rename": os.rename,
    "exchange": lambda one, other: checked(
        libc.renameat2(-100, one.encode(), -100, other.encode(), 2)
    ),
    "kill": kill,
    "bind": bind,
    "connect": connect,
    "until_killed": until_killed,
    **LABEL_ACTS,
    **OBJECT_ACTS,
    **LOWERING_ACTS,
    **PACKET_ACTS,
    **INTERFACE_ACTS,
    **ATTACK_ACTS,
    **PROCESS_ACTS,
    **SERVICE_ACTS,
    **PASSING_ACTS,
    **HOST_ACTS,
}

# A process that has made a ring keeps its label. So a child makes it, and later acts may change theirs.
for name in (
    "by_ring",
    "by_polled_ring",
    "stat_by_ring",
    "label_by_ring",
    "received_by_ring",
    "connect_by_ring",
):
    ACTS[name] = functools.partial(apart, ACTS[name])


def main():
    uid, gid, groups, *acts = sys.argv[1:]
    if os.geteuid() == 0:
        os.setgroups([int(group) for group in groups.split(",") if group])
        os.setresgid(int(gid), int(gid), int(gid))
        os.setresuid(int(uid), int(uid), int(uid))
    for act in acts or iter(sys.stdin.readline, ""):
        name, *arguments = act.rstrip("\n").split(":")
        try:
            ACTS[name](*arguments)
            result = "ok"
        except Failed as error:
            result = f"status {error}"
        except OSError as error:
            result = errno.errorcode.get(error.errno, str(error.errno))
        print(name, result, flush=True)


main()
