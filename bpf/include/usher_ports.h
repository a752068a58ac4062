/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of bpf/authentication/ports and user space share; the Rust side is generated
 * from this header.
 */
#ifndef USHER_PORTS_H
#define USHER_PORTS_H

#include <linux/types.h>

/* Of a port that is reserved, at all addresses or at some. */
struct usher_port {
	__u32 uid; /* who may bind it to all addresses; 0: root alone */
	__u32 all; /* not 0: and who may bind it to any */
};

/* One address, as in usher_connection, and a port, in the machine's byte order. */
struct usher_bound {
	__u8 address[16];
	__u32 port;
};

/* What the programs have counted. */
struct usher_port_counters {
	/* Calls that were refused a port. */
	__u64 port_refused;
};

_Static_assert(sizeof(struct usher_port) == 8, "usher_port");
_Static_assert(sizeof(struct usher_bound) == 20, "usher_bound");
_Static_assert(sizeof(struct usher_port_counters) == 8, "usher_port_counters");

#endif
