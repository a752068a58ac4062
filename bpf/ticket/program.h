/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs: which executable a process runs, and whether it is listed where it connects.
 *
 * A program is known by the kernel's inode object of its executable: the one thing that no chroot,
 * mount namespace or overlay of the process makes look like another file, and that is the same
 * however a file system numbers its files. User space keeps each listed file open, so that the
 * object stays and its address is no other file's. What user space sees of the address is a keyed
 * hash.
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

/* `distance`: of the inode from the hash's key, which is where it is as long as the tables are. */
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
 * The program that the calling process runs. 0: a file that has no name any more, so it is at no
 * path, or none at all. Read as the verifier knows the types: also where the kernel is locked down.
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
	/* The one thing that may be calculated of two pointers. */
	distance = (char *)inode - (char *)key;
	return program_at(distance, key);
}

/* The list of an entry of `plain`, read once, as user space may change it; 0: none. */
static __always_inline __u32 found_list(const __u32 *found)
{
	return found ? *(const volatile __u32 *)found : 0;
}

/* Whether a program may authenticate where those of this list may. */
static __always_inline int is_listed(__u32 list, __u64 program)
{
	struct usher_listed_key key = {
		.program = program,
		.list = list,
	};

	return program && bpf_map_lookup_elem(&listed, &key);
}

/* Who connects, for the log. */
static __always_inline void note_process(struct usher_hold *hold)
{
	struct task_struct *task = bpf_get_current_task_btf();

	hold->pid = task->tgid;
	for (int byte = 0; byte < USHER_COMMAND_SIZE; byte++)
		hold->command[byte] = task->comm[byte];
}

/* Notes which program has this socket announced. */
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
