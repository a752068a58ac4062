/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which processes hold an io_uring. A ring has memory that its maker has registered. Every process
 * that submits to the ring can have that memory read or written, by READ_FIXED and its kind, and no
 * hook is asked. About registered files modules are asked at each use, as about all files. Contexts
 * of io_setup(2) are not inherited, and end when a program is executed.
 */
#ifndef USHER_MAC_RINGS_H
#define USHER_MAC_RINGS_H

#include "events.h"

#include <linux/magic.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct fdtable___mac {
	unsigned int max_fds;
	struct file **fd;
	unsigned long *close_on_exec;
};

struct files_struct___mac {
	struct fdtable___mac *fdt;
};

struct task_struct___mac_files {
	struct files_struct___mac *files;
};

struct inode___mac_named {
	struct super_block *i_sb;
};

struct file___mac_named {
	struct inode___mac_named *f_inode;
};

#pragma clang attribute pop

/* Limit of descriptors of a process that are looked at: the kernel's limit (fs.nr_open) is as large
 * unless somebody raises it. */
#define RING_DESCRIPTORS (1 << 20)

/* The name that the kernel gives the files of rings. */
static const char ring_name[] = "[io_uring]";

static __always_inline int is_ring(const char found[sizeof(ring_name)])
{
	__u32 differences = 0;

	for (__u32 i = 0; i < sizeof(ring_name); i++)
		differences |= found[i] ^ ring_name[i];
	return !differences;
}

/* Whether the file of this address is a ring, and not one that somebody has named so. */
static __always_inline int is_ring_file(__u64 file)
{
	const struct inode___mac_named *inode =
	    bpf_core_cast((void *)file, struct file___mac_named)->f_inode;
	char name[sizeof(ring_name)] = {};

	if (inode->i_sb->s_magic != ANON_INODE_FS_MAGIC)
		return 0;
	read_a_name(name, sizeof(name), (__u64)inode);
	return is_ring(name);
}

struct ring_search {
	__u64 files; /* the address of the descriptors' array */
	/* The address of the descriptors' close-on-exec flags, a bit each; 0: descriptors with the
	 * flag count, too. */
	__u64 closed;
	__u32 count;
	__u32 found;
};

static long look_at_descriptor(__u64 number, struct ring_search *search)
{
	__u64 file = 0, closed = 0;

	if (number >= search->count)
		return 1;
	bpf_probe_read_kernel(&file, sizeof(file), (void *)(search->files + number * 8));
	if (!file)
		return 0;
	if (search->closed)
		bpf_probe_read_kernel(&closed, sizeof(closed),
				      (void *)(search->closed + number / 64 * 8));
	if (closed >> (number & 63) & 1)
		return 0;
	search->found = is_ring_file(file);
	return search->found;
}

/*
 * Whether the calling process holds a ring now; `after_exec`: whether a program that it executes
 * gets one. Global, so that the verifier goes through it once. Where the table has more descriptors
 * than are looked at: 1.
 */
__attribute__((noinline)) int mac_holds_ring(int after_exec)
{
	const struct task_struct___mac_files *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac_files);
	const struct fdtable___mac *table = task->files->fdt;
	struct ring_search search = {
		.files = (__u64)table->fd,
		.closed = after_exec ? (__u64)table->close_on_exec : 0,
		.count = table->max_fds,
	};

	if (search.count > RING_DESCRIPTORS)
		return 1;
	bpf_loop(search.count, look_at_descriptor, &search, 0);
	return search.found;
}

#endif
