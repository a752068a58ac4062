/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that connect, and whether they are listed for their destination (usher_executable.h). */
#ifndef USHER_TICKET_PROGRAM_H
#define USHER_TICKET_PROGRAM_H

#include "maps.h"
#include "usher_executable.h"

/*
 * The program that the calling process runs. 0: its file no longer has a name, so it is at no path,
 * or there is none.
 */
static __always_inline __u64 own_program(void)
{
	struct inode *inode = executable_of(bpf_get_current_task_btf());

	return inode && inode->i_nlink ? program_of(inode) : 0;
}

/* The list of an entry of `plain`, read once, because user space may change it; 0: none. */
static __always_inline __u32 found_list(const __u32 *found)
{
	return found ? *(const volatile __u32 *)found : 0;
}

/* Whether a program is on this list. */
static __always_inline int is_listed(__u32 list, __u64 program)
{
	struct usher_listed_key key = {
		.program = program,
		.list = list,
	};

	return program && bpf_map_lookup_elem(&listed, &key);
}

/* The connecting process, for the log. */
static __always_inline void note_process(struct usher_hold *hold)
{
	struct task_struct *task = bpf_get_current_task_btf();

	hold->pid = task->tgid;
	for (int byte = 0; byte < USHER_COMMAND_SIZE; byte++)
		hold->command[byte] = task->comm[byte];
}

/* Notes the program that requests an announcement of this socket. */
static __always_inline int note_asker(struct bpf_sock *socket)
{
	struct usher_asker fresh = {
		.program = own_program(),
	};
	struct usher_asker *asker =
	    bpf_sk_storage_get(&askers, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE);

	if (!asker)
		return -ENOMEM;
	*asker = fresh;
	return 0;
}

#endif
