/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The marks of Usher's daemons, which bpf/guard sets and connection.bpf.c reads. */
#ifndef USHER_DAEMONS_H
#define USHER_DAEMONS_H

#include "usher_refusals.h"

/* How to recognize a daemon, and the device of the pins. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct usher_protection);
} protection SEC(".maps");

/*
 * Marks of daemons. Key: the thread; value: enum usher_mark. Limit: memory. Full: an exec sets no
 * mark, and the daemon is refused Usher's objects; a new thread or process is refused.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} daemons SEC(".maps");

/* enum usher_mark, or 0. */
static __always_inline __u8 mark_of(struct task_struct *task)
{
	__u8 *mark = bpf_task_storage_get(&daemons, task, NULL, 0);

	return mark ? *mark : 0;
}

static __always_inline struct usher_protection *settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&protection, &zero);
}

#endif
