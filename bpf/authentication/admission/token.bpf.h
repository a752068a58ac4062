/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tokens: a SYN that proves by itself that its connection belongs to a session (docs/PROTOCOL.md,
 * "Token in the SYN"; docs/adr/0016). A part of admission.bpf.c and of arriving.bpf.c: the kernel
 * runs the check_token of one of them.
 *
 * check_token sees the packet before choose_queue does. For a valid token it makes the entry that
 * the keeper otherwise makes, ANNOUNCED; choose_queue then decides as for any entry. check_token
 * never drops or changes a packet: without a valid token there is no entry, and choose_queue
 * refuses.
 *
 * Two SYNs may carry the same element at the same time, and other SYNs of the session may move its
 * tip meanwhile. So the chain is checked against a copy of the tip, without a lock, and the result
 * is committed under the entry's lock, after another look at the spent elements. The element is
 * spent before the admission is made, so that no two connections share one.
 *
 * An entry is for one SYN and its copies, which have its sequence number: for the one that had the
 * token, or for the first one between the endpoints that the keeper has announced. Another SYN
 * between the same endpoints comes from another socket, which has taken the port of an abandoned
 * connection. It ends the entry, and replaces it if its own token is valid. So check_token looks at
 * every SYN to a service. A SYN that it cannot read leaves the entry as it is, and choose_queue
 * refuses that SYN at a token's entry (reading.bpf.h).
 *
 * A session may be closed meanwhile: user space closes its slot under the lock, then looks for its
 * admissions. We make the admission, then take the lock and check that the slot still belongs to
 * the session. The side that takes the lock second sees what the other one did: either user space
 * finds the admission, or we remove it again.
 *
 * Kernel 6.1 or later (spin locks 5.1, bpf_loop 5.17).
 */
#ifndef USHER_TOKEN_BPF_H
#define USHER_TOKEN_BPF_H

#include "entries.bpf.h"
#include "share.bpf.h"
#include "syn.bpf.h"
#include "usher_sha256.h"
#include "usher_token.h"

/* The time for which a token admits its SYN: until the fourth retransmission, after 15 s. */
#define TOKEN_ADMISSION_NS (16ULL * 1000 * 1000 * 1000)

/*
 * The data that checks tokens. Key: slot.
 * Limit: set before loading. Full: user space gets the error, the session announces its
 * connections.
 */
HASH_TABLE(tokens, 1, __u32, struct usher_token_session);

/*
 * The addresses from which a host's connections may come. Value: unused.
 * Limit: 65,536. Full: user space gets the error; connections from other addresses are announced.
 */
SPARSE_TABLE(client_addresses, 65536, struct usher_client_address, __u8);

/* This is a function of its own for its stack, as are others below. */
static __attribute__((noinline)) int comes_from(const struct usher_connection *connection,
						__u64 host)
{
	struct usher_client_address address = { .host = host };

	__builtin_memcpy(address.address, connection->client_address, sizeof(address.address));
	return bpf_map_lookup_elem(&client_addresses, &address) != NULL;
}

static __attribute__((noinline)) int has_place(const struct usher_target *target)
{
	__s64 *count = outstanding_of(target);

	return count && *(volatile __s64 *)count < USHER_TOKEN_SHARE;
}

/* Removes the mask; false if the option was not made for this connection with this key. A function
 * of its own for its stack. */
static __attribute__((noinline)) int unmask(const struct usher_connection *connection,
					    const struct usher_token_session *session,
					    struct usher_token_option *option)
{
	union {
		struct usher_token_message fields;
		__u64 words[5];
	} message;
	__u64 key[2], mask[2];

	message.fields.connection = *connection;
	__builtin_memcpy(message.fields.slot, option->slot, sizeof(option->slot));
	message.fields.position = option->position;
	__builtin_memcpy(key, session->key, sizeof(key));
	usher_token_mask(key, message.words, mask);
#pragma unroll
	for (int i = 0; i < USHER_TOKEN_ELEMENT_SIZE + 1; i++)
		option->masked[i] ^= mask[i / 8] >> (8 * (i % 8));
	return !option->masked[USHER_TOKEN_ELEMENT_SIZE];
}

/* The state of walking down a hash chain. It is on the stack, which no other CPU and no interrupt
 * shares, and which has room for it. */
struct descent {
	struct usher_token_block block;
	__u32 position; /* of block.value */
};

static long descend(__u32 index, struct descent *descent)
{
	__be32 below = bpf_htonl(--descent->position);

	__builtin_memcpy(descent->block.index, &below, sizeof(below));
	usher_token_step(&descent->block);
	return 0;
}

