import ctypes
import mmap

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
SOCKET, CONNECT, SENDMSG = 45, 16, 9


def ring(entry):
    """Submits one entry to a ring of its own, and returns its result. No thread of the kernel."""
    parameters = ctypes.create_string_buffer(120)
    ring = libc.syscall(425, 1, parameters)
    if ring < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    words = struct.unpack("30I", parameters.raw)
    submission, completion = words[10:20], words[20:30]
    queue = mmap.mmap(ring, 4096, offset=0)
    done = mmap.mmap(ring, 4096, offset=0x8000000)
    entries = mmap.mmap(ring, 4096, offset=0x10000000)
    entries[:64] = entry.ljust(64, b"\0")
    queue[submission[6] : submission[6] + 4] = struct.pack("I", 0)
    queue[submission[1] : submission[1] + 4] = struct.pack("I", 1)
    # io_uring_enter: one to submit, one to wait for
    if libc.syscall(426, ring, 1, 1, 1, None, 0) < 0:
        raise OSError(ctypes.get_errno(), "io_uring_enter")
    result = struct.unpack_from("i", done, completion[5] + 8)[0]
    os.close(ring)
    return result


def entry(operation, descriptor, offset=0, address=0, length=0):
    # Flag 16: in a worker thread of the kernel.
    return struct.pack("<BBHiQQI", operation, 16, 0, descriptor, offset, address, length)


def ring_works():
    try:
        return ring(entry(0, -1)) == 0
    except OSError:
        return False


def ring_socket():
    made = ring(entry(SOCKET, 2, offset=2))
    if made < 0:
        raise OSError(-made, "socket")
    return socket.socket(fileno=made)


def ring_address(to):
    return ctypes.create_string_buffer(
        struct.pack("<H", 2) + struct.pack("!H", to[1]) + socket.inet_aton(to[0]) + bytes(8), 16
    )


def ring_connect(of, to):
    address = ring_address(to)
    return ring(entry(CONNECT, of.fileno(), offset=16, address=ctypes.addressof(address)))


def ring_send(of, to):
    address = ring_address(to)
    data = ctypes.create_string_buffer(b"x")
    vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(data), 1))
    header = struct.pack(
        "QIIQQQQiI", ctypes.addressof(address), 16, 0, ctypes.addressof(vector), 1, 0, 0, 0, 0
    )
    message = ctypes.create_string_buffer(header, 56)
    return ring(entry(SENDMSG, of.fileno(), address=ctypes.addressof(message), length=1))
