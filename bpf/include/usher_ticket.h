/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the programs of bpf/authentication/ticket and user space. The Rust side is
 * generated from this header.
 */
#ifndef USHER_TICKET_H
#define USHER_TICKET_H

#include <linux/types.h>

#include "usher_token.h"

/* Goes up with every change of the pinned tables of gate.bpf.c: a size, an offset or a meaning. */
#define USHER_TICKET_VERSION 1

/*
 * The socket option that draws a token: setsockopt(socket, level, name, struct usher_destination).
 */
#define USHER_OPTION_LEVEL 0x5573
#define USHER_OPTION_DRAW 1
/*
 * Names the program that makes the socket, to have the socket announced: setsockopt(socket, level,
 * name, __u32) with the value 0.
 */
#define USHER_OPTION_PROGRAM 2

/* As TASK_COMM_LEN. */
#define USHER_COMMAND_SIZE 16

/* A connection's destination: address as in usher_connection, and the value of the option. */
struct usher_destination {
	__u8 address[16];
	__be16 port;
	__be16 reserved; /* 0 */
};

/* The user and destination of a ticket. */
struct usher_ticket_key {
	__u32 uid; /* in the initial user namespace */
	struct usher_destination server;
};

struct usher_ticket {
	/*
	 * The high half is the number of the ticket, which is never reused. The low half is the
	 * number of blocks reported to user space. So a report can be marked only in its own
	 * ticket.
	 */
	__u64 mark;
	__u64 expires_ns; /* boot time; nothing is drawn from then on */
	__u64 key[2];
	__u32 slot;
	__u32 next; /* the position drawn last */
	__u32 passed; /* 1: a connection with one of its tokens was established */
	__u32 reserved; /* 0 */
};

/* Elements of a ticket, from the position block * USHER_TOKEN_BLOCK + 1 on. */
struct usher_block_key {
	__u32 ticket;
	__u32 block;
};

struct usher_block {
	__u32 count; /* not 0 */
	__u8 elements[USHER_TOKEN_BLOCK][USHER_TOKEN_ELEMENT_SIZE];
};

/*
 * One connect(): its socket and its beginning (boot time), which distinguishes it from the socket's
 * others.
 */
struct usher_attempt {
	__u64 cookie;
	__u64 begun_ns;
};

/* The only socket whose connection with these endpoints may begin, and whether it may begin now. */
struct usher_gate {
	struct usher_attempt attempt; /* begun_ns 0: any connect() of the socket */
	__u64 until_ns; /* boot time; void from then on */
	__u64 released;
	__u8 session[16]; /* the announcing session; zeros: not known yet */
};

/* A socket's connection that is held until it is released. */
struct usher_hold {
	__u64 begun_ns;
	__u64 program; /* where programs are listed; 0: none that could be */
	__u32 uid;
	__u32 ticket; /* the ticket whose token was sent and not answered; 0: none */
	__u32 pid; /* in the initial namespace */
	__u8 exempt; /* never held: announced before it connects */
	__u8 told;
	__u8 asked; /* the callbacks that were not requested before */
	__u8 reserved;
	char command[USHER_COMMAND_SIZE]; /* the process's own name */
};

/* A list, and a program on it. */
struct usher_listed_key {
	__u64 program;
	__u32 list; /* not 0 */
	__u32 reserved; /* 0 */
};

/* The program that made a socket to be announced; 0: none that could be listed. */
struct usher_asker {
	__u64 program;
};

/* The user who made a connection's socket. */
struct usher_owner {
	__u32 uid; /* in the initial user namespace */
	__u32 known; /* 0: sockets of two users have tried to connect with these endpoints */
};

enum usher_event {
	USHER_EVENT_HELD = 1,
	USHER_EVENT_OVER = 2, /* established or abandoned */
	USHER_EVENT_REFUSED = 3, /* its token was refused */
};

/* The largest SYN: both headers with all their options. */
#define USHER_SYN_SIZE 120

struct usher_report {
	struct usher_attempt attempt;
	__u64 program; /* as in usher_hold */
	struct usher_connection connection;
	__u32 uid;
	__u32 ticket; /* the ticket whose token did not pass; 0: none */
	__u32 pid;
	char command[USHER_COMMAND_SIZE];
	__u16 event;
	__u16 size; /* of the SYN, 0 when it is not here */
	__u8 syn[USHER_SYN_SIZE]; /* from the IP header on; of the TCP checksum, only a part */
	__u32 mark; /* of the held SYN's socket, which decides about its protection */
};

/* Counters of the programs. */
struct usher_ticket_counters {
	/* Elements drawn for a socket. */
	__u64 drawn;
	/* Draws without a ticket. */
	__u64 without_ticket;
	/* Draws from a ticket that had expired. */
	__u64 expired;
	/* Draws from a ticket without elements. */
	__u64 exhausted;
	/* Draws for a socket that is not TCP, or can no longer connect. */
	__u64 unsuitable;
	/* Connections to another destination than their token was drawn for; sent without it. */
	__u64 other_destination;
	/*
	 * Times that the kernel asked how much room a packet's options need: for packets of
	 * connections with a token before their handshake ends, and where other parties' programs
	 * have it ask.
	 */
	__u64 asked;
	/* Options written: one for each SYN, retransmissions included. */
	__u64 written;
	/* Connections without their token because the SYN had no room. */
	__u64 no_room;
	/* Connections with a token whose handshake succeeded. */
	__u64 established;
	/* Connections with a token whose handshake failed. */
	__u64 failed;
	/* Blocks that could not be reported to user space yet; the next draw reports them. */
	__u64 untold;
	/* SYNs of plain connections that were held, retransmissions included. */
	__u64 held;
	/* Held SYNs and ended plain connections that could not be reported to user space. */
	__u64 unreported;
	/* Plain connections that are not held because there was no memory to mark them. */
	__u64 unheld;
	/* Plain connections whose token was answered by a RST. */
	__u64 refused;
	/* Plain connections whose token was not answered: they continue without one. */
	__u64 unanswered;
	/* Packets from the sender of held SYNs that were not held SYNs. */
	__u64 unsent;
	/* Draws and plain connections of programs that were not listed for their destination. */
	__u64 unlisted;
	/*
	 * SYNs kept back because another connection had their endpoints. Counted in the gates' own
	 * table; 0 in that of the ticket programs.
	 */
	__u64 kept_back;
};

_Static_assert(sizeof(struct usher_destination) == 20, "usher_destination");
_Static_assert(sizeof(struct usher_ticket_key) == 24, "usher_ticket_key");
_Static_assert(sizeof(struct usher_ticket) == 48, "usher_ticket");
_Static_assert(sizeof(struct usher_block_key) == 8, "usher_block_key");
_Static_assert(sizeof(struct usher_block) == 708, "usher_block");
_Static_assert(sizeof(struct usher_ticket_counters) == 160, "usher_ticket_counters");

_Static_assert(sizeof(struct usher_attempt) == 16, "usher_attempt");
_Static_assert(sizeof(struct usher_gate) == 48, "usher_gate");
_Static_assert(sizeof(struct usher_hold) == 48, "usher_hold");
_Static_assert(sizeof(struct usher_report) == 216, "usher_report");
_Static_assert(sizeof(struct usher_listed_key) == 16, "usher_listed_key");
_Static_assert(sizeof(struct usher_asker) == 8, "usher_asker");
_Static_assert(sizeof(struct usher_owner) == 8, "usher_owner");

#endif