/* A snapshot of a session. */
struct tip {
	__u64 window[2];
	__u8 value[16];
	__u8 session[USHER_SESSION_ID_SIZE];
	struct usher_target target;
	__u32 position;
	__u32 length;
	__u64 host;
};

/* Whether `upper`, claimed to be at position `upper_position`, hashes down to `lower`, `steps`
 * below. Its time depends only on the position, which is in the clear; the comparison has no branch
 * until all bytes are compared. */
static __attribute__((noinline)) int hashes_down(const struct usher_token_session *session,
						 __u32 upper_position, __u32 steps,
						 const __u8 upper[USHER_TOKEN_ELEMENT_SIZE],
						 const __u8 lower[USHER_TOKEN_ELEMENT_SIZE])
{
	struct descent descent = {
		.block.domain = { 'u', 's', 'h', 'e', 'r', '-', 't', 'o', 'k', 'e', 'n', '-', '1' },
		.position = upper_position,
	};
	__u8 differences = 0;

	__builtin_memcpy(descent.block.salt, session->salt, USHER_TOKEN_KEY_SIZE);
	__builtin_memcpy(descent.block.value, upper, USHER_TOKEN_ELEMENT_SIZE);
	bpf_loop(steps, descend, &descent, 0);
#pragma unroll
	for (int i = 0; i < USHER_TOKEN_ELEMENT_SIZE; i++)
		differences |= descent.block.value[i] ^ lower[i];
	return !differences;
}

/* Whether the position `behind` the tip was accepted. */
static __always_inline int is_spent(const __u64 window[2], __u32 behind)
{
	return (window[behind >= 64] >> (behind & 63)) & 1;
}

/* Moves the window up by `ahead`, 1 to 128 positions, of which the last is accepted. */
static __always_inline void shift(__u64 window[2], __u32 ahead)
{
	__u64 low = window[0], high = window[1];

	if (ahead >= 128) {
		low = 0;
		high = 0;
	} else if (ahead >= 64) {
		high = low << (ahead - 64);
		low = 0;
	} else {
		high = high << ahead | low >> (64 - ahead);
		low <<= ahead;
	}
	window[0] = low | 1;
	window[1] = high;
}

/* Whether the slot is open and still belongs to the session. With the lock held. */
static __always_inline int is_of(const struct usher_token_session *session, const __u8 id[16])
{
	return session->length && equal_words(session->session, id);
}

#ifdef USHER_PAUSE
/* For a test of user space acting between two steps: waits until the slot is closed, at most for
 * some hundred milliseconds.
 */
struct paused {
	const struct usher_token_session *session;
};

static long is_closed(__u32 index, struct paused *paused)
{
	return !*(const volatile __u32 *)&paused->session->length;
}

static long pass(__u32 index, struct paused *paused)
{
	bpf_loop(1 << 20, is_closed, paused, 0);
	return is_closed(index, paused);
}

#define PAUSE(at)                                                                                  \
	do {                                                                                       \
		struct paused paused = { .session = (at) };                                        \
		bpf_loop(1 << 7, pass, &paused, 0);                                                \
	} while (0)
#else
#define PAUSE(at)
#endif

enum verdict { SPENT, WITHDRAWN, REPLAYED };

/* Spends the element at `position` with the value `value`, unless it is already spent. */
static __always_inline enum verdict spend(struct usher_token_session *session, const __u8 id[16],
					  __u32 position,
					  const __u8 value[USHER_TOKEN_ELEMENT_SIZE])
{
	enum verdict verdict = REPLAYED;

	bpf_spin_lock(&session->lock);
	if (!is_of(session, id)) {
		verdict = WITHDRAWN;
	} else if (position > session->tip) {
		shift(session->window, position - session->tip);
		session->tip = position;
		__builtin_memcpy(session->value, value, USHER_TOKEN_ELEMENT_SIZE);
		verdict = SPENT;
	} else {
		__u32 behind = session->tip - position;

		/* Other SYNs may have moved the tip so far that it is no longer known. */
		if (behind <= USHER_TOKENS_BEHIND && !is_spent(session->window, behind)) {
			session->window[behind >= 64] |= 1ULL << (behind & 63);
			verdict = SPENT;
		}
	}
	bpf_spin_unlock(&session->lock);
	return verdict;
}

/*
 * Withdraws the admission made with `mark`, because its session was closed. If another CPU has
 * already admitted a copy of the SYN by it, the connection is reported as one without an entry.
 */
