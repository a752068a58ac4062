/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables and common definitions of the ticket programs. */
#ifndef USHER_TICKET_MAPS_H
#define USHER_TICKET_MAPS_H

#include "gates.h"

/*
 * Tickets. Key: user and server. Limit: set before loading. Full: user space gets the error, and
 * the user's connections carry no token.
 */
HASH_TABLE(tickets, 1, struct usher_ticket_key, struct usher_ticket);

/*
 * Elements that may be drawn. Key: number of the ticket, and block of its chain; each is filled
 * once. Limit: set before loading; a block takes memory when it is filled. Full: user space gets
 * the error, and the ticket ends at the missing block. The kernel does not wipe the memory of
 * removed elements.
 */
SPARSE_TABLE(blocks, 1, struct usher_block_key, struct usher_block);

/* The token that a socket's SYN will carry. */
struct drawn {
	__u64 key[2];
	__u32 ticket;
	__u32 uid; /* its user */
	struct usher_destination server;
	__u8 begun; /* whether the socket has begun to connect; no other one may use the token */
	__u8 asked; /* the callbacks that were not set before */
	__u8 written; /* how often, up to 255 */
	__u8 reserved;
	__u8 slot[3];
	__u8 position;
	__u8 element[USHER_TOKEN_ELEMENT_SIZE + 1]; /* the last byte is 0 */
};

/* Key: a socket, whose end removes the entry. Limit: the memory for options of the socket. Full:
 * the draw is refused (ENOMEM). */
SOCKET_TABLE(drawn, struct drawn);

/*
 * Tickets that have reached a block not reported to user space (struct usher_block_key): that block
 * and the next must be filled. Limit: 4,096. Full: counted, and reported at the next draw.
 */
RING_BUFFER(wanted, 64 * 1024);

/*
 * The destinations at which a plain connect() is authenticated, with the list of programs; 0: all
 * programs. Only listed programs draw tokens there. Limit: set before loading. Full: user space
 * gets the error, and puts nothing in force that would need more.
 */
HASH_TABLE(plain, 1, struct usher_destination, __u32);

/*
 * Listed programs. The value is unused. Limit: set before loading. Full: as `plain`.
 */
HASH_TABLE(listed, 1, struct usher_listed_key, __u32);

/*
 * The program that requests an announcement of a socket. Its identity may come to mean another
 * file: once the program's file is deleted, a listed one may be loaded into the same memory. Key: a
 * socket, whose end removes the entry. Limit: the memory for options of the socket. Full: the
 * process gets ENOMEM, and does not count as a listed program.
 */
SOCKET_TABLE(askers, struct usher_asker);

/*
 * Reports about plain connections (struct usher_report). Limit: about 2,300. Full: counted; a held
 * SYN is reported when the kernel sends it again, and user space notices an end by a time limit.
 */
RING_BUFFER(reports, 512 * 1024);

/*
 * Connections whose SYN was reported with a copy. Key: the endpoints; value: the mark of the
 * connection's socket. Sockets in `senders` that have this mark may send the copy. User space has
 * no descriptor of this table. Limit: as `gates`. Full: the oldest entry makes room, and the kernel
 * itself sends that SYN.
 */
USHER_MAP(told, LRU_HASH, 0, 1, struct usher_connection, __u32);

/* Raw sockets that may send only reported SYNs. Key: a socket, whose end removes the entry. User
 * space keeps no descriptor of the table once they are entered. */
SOCKET_TABLE(senders, __u32);

/*
 * The addresses at which the client proxy listens (owners.h). The value is unused. Limit: set
 * before loading. Full: user space gets the error, and connections to the rest have no noted owner.
 */
HASH_TABLE(relayed, 1, struct usher_destination, __u32);

/*
 * Owners of connections that are being made to an address in `relayed`. Key: the endpoints. Limit:
 * as `gates`. Full: the oldest entry makes room, and that connection has no noted owner.
 */
USHER_MAP(connecting_owners, LRU_HASH, 0, 1, struct usher_connection, struct usher_owner);

/* The owner of the other end. Key: the proxy's socket, whose end removes the entry. Limit: the
 * memory for options of the socket. Full: the connection has no noted owner. */
SOCKET_TABLE(owners, struct usher_owner);

/* Counters of events, one copy per CPU. Key: 0. */
CPU_TABLE(counters, 1, struct usher_ticket_counters);

/* Atomic, because a packet's program may interrupt a system call's. */
#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_ticket_counters *here = first_of(&counters);                          \
		if (here)                                                                          \
			__sync_fetch_and_add(&here->what, 1);                                      \
	} while (0)

#endif
