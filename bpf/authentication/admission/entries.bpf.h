/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The entries of connections, and the other tables that all programs of this folder use. They are
 * pinned, so that admission.bpf.c and arriving.bpf.c have the same ones.
 */
#ifndef USHER_ENTRIES_BPF_H
#define USHER_ENTRIES_BPF_H

#include <linux/errno.h>

#include "usher_ends.h"
#include "usher_maps.h"
#include "usher_shared.h"

/*
 * Ports under admission. Key: port in host byte order; value: id of the service.
 * Limit: every port there is.
 */
SPARSE_TABLE(services, 65536, __u32, __u32);

/*
 * Announced and living connections. Key: the two endpoints; value: state, queue, session.
 * Limit: set before loading. Full: user space gets the error, and the connection is refused.
 */
HASH_TABLE(admissions, 1, struct usher_connection, struct usher_admission);

/* Counters of events, one copy per CPU. Key: 0. */
CPU_TABLE(counters, 1, struct usher_counters);

/*
 * Connections that reached a service without an entry (struct usher_connection), for user space to
 * cut. Full: still counted as untracked; the connection is not refused here.
 */
RING_BUFFER(untracked, 64 * 1024);

#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_counters *here = first_of(&counters);                                 \
		if (here)                                                                          \
			here->what++;                                                              \
	} while (0)

static __always_inline __u32 state_of(__u64 mark)
{
	return mark & USHER_STATE_MASK;
}

static __always_inline __u64 with_state(__u64 mark, __u32 state)
{
	return (mark & ~USHER_STATE_MASK) | state;
}

/* Returns whether `mark` was still that of `entry`; a full memory barrier in any case. */
static __always_inline int exchange(struct usher_admission *entry, __u64 mark, __u32 state)
{
	return __sync_val_compare_and_swap(&entry->mark, mark, with_state(mark, state)) == mark;
}

/* Whether the announcement numbered in `mark` is the present one of `connection`. */
static __always_inline int stands_under(const struct usher_connection *connection, __u64 mark)
{
	struct usher_admission *entry = bpf_map_lookup_elem(&admissions, connection);

	return entry && (entry->mark & ~USHER_STATE_MASK) == (mark & ~USHER_STATE_MASK);
}

/* A SYN in the form of usher_admission.syn. */
static __always_inline __u64 known_syn(__be32 sequence)
{
	return USHER_SYN_KNOWN | sequence;
}

#endif
