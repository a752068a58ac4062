/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Each user's share of the table of connections that tokens fill. A part of admission.bpf.c and of
 * arriving.bpf.c.
 */
#ifndef USHER_SHARE_BPF_H
#define USHER_SHARE_BPF_H

#include "entries.bpf.h"

/*
 * The number of a user's connections at a service that tokens have admitted and that are not
 * established. Counted up and down here. User space corrects it once a second, for connections that
 * never arrive. Limit: that of the listeners. Full: token_overloaded, the connection is announced.
 */
HASH_TABLE(outstanding, 1, struct usher_target, __s64);

/* The user's count at the service; NULL if the table is full. */
static __always_inline __s64 *outstanding_of(const struct usher_target *target)
{
	__s64 *count = bpf_map_lookup_elem(&outstanding, target), none = 0;

	if (count)
		return count;
	bpf_map_update_elem(&outstanding, target, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&outstanding, target);
}

static __always_inline void count_outstanding(const struct usher_target *target, __s64 change)
{
	__s64 *count = outstanding_of(target);

	if (count)
		__sync_fetch_and_add(count, change);
}

#endif
