/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the program of bpf/authentication/protected and user space. The Rust side is
 * generated from this header.
 */
#ifndef USHER_PROTECTED_H
#define USHER_PROTECTED_H

#include <linux/types.h>

/* The protection that the packets to a service's port need. */
struct usher_demand {
	__u32 shift; /* the lowest of the four bits of a packet's mark that have its class number */
	__u32 classes; /* bit N: packets with the class number N pass; the lowest is 0 */
};

/* Counters of the program. */
struct usher_protected_counters {
	/* Packets to such a port that had the protection. */
	__u64 protected;
	/* Packets to such a port dropped because they had none, or not enough. */
	__u64 refused;
	/* Packets dropped because their headers could not be read. */
	__u64 unreadable;
};

_Static_assert(sizeof(struct usher_demand) == 8, "usher_demand");
_Static_assert(sizeof(struct usher_protected_counters) == 24, "usher_protected_counters");

#endif
