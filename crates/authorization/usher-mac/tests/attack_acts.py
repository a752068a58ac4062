"""Acts by which modules are attacked, for actor.py, which comes after this text."""

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import threading

# Of io_uring.
READ, STATX, SETXATTR, MSG_RING = 22, 21, 42, 40
POLLED = 2

# Of clone(2) and unshare(2).
NEW_MOUNTS, NEW_USERS = 0x20000, 0x10000000


def words(*numbers):
    return struct.pack(f"{len(numbers)}Q", *numbers)


def system_call(number, *arguments):
    """A system call that this Python has no function for. Bytes go by their address."""
    as_c = [one if isinstance(one, (bytes, ctypes.Array)) else ctypes.c_long(one) for one in arguments]
    return checked(kernel.syscall(ctypes.c_long(number), *as_c))


def dumpable():
    """Lets others reach this process. The kernel closes the memory and the /proc files of a process that was
    root."""
    checked(kernel.prctl(4, 1, 0, 0, 0))


def become_root_of_a_namespace():
    """This process gets all capabilities in a user namespace of its own."""
    uid, gid = os.getuid(), os.getgid()
    dumpable()
    checked(kernel.unshare(NEW_USERS | NEW_MOUNTS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    # MS_REC and MS_PRIVATE.
    checked(kernel.mount(None, b"/", None, 0x44000, None))


def as_root_of_a_namespace(act, *arguments):
    """Acts with all capabilities in a user namespace of its own."""

    def run():
        become_root_of_a_namespace()
        act(*arguments)

    apart(run)


# Ways to a file.


def by_openat2(path):
    # RESOLVE_NO_SYMLINKS
    os.close(system_call(437, -100, path.encode(), words(os.O_RDONLY, 0, 4), 24))


def stat_of_a_name(path):
    name = os.open(path, os.O_PATH)
    try:
        os.fstat(name)
    finally:
        os.close(name)


def ring_result(result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def stat_by_ring(path):
    name = ctypes.create_string_buffer(path.encode())
    found = ctypes.create_string_buffer(256)
    # STATX_BASIC_STATS
    addresses = {"offset": ctypes.addressof(found), "address": ctypes.addressof(name)}
    ring_result(ring(entry(STATX, -100, length=0x7FF, **addresses)))


class Ring:
    """io_uring, for one entry at a time."""

    def __init__(self, flags=0):
        parameters = ctypes.create_string_buffer(120)
        struct.pack_into("I", parameters, 8, flags)
        self.polls = flags & POLLED
        self.file = system_call(425, 1, parameters)
        numbers = struct.unpack("30I", parameters.raw)
        self.submission, self.completion = numbers[10:20], numbers[20:30]
        self.queue = mmap.mmap(self.file, 4096, offset=0)
        self.entries = mmap.mmap(self.file, 4096, offset=0x10000000)

    def submit(self, content):
        """The result of the ring's only entry."""
        self.entries[:64] = content.ljust(64, b"\0")
        struct.pack_into("I", self.queue, self.submission[6], 0)
        struct.pack_into("I", self.queue, self.submission[1], 1)
        # One to wait for. The thread that polls may sleep.
        system_call(426, self.file, 0 if self.polls else 1, 1, 3 if self.polls else 1, 0, 0)
        return ring_result(struct.unpack_from("i", self.queue, self.completion[5] + 8)[0])

    def register(self, file):
        """The only file of its table; -1 for none yet."""
        system_call(427, self.file, 2, struct.pack("i", file), 1)


def by_polled_ring(path):
    """Opens a file by io_uring, whose thread of the kernel takes the entry by itself."""
    name = ctypes.create_string_buffer(path.encode())
    own = Ring(POLLED)
    os.close(own.submit(entry(OPENAT, -100, address=ctypes.addressof(name))))
    os.close(own.file)


def by_cloned_tree(path):
    """The folder is one of a mount of its own that has no place."""
    folder, name = os.path.split(path)

    def run():
        # open_tree(2) with OPEN_TREE_CLONE
        tree = system_call(428, -100, folder.encode(), 1)
        os.close(os.open(name, os.O_RDONLY, dir_fd=tree))

    as_root_of_a_namespace(run)


def in_another_root(path):
    """The folder is the root directory of a process in a user namespace of its own."""
    folder, name = os.path.split(path)

    def run():
        os.chroot(folder)
        os.chdir("/")
        read(f"/{name}")

    as_root_of_a_namespace(run)


def as_interpreter(path, script):
    """Executes a script that names the file as its interpreter."""
    script = f"{script}.{os.getuid()}"
    with open(script, "w") as file:
        file.write(f"#!{path}\n")
    os.chmod(script, 0o755)
    try:
        ran(script)
    finally:
        os.unlink(script)


def by_memfd(path):
    """Executes a copy that is in memory only."""
    with open(path, "rb") as file:
        content = file.read()
    program = os.memfd_create("copy", 0)
    try:
        os.write(program, content)
        os.set_inheritable(program, True)
        apart(lambda: os.execve(program, ["true"], {}))
    finally:
        os.close(program)


def by_loader(path):
    """Has the loader execute a program, which it reads."""
    told("/lib64/ld-linux-x86-64.so.2", path)


def made_executable(path):
    """Maps a file to read it, and makes the memory executable."""
    file = os.open(path, os.O_RDONLY)
    try:
        # Writable, because Python gives no address of other memory.
        memory = mmap.mmap(file, 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        checked(kernel.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC))
    finally:
        os.close(file)


def marked(path):
    """Asks fanotify(7) for the events of a file, as everybody may: by FAN_REPORT_FID."""
    queue = checked(kernel.fanotify_init(0x200, os.O_RDONLY))
    try:
        checked(kernel.fanotify_mark(queue, 1, ctypes.c_uint64(0x20), -100, path.encode()))
    finally:
        os.close(queue)


def given_by_fanotify(path):
    """Gets from fanotify(7) what another process has opened, which has the label."""
    queue = checked(kernel.fanotify_init(0, os.O_RDONLY))
    try:
        # FAN_MARK_ADD, FAN_OPEN
        checked(kernel.fanotify_mark(queue, 1, ctypes.c_uint64(0x20), -100, path.encode()))

        def run():
            label("test/closed")
            read(path)

        apart(run)
        event = os.read(queue, 24)
        os.close(struct.unpack_from("i", event, 16)[0])
    finally:
        os.close(queue)


def account_to(path):
    """Has the kernel write its accounting into a file."""
    checked(kernel.acct(path.encode()))
    checked(kernel.acct(None))


def handle_of(path):
    handle = (ctypes.c_uint * 34)(128, 0)
    mount = ctypes.c_int()
    checked(kernel.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0))


# Ways to change the label of a file.


def label_by_ring(path, text):
    name = ctypes.create_string_buffer(ATTRIBUTE.encode())
    value = ctypes.create_string_buffer(text.encode(), len(text))
    of = ctypes.create_string_buffer(path.encode())
    addresses = {"offset": ctypes.addressof(value), "address": ctypes.addressof(name)}
    content = entry(SETXATTR, 0, length=len(text), **addresses)
    ring_result(ring(content.ljust(48, b"\0") + words(ctypes.addressof(of))))


def label_by_descriptor(path, text):
    file = os.open(path, os.O_RDONLY)
    try:
        os.setxattr(file, ATTRIBUTE, text.encode())
    finally:
        os.close(file)


def label_by_proc(path, text):
    """By the name of a descriptor that is a name only."""
    name = os.open(path, os.O_PATH)
    try:
        os.setxattr(f"/proc/self/fd/{name}", ATTRIBUTE, text.encode())
    finally:
        os.close(name)


def label_at(path, text):
    """setxattrat(2)"""
    value = ctypes.create_string_buffer(text.encode(), len(text))
    attribute = struct.pack("QII", ctypes.addressof(value), len(text), 0)
    system_call(463, -100, path.encode(), 0, ATTRIBUTE.encode(), attribute, len(attribute))


def label_again(path, text):
    """With XATTR_REPLACE."""
    os.setxattr(path, ATTRIBUTE, text.encode(), os.XATTR_REPLACE)


def unlabel_by_descriptor(path):
    file = os.open(path, os.O_RDONLY)
    try:
        os.removexattr(file, ATTRIBUTE)
    finally:
        os.close(file)


def unlabel_at(path):
    """removexattrat(2)"""
    system_call(466, -100, path.encode(), 0, ATTRIBUTE.encode())


# Ways of a process to what its label does not permit.


def by_attributes_of_proc(path, text):
    """Writes the label into all attributes that /proc has, most of which refuse that."""

    def run():
        for folder, _, names in os.walk("/proc/self/attr"):
            for name in names:
                try:
                    with open(os.path.join(folder, name), "wb", 0) as file:
                        file.write(text.encode())
                except OSError:
                    pass
        read(path)

    apart(run)


def by_other_attributes(path, text):
    """Gives the label to lsm_set_self_attr(2) for other LSMs, and as other attributes. The kernel refuses most of them."""

    def run():
        content = text.encode()
        for lsm in range(100, 120):
            context = words(lsm, 0, 32 + len(content), len(content)) + content
            for number in range(100, 107):
                if (lsm, number) != (BPF, NOW):
                    kernel.syscall(LSM_SET_SELF_ATTR, number, context, len(context), 0)
        read(path)

    apart(run)


def label_in_a_namespace(text):
    as_root_of_a_namespace(label, text)


def label_file_in_a_namespace(path, text):
    as_root_of_a_namespace(label_file, path, text)


def own_file_system(text):
    """Labels a file of a file system of its own, and reads it."""

    def run():
        checked(kernel.mount(b"none", b"/mnt", b"tmpfs", 0, None))
        with open("/mnt/file", "w"):
            pass
        label_file("/mnt/file", text)
        read("/mnt/file")

    as_root_of_a_namespace(run)


def pinned(path):
    """Opens a table by its pin."""
    name = ctypes.create_string_buffer(path.encode())
    # BPF_OBJ_GET
    os.close(system_call(321, 7, words(ctypes.addressof(name), 0), 16))


def pinned_in_a_namespace(path):
    as_root_of_a_namespace(pinned, path)


def load_program():
    """Loads the smallest BPF program: it returns 0."""
    code = ctypes.create_string_buffer(bytes.fromhex("b700000000000000 9500000000000000"))
    license = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(license))
    os.close(system_call(321, 5, attributes.ljust(128, b"\0"), 128))


def load_program_in_a_namespace():
    as_root_of_a_namespace(load_program)


def held(way, path):
    """A process that has opened the file gives up the label that this took, and goes on."""

    def run():
        label("test/closed")
        file = os.open(path, os.O_RDONLY)
        memory = mmap.mmap(file, 1, mmap.MAP_SHARED, mmap.PROT_READ)
        label("test/other")
        if way == "read":
            assert os.pread(file, 1, 0)
        elif way == "mapping":
            assert memory[0]
        elif way == "mapped":
            mmap.mmap(file, 1, mmap.MAP_PRIVATE, mmap.PROT_READ).close()
        elif way == "sendfile":
            one, _other = socket.socketpair()
            assert os.sendfile(one.fileno(), file, 0, 1) == 1
        elif way == "splice":
            _reader, writer = os.pipe()
            assert os.splice(file, writer, 1) == 1
        elif way == "copied":
            copy = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_WRONLY)
            assert os.copy_file_range(file, copy, 1) == 1
        elif way == "ring":
            room = ctypes.create_string_buffer(1)
            assert ring_result(ring(entry(READ, file, address=ctypes.addressof(room), length=1))) == 1
        else:
            assert way == "anew", way
            read(f"/proc/self/fd/{file}")

    apart(run)


