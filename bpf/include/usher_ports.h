/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the programs of bpf/authentication/ports and user space. The Rust side is
 * generated from this header.
 */
#ifndef USHER_PORTS_H
#define USHER_PORTS_H

#include <linux/types.h>

/* A reserved port, at all addresses or at some. */
struct usher_port {
	__u32 uid; /* the user who may bind it to all addresses; 0: only root */
	__u32 all; /* not 0: that user may bind it to any address */
};

/* An address as in usher_connection, and a port in host byte order. */
struct usher_bound {
	__u8 address[16];
	__u32 port;
};

/* Counters of the programs. */
struct usher_port_counters {
	/* Calls that were refused a port. */
	__u64 port_refused;
};

_Static_assert(sizeof(struct usher_port) == 8, "usher_port");
_Static_assert(sizeof(struct usher_bound) == 20, "usher_bound");
_Static_assert(sizeof(struct usher_port_counters) == 8, "usher_port_counters");

#endif
