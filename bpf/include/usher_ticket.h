/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of bpf/ticket and user space both read and write. The Rust side is
 * crates/usher-kernel/src/ticket/layout.rs; both sides assert the sizes.
 */
#ifndef USHER_TICKET_H
#define USHER_TICKET_H

#include <linux/types.h>

#include "usher_token.h"

/* The socket option that draws: setsockopt(socket, level, name, struct usher_destination). */
#define USHER_OPTION_LEVEL 0x5573
#define USHER_OPTION_DRAW 1

/* Flag of a ticket: connect() of any program draws by itself. */
#define USHER_TICKET_PLAIN 1U

/* Where a connection goes: address as in usher_connection, and the value of the option. */
struct usher_destination {
	__u8 address[16];
	__be16 port;
	__be16 reserved; /* 0 */
};

/* Whose ticket, and for where. */
struct usher_ticket_key {
	__u32 uid; /* in the initial user namespace */
	struct usher_destination server;
};

struct usher_ticket {
	/* The high half: the number of the ticket, never used twice. The low half: of how many
	 * blocks user space has been told. So telling can be marked in no other ticket. */
	__u64 mark;
	__u64 expires_ns; /* boot time: nothing is drawn from then on */
	__u64 key[2];
	__u32 slot;
	__u32 next; /* the position drawn last */
	__u32 flags;
	__u32 reserved;
};

/* Elements of a ticket at the positions block * USHER_TOKEN_BLOCK + 1 on. */
struct usher_block_key {
	__u32 ticket;
	__u32 block;
};

struct usher_block {
	__u32 count; /* not 0 */
	__u8 elements[USHER_TOKEN_BLOCK][USHER_TOKEN_ELEMENT_SIZE];
};

struct usher_ticket_counters {
	__u64 drawn;
	__u64 without_ticket;
	__u64 expired;
	__u64 exhausted;
	__u64 unsuitable;
	__u64 other_destination;
	__u64 asked;
	__u64 written;
	__u64 no_room;
	__u64 established;
	__u64 failed;
	__u64 untold;
};

_Static_assert(sizeof(struct usher_destination) == 20, "usher_destination");
_Static_assert(sizeof(struct usher_ticket_key) == 24, "usher_ticket_key");
_Static_assert(sizeof(struct usher_ticket) == 48, "usher_ticket");
_Static_assert(sizeof(struct usher_block_key) == 8, "usher_block_key");
_Static_assert(sizeof(struct usher_block) == 708, "usher_block");
_Static_assert(sizeof(struct usher_ticket_counters) == 96, "usher_ticket_counters");

#endif
