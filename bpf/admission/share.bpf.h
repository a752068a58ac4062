/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Each user's share of the table of connections, as far as tokens fill it. A part of
 * admission.bpf.c. */
#ifndef USHER_SHARE_BPF_H
#define USHER_SHARE_BPF_H

/*
 * How many connections of a user at a service tokens have admitted that are not established:
 * counted up and down here, and set right by user space once a second, for those that never come.
 * Limit: that of the listeners. Full: token_overloaded, the connection is announced.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct usher_target);
	__type(value, __s64);
} outstanding SEC(".maps");

/* The user's count at the service; NULL when the table is full. */
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
