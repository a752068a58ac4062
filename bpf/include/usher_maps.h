/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Short forms for the tables of programs. The comment above each table states its key, its limit,
 * and what happens when it is full.
 */
#ifndef USHER_MAPS_H
#define USHER_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define USHER_MAP(name, kind, flags, entries, key_type, value_type)                                \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_##kind);                                                 \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, entries);                                                      \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

#define HASH_TABLE(name, entries, key, value) USHER_MAP(name, HASH, 0, entries, key, value)
/* Takes memory for an entry when it is made. */
#define SPARSE_TABLE(name, entries, key, value)                                                    \
	USHER_MAP(name, HASH, BPF_F_NO_PREALLOC, entries, key, value)
#define ARRAY_TABLE(name, entries, value) USHER_MAP(name, ARRAY, 0, entries, __u32, value)
/* One copy per CPU. */
#define CPU_TABLE(name, entries, value) USHER_MAP(name, PERCPU_ARRAY, 0, entries, __u32, value)
/* The entry ends with the task. */
#define TASK_TABLE(name, value) USHER_MAP(name, TASK_STORAGE, BPF_F_NO_PREALLOC, 0, int, value)
/* The entry ends with the socket. */
#define SOCKET_TABLE(name, value) USHER_MAP(name, SK_STORAGE, BPF_F_NO_PREALLOC, 0, int, value)

#define RING_BUFFER(name, size)                                                                    \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                \
		__uint(max_entries, size);                                                         \
	} name SEC(".maps")

/* The entry at index 0 of an array. */
static __always_inline void *first_of(void *table)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(table, &zero);
}

/* Counts up. Atomic, because a packet's program may interrupt a system call's. */
static __always_inline void count_up(__u64 *count)
{
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Counts by COUNT, which the including program defines. Its result is `value`. */
#define COUNTED(what, value)                                                                       \
	({                                                                                         \
		COUNT(what);                                                                       \
		value;                                                                             \
	})

#endif
