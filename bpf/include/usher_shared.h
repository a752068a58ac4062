/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the kernel programs and user space. The Rust side is generated from this header.
 * USHER_LAYOUT_VERSION goes up with every change of a size, an offset or a meaning, because the
 * maps outlive the keeper.
 */
#ifndef USHER_SHARED_H
#define USHER_SHARED_H

#include <linux/types.h>
#include <linux/bpf.h>

#define USHER_LAYOUT_VERSION 8

/*
 * Limit of connections of one user at one service that tokens have admitted and that are not yet
 * established.
 */
#define USHER_TOKEN_SHARE 4096

#define USHER_SESSION_ID_SIZE 16
#define USHER_USER_NAME_SIZE 32
#define USHER_HOST_NAME_SIZE 64

/*
 * The time for which an entry is kept after its expiry once its SYN has come: longer than the
 * kernel keeps answering one SYN (63 s with the default net.ipv4.tcp_synack_retries).
 */
#define USHER_HANDSHAKE_NS (70ULL * 1000 * 1000 * 1000)

/*
 * The two endpoints of a connection: IPv4 addresses are written as ::ffff:a.b.c.d, ports in network
 * byte order. The same 36 bytes as usher_proto::ConnectionTuple::encode.
 */
struct usher_connection {
	__u8 client_address[16];
	__u8 server_address[16];
	__be16 client_port;
	__be16 server_port;
};

/* The service and user of an admitted connection. */
struct usher_target {
	__u32 service;
	__u32 uid;
};

/* The life of an admission entry; see admission.bpf.c. */
enum usher_admission_state {
	USHER_ANNOUNCED = 1,
	USHER_SYN_RECEIVED = 2,
	USHER_ESTABLISHED = 3,
	USHER_WITHDRAWN = 4,
	USHER_REMOVED = 5,
};

/*
 * The low bits of `mark` are the state. The others are the number of the announcement, which is
 * never reused. So one compare-and-exchange changes the state of exactly the intended announcement.
 */
#define USHER_STATE_BITS 8
#define USHER_STATE_MASK ((1ULL << USHER_STATE_BITS) - 1)

struct usher_admission {
	__u64 mark;
	__u64 expires_ns; /* boot time; no SYN is admitted from then on */
	__u64 established_ns; /* boot time; 0 before */
	struct usher_target target;
	__u8 session[USHER_SESSION_ID_SIZE];
	__u64 syn; /* the SYN it is for, once the filter has read one; 0: any */
	__u32 by_token; /* 1: made for a SYN's token */
	__u32 reserved; /* 0 */
};

/*
 * In usher_admission.syn: the SYN is known, by its sequence number in the low 32 bits, which its
 * copies repeat.
 */
#define USHER_SYN_KNOWN (1ULL << 32)

/* An address from which a host's connections may come, by the keeper's number for the host. */
struct usher_client_address {
	__u64 host;
	__u8 address[16];
};

struct usher_session_id {
	__u8 bytes[USHER_SESSION_ID_SIZE];
};

/*
 * A session. The table belongs to user space; it is in the kernel so that it outlives the keeper.
 */
struct usher_session {
	__u32 uid;
	__u32 service;
	__u32 chain_position;
	__u32 chain_length;
	__u64 opened; /* seconds since 1970 */
	__u64 expires; /* seconds since 1970 */
	__u8 chain_value[16];
	__u8 chain_salt[16];
	__u8 key_fingerprint[32]; /* SHA-256 of the key that signed */
	__u8 user[USHER_USER_NAME_SIZE]; /* padded with zeros */
	__u8 host[USHER_HOST_NAME_SIZE]; /* padded with zeros */
	__u64 ended; /* seconds since 1970, 0 while the session lives */
	__u16 reason; /* refusal code, once ended */
	__u8 end_recorded; /* 1: the log has recorded this end */
	__u8 reserved;
	__u8 token_anchor[11];
	__u8 certified; /* 1: the table of certificates has an entry for it */
	__u64 host_number; /* the number of its host's identity */
};

/*
 * The certificate that makes a session's key the user's. Belongs to user space, like the session.
 */
struct usher_certificate {
	__u8 authority[32]; /* SHA-256 of the authority's key */
	__u8 authority_sha1[20];
	__u8 key_sha1[20]; /* of the certified key */
	__u8 key_id[32]; /* SHA-256 of the authority's name for the certificate */
	__u64 serial; /* the authority's number for it */
	__u64 valid_before; /* seconds since 1970 */
	__u8 principals[512]; /* commas between them, padded with zeros */
};