static __always_inline void take_back(const struct usher_connection *connection, __u64 mark)
{
	struct usher_admission *entry = bpf_map_lookup_elem(&admissions, connection);

	if (!entry)
		return;
	if (exchange(entry, mark, USHER_REMOVED) ||
	    exchange(entry, with_state(mark, USHER_SYN_RECEIVED), USHER_REMOVED))
		bpf_map_delete_elem(&admissions, connection);
	else if (*(volatile __u64 *)&entry->mark == with_state(mark, USHER_ESTABLISHED))
		bpf_ringbuf_output(&untracked, (void *)connection, sizeof(*connection), 0);
}

/*
 * Removes the entry between these endpoints because another socket's SYN has come: the socket of
 * the entry's connection is gone. Returns 1 if there is no entry any more. An established
 * connection stays: its socket answers the SYN.
 */
static __always_inline int end_older(const struct usher_connection *connection)
{
	/* The entry of an announcement may be received and withdrawn between read and exchange. */
	for (int attempt = 0; attempt < 3; attempt++) {
		struct usher_admission *entry = bpf_map_lookup_elem(&admissions, connection);
		__u64 mark;

		if (!entry)
			return 1;
		mark = *(volatile __u64 *)&entry->mark;
		if (state_of(mark) == USHER_ESTABLISHED || state_of(mark) == USHER_REMOVED)
			return 0;
		if (!exchange(entry, mark, USHER_REMOVED))
			continue;
		bpf_map_delete_elem(&admissions, connection);
		COUNT(token_replaced);
		return 1;
	}
	return 0;
}

/* Makes the admission of a connection whose token is spent, and replaces an older one. A function
 * of its own for its stack. */
static __attribute__((noinline)) int admit(const struct usher_connection *connection, __u32 slot,
					   __be32 sequence, const struct tip *tip)
{
	/* Boot time numbers announcements (usher_shared.h). Another CPU may read the same time for
	 * another connection; looking the key up again tells those apart. */
	__u64 now = bpf_ktime_get_boot_ns();
	struct usher_admission fresh = {
		.mark = now << USHER_STATE_BITS | USHER_ANNOUNCED,
		.expires_ns = now + TOKEN_ADMISSION_NS,
		.target = tip->target,
		.syn = known_syn(sequence),
		.by_token = 1,
	};
	struct usher_token_session *session;
	int stays = 0;
	/* Up to 6.3 hash tables return an int without sign extension into the upper half of the
	 * register: as a long it would equal no error number. */
	int failed;

	__builtin_memcpy(fresh.session, tip->session, sizeof(fresh.session));
	failed = bpf_map_update_elem(&admissions, connection, &fresh, BPF_NOEXIST);
	if (failed == -EEXIST && end_older(connection))
		failed = bpf_map_update_elem(&admissions, connection, &fresh, BPF_NOEXIST);
	if (failed == -EEXIST)
		return COUNTED(token_repeated, 0);
	if (failed)
		return COUNTED(token_table_full, 0);
	count_outstanding(&tip->target, 1);
	session = bpf_map_lookup_elem(&tokens, &slot);
	if (session) {
		bpf_spin_lock(&session->lock);
		stays = is_of(session, tip->session);
		bpf_spin_unlock(&session->lock);
	}
	if (stays)
		return COUNTED(token_accepted, 1);
	COUNT(token_withdrawn);
	take_back(connection, fresh.mark);
	return 0;
}

/*
 * The position of a token: the one with its low byte among the 127 before the tip, the tip, and the
 * 128 after it. 0 if the chain has no such position.
 */
static __always_inline __u32 meant_position(const struct tip *tip, __u8 low)
{
	__u32 ahead = (__u8)(low - (__u8)tip->position), position;

	if (ahead <= USHER_TOKENS_AHEAD)
		position = tip->position + ahead;
	else if (tip->position >= 256 - ahead)
		position = tip->position - (256 - ahead);
	else
		return 0;
	return position <= tip->length ? position : 0;
}

/*
 * Claims the entry for this SYN if it is unclaimed, and ends it if another SYN has claimed it. In
 * SYN_RECEIVED the handshake under way may still complete; no other SYN is admitted.
 *
 * If the kernel gives the entry's memory to another announcement in between, that announcement is
 * claimed for a SYN that never comes, and its own SYN is refused.
 */