def by_shared_memory(path):
    """A process with the label puts what it reads into memory that it shares with this one."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)

    def run():
        label("test/closed")
        file = os.open(path, os.O_RDONLY)
        memory[:1] = os.pread(file, 1, 0)

    apart(run)
    assert memory[0]


def changed_while_read(path):
    """Changes the text of a label while the kernel copies it and waits for the second page. The kernel sets
    the label about which it has asked."""

    def run():
        text = b"test/closed"
        context = words(BPF, 0, 32 + len(text), len(text)) + text
        room = Delayed(context, len(context) - 3)
        caller = room.begin(LSM_SET_SELF_ATTR, NOW, len(context))
        room.change(b"xxx", 6)
        room.end()
        caller.join()
        assert room.error == DONE, room.error
        read(path)

    apart(run)


class Delayed:
    """Content in two pages. The kernel gets the second one when `end` is called (userfaultfd)."""

    def __init__(self, content, in_first):
        self.memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.start = mmap.PAGESIZE - in_first
        self.memory[self.start : mmap.PAGESIZE] = content[:in_first]
        self.rest = ctypes.create_string_buffer(content[in_first:], mmap.PAGESIZE)
        self.faults = system_call(323, os.O_CLOEXEC)
        second = self.address + mmap.PAGESIZE
        # UFFDIO_API, UFFDIO_REGISTER of missing pages.
        fcntl.ioctl(self.faults, 0xC018AA3F, words(0xAA, 0, 0))
        fcntl.ioctl(self.faults, 0xC020AA00, words(second, mmap.PAGESIZE, 1, 0))

    def begin(self, number, attribute, size):
        """Begins a call with the content in a thread. It waits in the kernel."""

        def run():
            at = ctypes.c_void_p(self.address + self.start)
            kernel.syscall(ctypes.c_long(number), attribute, at, size, 0)
            self.error = ctypes.get_errno()

        caller = threading.Thread(target=run)
        caller.start()
        assert len(os.read(self.faults, 32)) == 32
        return caller

    def change(self, content, before_end):
        self.memory[mmap.PAGESIZE - before_end : mmap.PAGESIZE - before_end + len(content)] = content

    def end(self):
        # UFFDIO_COPY
        second = self.address + mmap.PAGESIZE
        source = ctypes.addressof(self.rest)
        fcntl.ioctl(self.faults, 0xC028AA03, words(second, source, mmap.PAGESIZE, 0, 0))


ATTACK_ACTS = {
    act.__name__: act
    for act in (
        by_openat2,
        stat_of_a_name,
        stat_by_ring,
        by_polled_ring,
        by_cloned_tree,
        in_another_root,
        as_interpreter,
        by_memfd,
        by_loader,
        made_executable,
        marked,
        given_by_fanotify,
        account_to,
        handle_of,
        label_by_ring,
        label_by_descriptor,
        label_by_proc,
        label_at,
        label_again,
        unlabel_by_descriptor,
        unlabel_at,
        by_attributes_of_proc,
        by_other_attributes,
        label_in_a_namespace,
        label_file_in_a_namespace,
        own_file_system,
        pinned,
        pinned_in_a_namespace,
        load_program,
        load_program_in_a_namespace,
        held,
        by_shared_memory,
        changed_while_read,
    )
}
