/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets that check_token has just read on this CPU. A part of admission.bpf.c and of
 * arriving.bpf.c.
 *
 * A token's entry is for one SYN, known by its sequence number. choose_queue sees no sequence
 * number; check_token sees it if it can read the packet. The kernel runs both for the same packet
 * on the same CPU, one soon after the other: check_token for each packet of a batch, then
 * choose_queue for each of them. So check_token notes the last packets of each CPU, and
 * choose_queue admits a token's entry only if the newest note about these endpoints permits it. At
 * LOCAL_IN (arriving.bpf.c) both run for one packet before the next.
 *
 * The rule fails closed. A packet that check_token did not see, or that another CPU processes
 * further (NFQUEUE, IPsec that is deciphered by a device, an interface without the filter), finds
 * no note. A packet that it could not read (fragments, IPsec, a routing header with segments left;
 * see syn.bpf.h) hides all older notes about its client. A RST hides the older notes about its
 * endpoints. A note is valid for a fraction of a second only.
 *
 * A note is no proof: it may be about another packet with the same endpoints a moment before. The
 * proof is in `establish`, which compares the sequence number that the kernel itself has taken. The
 * note prevents a stranger's handshake from beginning.
 */
#ifndef USHER_READING_BPF_H
#define USHER_READING_BPF_H

#include "entries.bpf.h"

/* More than a network driver passes on in one batch. A power of two. */
#define NOTES 32

/* Timer ticks after which a note is too old: a quarter of a second at 1000 Hz, two and a half at
 * 100 Hz. The time is long, because a virtual CPU may stop between the two programs. */
#define NOTE_TICKS 250

enum reading {
	/* Nothing that choose_queue would admit: a RST, or flags that make no sense. */
	READ_OTHER = 0,
	/* A SYN, with its number. */
	READ_SYN = 1,
	/* A later packet of a connection: the ACK that answers a SYN cookie is one. */
	READ_LATER = 2,
	/* An unread packet from this client, which may turn out to be TCP. */
	UNREAD = 3,
	/* Likewise, where the client's address could not be read either. */
	UNREAD_ANYONES = 4,
};

struct note {
	struct usher_connection connection;
	__be32 sequence;
	__u64 tick;
	enum reading reading;
	__u32 reserved;
};

struct notes {
	__u32 next;
	__u32 reserved;
	struct note last[NOTES];
};

/* Key: 0. Limit: NOTES per CPU. Full: the oldest is dropped, and its packet is refused. */
CPU_TABLE(notes, 1, struct notes);

static __always_inline void copy_connection(struct usher_connection *to,
					    const struct usher_connection *from)
{
	const __u32 *words = (const __u32 *)from;

#pragma unroll
	for (int i = 0; i < 9; i++)
		((__u32 *)to)[i] = words[i];
}

static __always_inline void take_note(const struct usher_connection *connection, __be32 sequence,
				      enum reading reading)
{
	__u32 zero = 0;
	struct notes *here = bpf_map_lookup_elem(&notes, &zero);
	struct note *note;

	if (!here)
		return;
	note = &here->last[here->next++ & (NOTES - 1)];
	copy_connection(&note->connection, connection);
	note->sequence = sequence;
	note->tick = bpf_jiffies64();
	note->reading = reading;
}

static __always_inline int same_ends(const struct usher_connection *left,
				     const struct usher_connection *right)
{
	const __u32 *l = (const __u32 *)left, *r = (const __u32 *)right;

	/* Compare ports first, because they differ most. */
	return l[8] == r[8] && equal_words(left->client_address, right->client_address) &&
	       equal_words(left->server_address, right->server_address);
}

struct search {
	const struct notes *here;
	struct usher_connection connection;
	__be32 sequence;
	enum reading found;
	__u32 reserved;
};

/* Looks at one note, from the newest on; 1 ends the search. For bpf_loop, because not every kernel
 * takes this loop as clang writes it. */
static long next_note(__u32 age, struct search *search)
{
	const struct note *note = &search->here->last[(search->here->next - 1 - age) & (NOTES - 1)];

	if (note->reading == UNREAD_ANYONES)
		return 1;
	if (note->reading == UNREAD)
		return equal_words(note->connection.client_address,
				   search->connection.client_address);
	if (!same_ends(&note->connection, &search->connection))
		return 0;
	if (bpf_jiffies64() - note->tick > NOTE_TICKS)
		return 1;
	search->sequence = note->sequence;
	search->found = note->reading;
	return 1;
}

/*
 * Whether the present packet may use the entry. `syn`: the SYN that the entry is for, if it is
 * known. A token's entry is for that SYN and its copies. A later packet answers a SYN cookie, and
 * any listener of the port would accept it. So it must come after the entry's own SYN, with the
 * number after that SYN's, which a late packet of another connection does not have. An announced
 * entry also admits packets that were not read.
 */
static __always_inline int is_in_hand(const struct usher_connection *connection, __u32 state,
				      __u32 by_token, __u64 syn)
{
	__u32 zero = 0;
	struct search search = {
		.here = bpf_map_lookup_elem(&notes, &zero),
		.found = READ_OTHER,
	};

	if (!search.here)
		return !by_token;
	copy_connection(&search.connection, connection);
	bpf_loop(NOTES, next_note, &search, 0);
	switch (search.found) {
	case READ_SYN:
		return !by_token || known_syn(search.sequence) == syn;
	case READ_LATER:
		return state == USHER_SYN_RECEIVED && syn &&
		       bpf_ntohl(search.sequence) == bpf_ntohl((__be32)syn) + 1;
	default:
		return !by_token;
	}
}

#endif
