/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of bpf/authentication/destinations and user space share; the Rust side is
 * generated from this header. */
#ifndef USHER_DESTINATIONS_H
#define USHER_DESTINATIONS_H

#include <linux/types.h>

/* What a prefix is of; from USHER_PORTS on it is a set of ports. */
#define USHER_IPV4 4
#define USHER_IPV6 6
#define USHER_PORTS 16

/* A prefix: of an address, or of a port. Both are in network byte order from the first byte on. */
struct usher_prefix {
	__u32 length; /* in bits, those of `kind` included */
	__u32 kind;
	__u8 bytes[16];
};

/* What the programs have counted. */
struct usher_destination_counters {
	/* Calls of a service's processes that were refused a destination. */
	__u64 connect_refused;
};

_Static_assert(sizeof(struct usher_prefix) == 24, "usher_prefix");
_Static_assert(sizeof(struct usher_destination_counters) == 8, "usher_destination_counters");

#endif
