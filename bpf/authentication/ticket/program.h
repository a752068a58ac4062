/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs: the executable that a process runs, and whether it is listed for its destination.
 *
 * The kernel's inode object of the executable identifies a program: no chroot, mount namespace or
 * overlay of the process can make it look like another file, and it does not depend on a file
 * system's numbering. User space keeps each listed file open, so that the object stays and no other
 * file gets its address. User space sees only a keyed hash of the address.
 */
#ifndef USHER_TICKET_PROGRAM_H
#define USHER_TICKET_PROGRAM_H

#include "maps.h"

#include <bpf/bpf_core_read.h>

#define EBADF 9
#define EACCES 13

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct inode {
	unsigned int i_nlink;
};

struct file {
	struct inode *f_inode;
};

struct mm_struct {
	struct file *exe_file;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	int tgid;
	char comm[USHER_COMMAND_SIZE];
	struct mm_struct *mm;
	struct files_struct *files;
};

#pragma clang attribute pop

/* `distance`: of the inode from the hash's key, whose address stays as long as the tables exist. */
static __always_inline __u64 program_at(__u64 distance, const struct usher_program_key *key)
{
	const __u64 words[2] = { key->words[0], key->words[1] };
	const __u64 message[5] = { distance };
	__u64 hash[2];

	usher_token_mask(words, message, hash);
	return hash[0] ? hash[0] : 1;
}

static __always_inline struct usher_program_key *program_key(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&program_keys, &zero);
}

/*
 * The program that the calling process runs. 0: its file no longer has a name, so it is at no path,
 * or there is none. Read by types known to the verifier, which also works in lockdown.
 */
static __always_inline __u64 own_program(void)
{
	struct usher_program_key *key = program_key();
	struct mm_struct *memory = bpf_get_current_task_btf()->mm;
	struct inode *inode;
	struct file *file;
	__u64 distance;

	if (!key || !memory)
		return 0;
	file = memory->exe_file;
	if (!file)
		return 0;
	inode = file->f_inode;
	if (!inode || !inode->i_nlink)
		return 0;
	/* The verifier permits only the difference of two pointers. */
	distance = (char *)inode - (char *)key;
	return program_at(distance, key);
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
