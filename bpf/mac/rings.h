/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which processes hold an io_uring. A ring has the memory that its maker has registered, and no
 * hook is asked when somebody who submits to it has that read or written: by READ_FIXED and its
 * kind, of the maker's memory. What it has registered as files is asked about at each use, as all
 * files are. Contexts of io_setup(2) are not inherited, and end when a program is executed.
 */
#ifndef USHER_MAC_RINGS_H
#define USHER_MAC_RINGS_H

#include "events.h"

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

struct file___mac_named {
	struct inode *f_inode;
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

struct ring_search {
	__u64 files; /* the address of the descriptors' array */
	__u64 closed; /* the address of their close-on-exec flags, a bit each */
	__u32 count;
	__u32 found;
};

static long look_at_descriptor(__u64 number, struct ring_search *search)
{
	__u64 file = 0, closed = 0;
	char name[sizeof(ring_name)] = {};

	if (number >= search->count)
		return 1;
	bpf_probe_read_kernel(&file, sizeof(file), (void *)(search->files + number * 8));
	if (!file)
		return 0;
	bpf_probe_read_kernel(&closed, sizeof(closed), (void *)(search->closed + number / 64 * 8));
	if (closed >> (number & 63) & 1)
		return 0;
	file = (__u64)bpf_core_cast((void *)file, struct file___mac_named)->f_inode;
	read_a_name(name, sizeof(name), file);
	search->found = is_ring(name);
	return search->found;
}

/*
 * Whether a program that the calling process executes gets a ring. Global, so that the verifier
 * goes through it once. Where the table has more descriptors than are looked at: 1.
 */
__attribute__((noinline)) int mac_keeps_ring(void)
{
	const struct task_struct___mac_files *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac_files);
	const struct fdtable___mac *table = task->files->fdt;
	struct ring_search search = {
		.files = (__u64)table->fd,
		.closed = (__u64)table->close_on_exec,
		.count = table->max_fds,
	};

	if (search.count > RING_DESCRIPTORS)
		return 1;
	bpf_loop(search.count, look_at_descriptor, &search, 0);
	return search.found;
}

#endif