/*
 * The values that check a session's tokens. Key: its slot. An entry is never deleted: it is closed
 * and later opened for another session, both under its lock. So a program's reference stays with
 * the slot, and comparing `session` under the lock tells which session holds it.
 */
struct usher_token_session {
	struct bpf_spin_lock lock;
	__u32 tip; /* the highest position accepted, 0 at first */
	__u32 service;
	__u32 uid;
	__u32 length; /* the chain's length; 0: closed */
	__u32 reserved;
	__u64 window[2]; /* bit i: tip - i was accepted; the first word holds the bits 0 to 63 */
	__u64 host; /* the host from whose addresses its connections come */
	__u64 expires_ns; /* boot time; if closed: when the slot may be opened again */
	__u8 value[16]; /* t[tip], padded with zeros */
	__u8 salt[16];
	__u8 key[16];
	__u8 session[USHER_SESSION_ID_SIZE];
};

/* Counters of the programs since the tables were made. */
struct usher_counters {
	/* Admitted SYNs (and ACKs to SYN cookies). */
	__u64 admitted;
	/* SYNs of connections that were not announced. */
	__u64 refused_unannounced;
	/* SYNs that came after the announcement had expired. */
	__u64 refused_late;
	/*
	 * SYNs of connections that were withdrawn or established, or announced for another service.
	 */
	__u64 refused_state;
	/* SYNs whose user has no listener. */
	__u64 refused_no_listener;
	/* Announced connections whose handshake completed. */
	__u64 established;
	/* Announced connections that closed. */
	__u64 closed;
	/* Connections to a service that were not announced. */
	__u64 untracked;
	/* SYNs admitted for their token. */
	__u64 token_accepted;
	/*
	 * SYNs with a token whose connection already had an entry: retransmissions, and connections
	 * announced on the control channel.
	 */
	__u64 token_repeated;
	/* SYNs with a token of a slot that is not open. */
	__u64 token_unknown;
	/* SYNs with a token of a session at another service. */
	__u64 token_other_service;
	/* SYNs with a token of a session that has expired. */
	__u64 token_expired;
	/* SYNs with a token that was not made for this connection with the key of its slot. */
	__u64 token_foreign;
	/* SYNs with a token whose position the chain does not have. */
	__u64 token_out_of_range;
	/* SYNs with a token that was used before. */
	__u64 token_replayed;
	/*
	 * SYNs with a token that differs from the chain's at its position, or is too far from the
	 * newest.
	 */
	__u64 token_mismatch;
	/* SYNs with a valid token for which the table of connections had no room. */
	__u64 token_table_full;
	/* SYNs with a valid token whose session was closed during the check. */
	__u64 token_withdrawn;
	/* SYNs with a token from an address that does not belong to the session's host. */
	__u64 token_other_address;
	/* SYNs with a token of a user whose share of connections that have not come is used up. */
	__u64 token_overloaded;
	/* Entries that ended because another SYN came between the same endpoints. */
	__u64 token_other_syn;
	/*
	 * SYNs refused for a token's entry because the filter at the interface had not identified
	 * them as the token's own.
	 */
	__u64 refused_unread;
	/* Entries replaced by a valid token of another connection between the same endpoints. */
	__u64 token_replaced;
};

/* The reason for which user space has the `remove` program remove one entry. */
enum usher_removal_reason {
	/* The session withdraws its announcement. */
	USHER_WITHDRAW = 1,
	/* The entry has expired; the session is not compared. */
	USHER_EXPIRE = 2,
	/*
	 * The connection must no longer be established by this entry; the session is not compared.
	 * An established connection stays.
	 */
	USHER_FORGET = 3,
};

struct usher_removal {
	struct usher_connection connection;
	__u32 reason;
	__u8 session[USHER_SESSION_ID_SIZE];
};

_Static_assert(sizeof(struct usher_connection) == 36, "usher_connection");
_Static_assert(sizeof(struct usher_session_id) == 16, "usher_session_id");
_Static_assert(sizeof(struct usher_target) == 8, "usher_target");
_Static_assert(sizeof(struct usher_admission) == 64, "usher_admission");
_Static_assert(sizeof(struct usher_client_address) == 24, "usher_client_address");
_Static_assert(sizeof(struct usher_session) == 224, "usher_session");
_Static_assert(sizeof(struct usher_certificate) == 632, "usher_certificate");
_Static_assert(sizeof(struct usher_token_session) == 120, "usher_token_session");
_Static_assert(sizeof(struct usher_counters) == 192, "usher_counters");
_Static_assert(sizeof(struct usher_removal) == 56, "usher_removal");

#endif