static __always_inline void claim(struct usher_admission *entry,
				  const struct usher_connection *connection, __be32 sequence)
{
	__u64 mark = *(volatile __u64 *)&entry->mark;
	/* Read after the mark: if exchange() succeeds, it belongs to this mark's announcement. */
	__u64 syn = *(volatile __u64 *)&entry->syn;

	if (!syn)
		syn = __sync_val_compare_and_swap(&entry->syn, 0, known_syn(sequence));
	if (!syn || syn == known_syn(sequence))
		return;
	if (state_of(mark) == USHER_ANNOUNCED && exchange(entry, mark, USHER_REMOVED)) {
		COUNT(token_other_syn);
		bpf_map_delete_elem(&admissions, connection);
		return;
	}
	/* The entry was ANNOUNCED a moment ago, and may be SYN_RECEIVED by now. */
	mark = with_state(mark, USHER_SYN_RECEIVED);
	if (exchange(entry, mark, USHER_WITHDRAWN))
		COUNT(token_other_syn);
}

/* Whether the session has announced the connection on the control channel, and the announcement
 * stands. Such a connection spends no token. */
static __always_inline int is_announced_by(struct usher_admission *entry, const __u8 session[16])
{
	__u32 state = state_of(*(volatile __u64 *)&entry->mark);

	return !entry->by_token && equal_words(entry->session, session) &&
	       (state == USHER_ANNOUNCED || state == USHER_SYN_RECEIVED);
}

/*
 * Checks and spends the token of a SYN that is not a copy, and admits its connection. `older`: the
 * entry between its endpoints, or NULL. Returns 1 if the connection is admitted.
 */
static __always_inline int check(const struct usher_connection *connection, struct syn *syn,
				 struct usher_admission *older)
{
	struct usher_token_option *option = &syn->option;
	__u32 slot = option->slot[0] << 16 | option->slot[1] << 8 | option->slot[2], position;
	struct usher_token_session *session = bpf_map_lookup_elem(&tokens, &slot);
	__u64 expires_ns;
	struct tip tip;
	int good;

	if (!session)
		return COUNTED(token_unknown, 0);
	bpf_spin_lock(&session->lock);
	tip.position = session->tip;
	tip.length = session->length;
	tip.window[0] = session->window[0];
	tip.window[1] = session->window[1];
	__builtin_memcpy(tip.value, session->value, sizeof(tip.value));
	__builtin_memcpy(tip.session, session->session, sizeof(tip.session));
	tip.target.service = session->service;
	tip.target.uid = session->uid;
	tip.host = session->host;
	expires_ns = session->expires_ns;
	bpf_spin_unlock(&session->lock);

	/* Key and salt are read without the lock: spend() notices if the slot is closed or opened
	 * meanwhile. */
	if (!tip.length)
		return COUNTED(token_unknown, 0);
	if (older && is_announced_by(older, tip.session))
		return COUNTED(token_repeated, 0);
	if (tip.target.service != syn->service)
		return COUNTED(token_other_service, 0);
	if (expires_ns <= bpf_ktime_get_boot_ns())
		return COUNTED(token_expired, 0);
	if (!comes_from(connection, tip.host))
		return COUNTED(token_other_address, 0);
	if (!has_place(&tip.target))
		return COUNTED(token_overloaded, 0);
	if (!unmask(connection, session, option))
		return COUNTED(token_foreign, 0);
	position = meant_position(&tip, option->position);
	if (!position)
		return COUNTED(token_out_of_range, 0);
	if (position > tip.position) {
		good = hashes_down(session, position, position - tip.position, option->masked,
				   tip.value);
	} else if (is_spent(tip.window, tip.position - position)) {
		return COUNTED(token_replayed, 0);
	} else {
		good = hashes_down(session, tip.position, tip.position - position, tip.value,
				   option->masked);
	}
	if (!good)
		return COUNTED(token_mismatch, 0);
	switch (spend(session, tip.session, position, option->masked)) {
	case SPENT:
		break;
	case WITHDRAWN:
		return COUNTED(token_withdrawn, 0);
	default:
		return COUNTED(token_replayed, 0);
	}
	PAUSE(session);
	return admit(connection, slot, syn->sequence, &tip);
}

/* Reads a packet: notes it, and checks the token of a SYN to a service. */
static __always_inline void read_token(PACKET *packet)
{
	struct usher_connection connection __aligned = {};
	struct usher_admission *entry;
	struct syn syn;

	if (!read_syn(packet, &connection, &syn))
		return;
	entry = bpf_map_lookup_elem(&admissions, &connection);
	if (!entry) {
		if (syn.has_token)
			check(&connection, &syn, NULL);
		return;
	}
	if (*(volatile __u64 *)&entry->syn == known_syn(syn.sequence) ||
	    state_of(*(volatile __u64 *)&entry->mark) == USHER_ESTABLISHED) {
		if (syn.has_token)
			COUNT(token_repeated);
		return;
	}
	if (!syn.has_token || !check(&connection, &syn, entry))
		claim(entry, &connection, syn.sequence);
}

#endif
