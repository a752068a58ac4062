/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the kernel programs and user space share, written once here for C and mirrored in
 * crates/usher-kernel/src/admission/layout.rs, whose tests compare every size and place.
 * Numbers are in the machine's order, addresses and ports in the network's.
 */
#ifndef USHER_SHARED_H
#define USHER_SHARED_H

#include <linux/types.h>

/* The two ends of a TCP connection, seen from the server; IPv4 as ::ffff:a.b.c.d. */
struct usher_connection {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
};

/* Whose queue. */
struct usher_queue {
	__u32 service;
	__u32 uid;
};

/*
 * What an announced connection is allowed to do next. States only go forward, each step one
 * compare-and-swap, so that the programs and user space never lose each other's step.
 */
enum usher_state {
	USHER_ANNOUNCED = 1, /* a SYN may come until the deadline */
	USHER_SYN_RECEIVED = 2, /* the handshake is under way */
	USHER_WITHDRAWN = 3, /* likewise, and no further SYN may come */
	USHER_ESTABLISHED = 4, /* lives until TCP_CLOSE */
	USHER_DEAD = 5, /* about to be deleted */
};

struct usher_admission {
	__u8 session[16];
	struct usher_queue queue;
	__u32 state;
	__u32 reserved;
	__u64 deadline; /* CLOCK_MONOTONIC, ns; until established */
	__u64 established; /* CLOCK_MONOTONIC, ns; 0 before */
};

struct usher_session_id {
	__u8 bytes[16];
};

/* A session; written by user space only, kept here so that it outlives the keeper. */
struct usher_session {
	__u32 uid;
	__u32 service;
	__u8 user[32]; /* zero padded */
	__u8 host[64]; /* zero padded */
	__u8 tip[16];
	__u32 position;
	__u32 chain_length;
	__u8 salt[16];
	__u64 opened; /* seconds since 1970 */
	__u64 expires; /* seconds since 1970 */
	__u64 ended; /* seconds since 1970; 0: live */
	__u32 reason; /* refusal code, when ended */
	__u32 reserved;
};

/* What happened, counted since the tables were made. */
enum usher_counter {
	USHER_ADMITTED,
	USHER_REFUSED_UNANNOUNCED,
	USHER_REFUSED_LATE,
	USHER_REFUSED_STATE,
	USHER_REFUSED_NO_LISTENER,
	USHER_COUNT_ESTABLISHED,
	USHER_COUNT_CLOSED,
	USHER_UNTRACKED,
	USHER_COUNTERS,
};

/* Argument of the step program. */
struct usher_step {
	struct usher_connection connection;
	__u8 session[16]; /* USHER_STEP_WITHDRAW: only this session's entry */
	__u32 step;
};

enum usher_step_kind {
	USHER_STEP_WITHDRAW = 1, /* the client has given up, or has connected */
	USHER_STEP_EXPIRE = 2, /* the deadline may have passed */
	USHER_STEP_FORGET = 3, /* whatever the deadline: the session has ended */
};

/* How long a handshake may take: a SYN-ACK is repeated for 63 s (tcp_synack_retries 5). */
#define USHER_HANDSHAKE_NS (70ULL * 1000 * 1000 * 1000)

#endif
