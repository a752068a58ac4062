/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of bpf/authentication/ticket and user space both read and write; the Rust side
 * is generated from this header.
 */
#ifndef USHER_TICKET_H
#define USHER_TICKET_H

#include <linux/types.h>

#include "usher_token.h"

/* The socket option that draws: setsockopt(socket, level, name, struct usher_destination). */
#define USHER_OPTION_LEVEL 0x5573
#define USHER_OPTION_DRAW 1
/* Says which program makes the socket, to have it announced: setsockopt(socket, level, name,
 * __u32), of which the value is 0. */
#define USHER_OPTION_PROGRAM 2

/* As TASK_COMM_LEN. */
#define USHER_COMMAND_SIZE 16

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
	__u32 passed; /* 1: a connection with one of its tokens was established */
	__u32 reserved; /* 0 */
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

/* One connect(): of which socket, and when it began (boot time), which tells it from others of that
 * socket. */
struct usher_attempt {
	__u64 cookie;
	__u64 begun_ns;
};

/* Whose connection with these ends is the only one that may begin, and whether it may now. */
struct usher_guard {
	struct usher_attempt attempt; /* begun_ns 0: whichever connect() of the socket */
	__u64 until_ns; /* boot time: it means nothing from then on */
	__u64 released;
	__u8 session[16]; /* in which they are announced; zeros: not known yet */
};

/* A socket's connection that is held until it is released. */
struct usher_hold {
	__u64 begun_ns;
	__u64 program; /* where programs are listed; 0: none that could be */
	__u32 uid;
	__u32 ticket; /* whose token was sent and not answered; 0: none */
	__u32 pid; /* in the initial namespace */
	__u8 exempt; /* never held: announced before it connects */
	__u8 told;
	__u8 asked; /* the callbacks that were not asked for before */
	__u8 reserved;
	char command[USHER_COMMAND_SIZE]; /* as the process calls itself */
};

/* A list, and a program that is on it. */
struct usher_listed_key {
	__u64 program;
	__u32 list; /* not 0 */
	__u32 reserved; /* 0 */
};

/* Which program has made a socket that is to be announced; 0: none that could be listed. */
struct usher_asker {
	__u64 program;
};

/* What makes numbers of addresses. */
struct usher_program_key {
	__u64 words[2];
};

/* Which program is the file that the caller has open as `descriptor`? */
struct usher_program_query {
	__u64 program; /* the answer */
	__u32 descriptor;
	__u32 reserved; /* 0 */
};

enum usher_event {
	USHER_EVENT_HELD = 1,
	USHER_EVENT_OVER = 2, /* established, or given up */
	USHER_EVENT_REFUSED = 3, /* its token was */
};

/* The largest SYN: both headers with all their options. */
#define USHER_SYN_SIZE 120

struct usher_report {
	struct usher_attempt attempt;
	__u64 program; /* as in usher_hold */
	struct usher_connection connection;
	__u32 uid;
	__u32 ticket; /* whose token did not pass; 0: none */
	__u32 pid;
	char command[USHER_COMMAND_SIZE];
	__u16 event;
	__u16 size; /* of the SYN, 0 when it is not here */
	__u8 syn[USHER_SYN_SIZE]; /* from the IP header on; of the TCP checksum a part only */
	__u32 reserved; /* 0 */
};

/* What the programs have counted. */
struct usher_ticket_counters {
	/* Elements drawn for a socket. */
	__u64 drawn;
	/* Draws without a ticket. */
	__u64 without_ticket;
	/* Draws from a ticket that had expired. */
	__u64 expired;
	/* Draws from a ticket without elements. */
	__u64 exhausted;
	/* Draws for what is no TCP socket, or not one that may yet connect. */
	__u64 unsuitable;
	/* Connections to somewhere else than their token was drawn for: without. */
	__u64 other_destination;
	/* Times that the kernel asked what a packet's options need: for what connections with a
	 * token send before their handshake ends, and where programs of others have it ask. */
	__u64 asked;
	/* Options written: one for each SYN, copies sent again included. */
	__u64 written;
	/* Connections without their token for want of room in the SYN. */
	__u64 no_room;
	/* Handshakes that ended well of connections with a token. */
	__u64 established;
	/* Those that did not. */
	__u64 failed;
	/* Blocks of which user space could not be told yet; they are told at the next draw. */
	__u64 untold;
	/* SYNs of plain connections that were held, copies sent again included. */
	__u64 held;
	/* Of these and of ends of plain connections, what user space could not be told. */
	__u64 unreported;
	/* Plain connections that could not be marked, for want of memory: they are not held. */
	__u64 unheld;
	/* Plain connections whose token was answered by a RST. */
	__u64 refused;
	/* Plain connections whose token was not answered: they go on without. */
	__u64 unanswered;
	/* Packets of the sender of held SYNs that were none. */
	__u64 unsent;
	/* Draws and plain connections of programs that were not listed for where they went. */
	__u64 unlisted;
	/* SYNs kept back because their ends were another connection's. In the guards' own table;
	 * 0 in that of the ticket programs. */
	__u64 kept_back;
};

_Static_assert(sizeof(struct usher_destination) == 20, "usher_destination");
_Static_assert(sizeof(struct usher_ticket_key) == 24, "usher_ticket_key");
_Static_assert(sizeof(struct usher_ticket) == 48, "usher_ticket");
_Static_assert(sizeof(struct usher_block_key) == 8, "usher_block_key");
_Static_assert(sizeof(struct usher_block) == 708, "usher_block");
_Static_assert(sizeof(struct usher_ticket_counters) == 160, "usher_ticket_counters");

_Static_assert(sizeof(struct usher_attempt) == 16, "usher_attempt");
_Static_assert(sizeof(struct usher_guard) == 48, "usher_guard");
_Static_assert(sizeof(struct usher_hold) == 48, "usher_hold");
_Static_assert(sizeof(struct usher_report) == 216, "usher_report");
_Static_assert(sizeof(struct usher_listed_key) == 16, "usher_listed_key");
_Static_assert(sizeof(struct usher_asker) == 8, "usher_asker");
_Static_assert(sizeof(struct usher_program_key) == 16, "usher_program_key");
_Static_assert(sizeof(struct usher_program_query) == 16, "usher_program_query");

#endif
