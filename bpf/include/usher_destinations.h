/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tables of bpf/destinations, which crates/usher-kernel/src/destinations.rs fills. */
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

_Static_assert(sizeof(struct usher_prefix) == 24, "usher_prefix");

#endif
