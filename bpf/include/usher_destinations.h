/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the programs of bpf/authentication/destinations and user space. The Rust side is
 * generated from this header.
 */
#ifndef USHER_DESTINATIONS_H
#define USHER_DESTINATIONS_H

#include <linux/types.h>

/* Kinds of prefix; from USHER_PORTS on, the kind is a set of ports. */
#define USHER_IPV4 4
#define USHER_IPV6 6
#define USHER_PORTS 16

/* A prefix of an address or of a port. Both are in network byte order from the first byte on. */
struct usher_prefix {
	__u32 length; /* in bits, including those of `kind` */
	__u32 kind;
	__u8 bytes[16];
};

/* Counters of the programs. */
struct usher_destination_counters {
	/* Calls from a service's processes to a refused destination. */
	__u64 connect_refused;
};

_Static_assert(sizeof(struct usher_prefix) == 24, "usher_prefix");
_Static_assert(sizeof(struct usher_destination_counters) == 8, "usher_destination_counters");

#endif
