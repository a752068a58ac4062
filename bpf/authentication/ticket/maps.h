/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables and common definitions of the ticket programs. */
#ifndef USHER_TICKET_MAPS_H
#define USHER_TICKET_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "gates.h"
#include "usher_ends.h"
#include "usher_ticket.h"

/*
 * Tickets. Key: user and server. Limit: set before loading. Full: user space gets the error, and
 * the user's connections carry no token.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct usher_ticket_key);
	__type(value, struct usher_ticket);
} tickets SEC(".maps");

/*
 * Elements that may be drawn. Key: number of the ticket, and block of its chain; each is filled
 * once. Limit: set before loading; a block takes memory when it is filled. Full: user space gets
 * the error, and the ticket ends at the missing block.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct usher_block_key);
	__type(value, struct usher_block);
} blocks SEC(".maps");

/* The token that a socket's SYN will carry. */
struct drawn {
	__u64 key[2];
	__u32 ticket;
	__u32 uid; /* its user */
	struct usher_destination server;
	__u8 begun; /* whether the socket connects: the token is never for another connection */
	__u8 asked; /* the callbacks that were not set before */
	__u8 written; /* how often, up to 255 */
	__u8 reserved;
	__u8 slot[3];
	__u8 position;
	__u8 element[USHER_TOKEN_ELEMENT_SIZE + 1]; /* the last byte is 0 */
};

/* Key: a socket, whose end removes the entry. Limit: the memory for options of the socket. Full:
 * the draw is refused (ENOMEM). */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct drawn);
} drawn SEC(".maps");

/*
 * Tickets that have reached a block not reported to user space (struct usher_block_key): that block
 * and the next must be filled. Limit: 4,096. Full: counted, and reported at the next draw.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} wanted SEC(".maps");

/*
 * The destinations at which a plain connect() is authenticated, with the list of programs; 0: all
 * programs. Only listed programs draw tokens there. Limit: set before loading. Full: user space
 * gets the error, and puts nothing in force that would need more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct usher_destination);
	__type(value, __u32);
} plain SEC(".maps");

/*
 * Listed programs. The value is unused. Limit: set before loading. Full: as `plain`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct usher_listed_key);
	__type(value, __u32);
} listed SEC(".maps");

/* Key: a socket, whose end removes the entry. Limit: the memory for options of the socket. Full:
 * the process gets ENOMEM, and does not count as a listed program. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct usher_asker);
} askers SEC(".maps");

/*
 * Reports about plain connections (struct usher_report). Limit: about 2,300. Full: counted; a held
 * SYN is reported when the kernel sends it again, and user space notices an end by a time limit.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} reports SEC(".maps");

/*
 * Endpoints of connections whose SYN was reported; sockets in `senders` may send it. The value is
 * unused. User space has no descriptor of it. Limit: as `gates`; the oldest makes room, and the
 * kernel sends its SYN.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct usher_connection);
	__type(value, __u32);
} told SEC(".maps");

/* Raw sockets that may send only reported SYNs. Key: a socket, whose end removes the entry. User
 * space keeps no descriptor of the table once they are entered. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} senders SEC(".maps");

/* What happened, one copy per CPU. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct usher_ticket_counters);
} counters SEC(".maps");

static __always_inline struct usher_ticket_counters *counters_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

/* Atomic, because a packet's program may interrupt a system call's. */
#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_ticket_counters *here = counters_here();                              \
		if (here)                                                                          \
			__sync_fetch_and_add(&here->what, 1);                                      \
	} while (0)

#endif
