"""Reaches entry points of the framework, one for each line on standard input, which names it. Prints
`ok`, the name of an error, or what went wrong otherwise.

Arguments: UID FOLDER. Root starts it. It becomes the user first and keeps the capabilities, because
some hooks are reached with them only; mounts are its own."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)

NEWNS, PRIVATE, REMOUNT = 0x20000, 0x44000, 32
KEY = 0x55534852
ATTRIBUTE = "user.usher"
ACL = "system.posix_acl_access"


class Otherwise(Exception):
    """Refused, but not by an error."""


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(number, *arguments):
    return checked(libc.syscall(number, *(ctypes.c_long(one) for one in arguments)))


def in_child(act):
    """Acts in a process of its own, and raises its error."""
    child = os.fork()
    if child == 0:
        number = 0
        try:
            act()
        except OSError as error:
            number = error.errno
        os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number != 0:
        raise OSError(number, os.strerror(number))


def with_child(act):
    """Acts on a waiting process of the same user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        act(child)
    finally:
        os.close(reader)
        os.close(writer)
        os.kill(child, 9)
        os.waitpid(child, 0)


class Points:
    """One method for each entry point."""

    def __init__(self, folder):
        self.folder = folder
        self.file = self.path("file")
        self.link = self.path("link")
        self.place, self.other = self.path("place"), self.path("other")
        for directory in (self.place, self.other):
            os.mkdir(directory)
        self.text = self.path("text")
        for name in (self.file, self.text):
            with open(name, "w") as file:
                file.write("text")
        os.symlink(self.file, self.link)
        os.setxattr(self.file, ATTRIBUTE, b"value")
        self.open = os.open(self.file, os.O_RDWR)
        self.memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.buffer = ctypes.create_string_buffer(4096)
        key = KEY + os.getpid()
        self.key = key
        self.queue = checked(libc.msgget(key, 0o1600))
        self.semaphores = checked(libc.semget(key, 1, 0o1600))
        self.segment = checked(libc.shmget(key, 4096, 0o1600))
        self.pair = socket.socketpair()
        self.datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("\0" + folder)
        self.listener.listen(64)
        self.tcp = socket.socket()
        self.tcp.bind(("127.0.0.1", 0))
        self.tcp.listen(64)
        self.tcp.setblocking(False)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver.bind(("127.0.0.1", 0))
        self.mounted = self.mount(self.path("mounted"))
        self.code = self.compat_code()

    def path(self, name):
        return os.path.join(self.folder, name)

    def mount(self, place):
        os.makedirs(place, exist_ok=True)
        checked(libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, None))
        return place

    def compat_code(self):
        """A function of two numbers that calls ioctl(2) as a 32-bit program does."""
        code = bytes.fromhex("53 b836000000 89fb 89f1 31d2 cd80 5b c3")
        memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        self.code_memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)

    def file_open(self):
        os.close(os.open(self.file, os.O_RDONLY))

    def inode_create(self):
        os.close(os.open(self.path("created"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(self.path("created"))

    def inode_link(self):
        os.link(self.file, self.path("linked"))
        os.unlink(self.path("linked"))

    def inode_mkdir(self):
        os.mkdir(self.path("made"))
        os.rmdir(self.path("made"))

    def inode_rmdir(self):
        os.makedirs(self.path("removed"), exist_ok=True)
        os.rmdir(self.path("removed"))

    def inode_symlink(self):
        os.symlink("nowhere", self.path("made_link"))
        os.unlink(self.path("made_link"))

    def inode_mknod(self):
        os.mkfifo(self.path("pipe"))
        os.unlink(self.path("pipe"))

    def inode_readlink(self):
        os.readlink(self.link)

    def inode_follow_link(self):
        os.stat(self.link)

    def inode_getxattr(self):
        os.getxattr(self.file, ATTRIBUTE)

    def inode_setxattr(self):
        os.setxattr(self.file, ATTRIBUTE, b"other")

    def inode_removexattr(self):
        os.setxattr(self.file, "user.removed", b"")
        os.removexattr(self.file, "user.removed")

    def inode_set_acl(self):
        # One that says the same as the mode: owner, group and others read and write.
        entries = ((1, 6), (4, 6), (32, 6))
        text = b"".join(struct.pack("HHI", tag, mode, 0xFFFFFFFF) for tag, mode in entries)
        os.setxattr(self.file, ACL, struct.pack("I", 2) + text)

    def inode_remove_acl(self):
        os.removexattr(self.file, ACL)

    def inode_listxattr(self):
        os.listxattr(self.file)

    def file_ioctl(self):
        fcntl.ioctl(self.open, 0x541B, bytes(4))

    def file_ioctl_compat(self):
        # FIOCLEX
        answer = self.code(self.open, 0x5451)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))

    def file_lock(self):
        fcntl.lockf(self.open, fcntl.LOCK_SH)

    def file_receive(self):
        socket.send_fds(self.pair[0], [b"x"], [self.open])
        _, files, _, _ = socket.recv_fds(self.pair[1], 1, 1)
        if not files:
            raise Otherwise("left out")
        os.close(files[0])

    def mmap_file(self):
        mmap.mmap(self.open, 0, mmap.MAP_SHARED, mmap.PROT_READ).close()

    def file_mprotect(self):
        for protection in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
            checked(libc.mprotect(ctypes.c_void_p(self.address), mmap.PAGESIZE, protection))

    def ptrace_access_check(self):
        # PTRACE_SEIZE
        with_child(lambda child: checked(libc.ptrace(0x4206, child, None, None)))

    def ptrace_traceme(self):
        in_child(lambda: checked(libc.ptrace(0, 0, None, None)))

    def task_setpgid(self):
        in_child(lambda: os.setpgid(0, 0))

    def task_setscheduler(self):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def task_setnice(self):
        os.setpriority(os.PRIO_PROCESS, 0, 0)

    def task_prlimit(self):
        with_child(lambda child: resource.prlimit(child, resource.RLIMIT_NOFILE))

    def task_fix_setuid(self):
        in_child(lambda: os.setresuid(-1, 3900, -1))

    def task_fix_setgid(self):
        in_child(lambda: os.setresgid(-1, 3900, -1))

    def socket_create(self):
        socket.socket(socket.AF_UNIX).close()

    def socket_listen(self):
        self.tcp.listen(64)

    def socket_accept(self):
        with socket.create_connection(self.tcp.getsockname()):
            self.tcp.accept()[0].close()

    def socket_sendmsg(self):
        self.udp.sendto(b"x", ("127.0.0.1", 9))

    def socket_deliver(self):
        def dropped():
            # SO_MEMINFO has the dropped packets last.
            return self.receiver.getsockopt(socket.SOL_SOCKET, 55, 36)[32:36]

        before = dropped()
        self.udp.sendto(b"x", self.receiver.getsockname())
        while dropped() == before:
            try:
                self.receiver.recv(1, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                pass
        raise Otherwise("dropped")

    def interface_transmit(self):
        self.udp.sendto(b"x", ("127.0.0.1", 9))

    def socket_recvmsg(self):
        self.pair[0].send(b"x")
        self.pair[1].recv(16)

    def socket_getsockname(self):
        self.udp.getsockname()

    def socket_setsockopt(self):
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def socket_getsockopt(self):
        self.udp.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)

    def socket_getpeername(self):
        self.pair[0].getpeername()

    def socket_shutdown(self):
        one, other = socket.socketpair()
        with one, other:
            one.shutdown(socket.SHUT_RDWR)

    def unix_stream_connect(self):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect("\0" + self.folder)
            self.listener.accept()[0].close()

    def unix_may_send(self):
        self.datagrams[0].send(b"x", socket.MSG_DONTWAIT)
        self.datagrams[1].recv(1)

    def msg_queue_associate(self):
        checked(libc.msgget(self.key, 0))

    def msg_queue_msgctl(self):
        checked(libc.msgctl(self.queue, 2, self.buffer))

    def send_message(self):
        message = struct.pack("l8s", 1, b"message")
        checked(libc.msgsnd(self.queue, message, 8, 0o4000))

    def receive_message(self):
        return checked(libc.msgrcv(self.queue, self.buffer, 8, 0, 0o4000))

    def msg_queue_msgsnd(self):
        self.send_message()
        self.receive_message()

    def msg_queue_msgrcv(self):
        self.send_message()
        self.receive_message()

    def sem_associate(self):
        checked(libc.semget(self.key, 0, 0))

    def sem_semctl(self):
        # GETVAL
        checked(libc.semctl(self.semaphores, 0, 12))

    def sem_semop(self):
        for change in (1, -1):
            checked(libc.semop(self.semaphores, struct.pack("Hhh", 0, change, 0o4000), 1))

    def shm_associate(self):
        checked(libc.shmget(self.key, 0, 0))

    def shm_shmctl(self):
        checked(libc.shmctl(self.segment, 2, self.buffer))

    def shm_shmat(self):
        libc.shmat.restype = ctypes.c_long
        address = checked(libc.shmat(self.segment, None, 0))
        checked(libc.shmdt(ctypes.c_void_p(address)))

    def sb_mount(self):
        self.mount(self.place)
        checked(libc.umount2(self.place.encode(), 0))

    def sb_umount(self):
        self.mount(self.place)
        checked(libc.umount2(self.place.encode(), 0))

    def sb_remount(self):
        checked(libc.mount(None, self.mounted.encode(), None, REMOUNT, None))

    def move_mount(self):
        # There and back.
        for former, place in ((self.mounted, self.other), (self.other, self.mounted)):
            former, place = (ctypes.create_string_buffer(one.encode()) for one in (former, place))
            call(429, -100, ctypes.addressof(former), -100, ctypes.addressof(place), 0)

    def sb_statfs(self):
        os.statvfs(self.file)

    def path_chroot(self):
        in_child(lambda: os.chroot("/"))

    def kernel_read_file(self):
        # finit_module(2) of a file that is no module. Nobody may have it open to write.
        parameters = ctypes.create_string_buffer(b"")
        file = os.open(self.text, os.O_RDONLY)
        try:
            call(313, file, ctypes.addressof(parameters), 0)
        finally:
            os.close(file)

    def kernel_module_request(self):
        # A family without a socket: AF_IEEE802154.
        socket.socket(36, socket.SOCK_DGRAM).close()

    def bpf(self):
        # BPF_MAP_GET_NEXT_ID: the next one after 0, if there is one.
        attributes = ctypes.create_string_buffer(64)
        call(321, 12, ctypes.addressof(attributes), 64)

    def perf_event_open(self):
        # A software clock of this process.
        attributes = struct.pack("IIQ", 1, 112, 0) + bytes(96)
        buffer = ctypes.create_string_buffer(attributes)
        os.close(call(298, ctypes.addressof(buffer), 0, -1, -1, 0))

    def settime(self):
        time.clock_settime(time.CLOCK_REALTIME, time.time())

    def syslog(self):
        # SYSLOG_ACTION_SIZE_BUFFER
        checked(libc.klogctl(10, None, 0))

    def quotactl(self):
        # Q_SYNC of all file systems, for users.
        checked(libc.quotactl(0x800001 << 8, None, 0, None))

    def capable(self):
        in_child(lambda: os.chroot("/"))


def become(uid):
    """Becomes the user, with all capabilities."""
    checked(libc.unshare(NEWNS))
    checked(libc.mount(None, b"/", None, PRIVATE, None))
    # PR_SET_KEEPCAPS
    checked(libc.prctl(8, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Of version 3: effective, permitted, inheritable, twice.
    header = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    checked(libc.capget(header, data))
    _, low, _, _, high, _ = struct.unpack("6I", data.raw)
    checked(libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)))


def act(points, name):
    try:
        getattr(points, name)()
        return "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    except Otherwise as otherwise:
        return str(otherwise)


become(int(sys.argv[1]))
points = Points(sys.argv[2])
print("begun", flush=True)
for line in sys.stdin:
    print(act(points, line.strip()), flush=True)
for remove, number in ((libc.msgctl, points.queue), (libc.shmctl, points.segment)):
    remove(number, 0, None)
libc.semctl(points.semaphores, 0, 0)
