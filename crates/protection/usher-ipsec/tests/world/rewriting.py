import ctypes

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = libc.syscall(321, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return result


def instruction(code, registers, offset, value):
    return struct.pack("<BBhi", code, registers, offset, value)


def rewrite(cgroup, address):
    """Attaches a connect4 program, beside others: whoever connects, connects to this address."""
    to = int.from_bytes(socket.inet_aton(address), "little")
    # context->user_ip4 = to; return 1
    code = instruction(0xB4, 2, 0, to) + instruction(0x63, 0x21, 4, 0)
    code += instruction(0xB7, 0, 0, 1) + instruction(0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code)
    license = ctypes.create_string_buffer(b"GPL")
    # BPF_PROG_LOAD of BPF_PROG_TYPE_CGROUP_SOCK_ADDR, for BPF_CGROUP_INET4_CONNECT
    load = struct.pack("<IIQQIIQII", 18, 4, ctypes.addressof(instructions), ctypes.addressof(license), 0, 0, 0, 0, 0)
    load = load.ljust(68, b"\0") + struct.pack("<I", 10)
    program = bpf(5, load)
    group = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    # BPF_PROG_ATTACH with BPF_F_ALLOW_MULTI
    bpf(8, struct.pack("<IIII", group, program, 10, 2))
