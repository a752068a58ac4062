# Executes a command as on a kernel that has no Landlock: its system calls answer ENOSYS to the
# command and all that it starts. Root's, as no_new_privs is not set.
import ctypes, errno, os, struct, sys

LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # on every architecture
LOAD_WORD, JUMP_IF_GREATER, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x25, 0x35, 0x06
ERRNO, ALLOW = 0x00050000, 0x7FFF0000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# linux/filter.h, struct sock_filter: code, jump if true, jump if false, operand. The number of the
# system call is the first word of what a filter is given.
instructions = [
    (LOAD_WORD, 0, 0, 0),
    (JUMP_IF_AT_LEAST, 0, 2, LANDLOCK_CREATE_RULESET),
    (JUMP_IF_GREATER, 1, 0, LANDLOCK_RESTRICT_SELF),
    (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    (RETURN, 0, 0, ALLOW),
]
packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
code = ctypes.create_string_buffer(packed)
program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
    sys.exit("without_landlock: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
