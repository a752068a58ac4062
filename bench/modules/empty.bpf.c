// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Programs that always permit, at the framework's hooks that the counted acts pass. They show the
 * kernel's own cost of calling a program there.
 */
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define EMPTY(hook)                                                                                \
	SEC("lsm/" #hook)                                                                          \
	int empty_##hook(__u64 *arguments)                                                         \
	{                                                                                          \
		return 0;                                                                          \
	}

EMPTY(bprm_check_security)
EMPTY(bprm_creds_from_file)
EMPTY(file_mprotect)
EMPTY(file_open)
EMPTY(inode_getattr)
EMPTY(inode_permission)
EMPTY(mmap_file)
EMPTY(socket_recvmsg)
EMPTY(socket_sendmsg)
