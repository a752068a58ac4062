/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Drawing selects the element that a socket gets, if any.
 *
 * The kernel may give the memory of a deleted entry to another one while a program still reads it,
 * and a draw must not return another user's token. So a draw copies its data, looks ticket and
 * block up again, and is valid only if it finds the same ones; the number identifies a ticket.
 */
#ifndef USHER_TICKET_DRAWING_H
#define USHER_TICKET_DRAWING_H

#include <linux/errno.h>

#include "maps.h"

/* The number of retries of a draw whose ticket is replaced meanwhile. */
#define ATTEMPTS 2

static __always_inline struct usher_block_key block_of(__u32 ticket, __u32 position)
{
	struct usher_block_key key = {
		.ticket = ticket,
		.block = (position - 1) / USHER_TOKEN_BLOCK,
	};

	return key;
}

/* Copies an element of a ticket. Returns 0 if the element is missing. */
static __always_inline int copy_element(__u32 ticket, __u32 position,
					__u8 element[USHER_TOKEN_ELEMENT_SIZE])
{
	struct usher_block_key key = block_of(ticket, position);
	struct usher_block *block = bpf_map_lookup_elem(&blocks, &key);
	__u32 index = (position - 1) % USHER_TOKEN_BLOCK;

	if (!block || index >= block->count)
		return 0;
	for (int byte = 0; byte < USHER_TOKEN_ELEMENT_SIZE; byte++)
		element[byte] = block->elements[index][byte];
	/* The exchange changes nothing; it is a full memory barrier. */
	__sync_val_compare_and_swap(&block->count, 0, 0);
	return bpf_map_lookup_elem(&blocks, &key) == block;
}

/* Reports the position of the ticket of this mark to user space, once per block. */
static __always_inline void tell(struct usher_ticket *ticket, __u64 mark, __u32 position)
{
	struct usher_block_key key = block_of(mark >> 32, position);
	__u64 told = (mark & ~0xffffffffULL) | (__u64)(key.block + 1);

	if (mark >= told || __sync_val_compare_and_swap(&ticket->mark, mark, told) != mark)
		return;
	if (bpf_ringbuf_output(&wanted, &key, sizeof(key), 0)) {
		COUNT(untold);
		__sync_val_compare_and_swap(&ticket->mark, told, mark);
	}
}

/* Whether the ticket of this mark is still the one under `key`. */
static __always_inline int stands_under(const struct usher_ticket_key *key,
					const struct usher_ticket *ticket, __u64 mark)
{
	struct usher_ticket *found = bpf_map_lookup_elem(&tickets, key);

	/* Read by `ticket` and not by `found`, which the verifier of 6.1 takes for possibly null
	 * even if both are equal. */
	return found == ticket && ticket->mark >> 32 == mark >> 32;
}

/* Draws once. EAGAIN: the ticket was removed or replaced meanwhile. */
static __always_inline int draw_once(const struct usher_ticket_key *key, struct drawn *drawn)
{
	struct usher_ticket *ticket = bpf_map_lookup_elem(&tickets, key);
	__u32 position, slot;
	__u64 mark;

	if (!ticket)
		return -ENOENT;
	mark = *(volatile __u64 *)&ticket->mark;
	if (ticket->expires_ns <= bpf_ktime_get_boot_ns())
		return -EKEYEXPIRED;
	drawn->key[0] = ticket->key[0];
	drawn->key[1] = ticket->key[1];
	drawn->ticket = mark >> 32;
	slot = ticket->slot;
	drawn->slot[0] = slot >> 16;
	drawn->slot[1] = slot >> 8;
	drawn->slot[2] = slot;

	/* Does not advance if there is nothing to draw: repeated requests would otherwise wrap the
	 * position round, to spent elements. */
	position = *(volatile __u32 *)&ticket->next + 1;
	if (copy_element(mark >> 32, position, drawn->element)) {
		position = __sync_fetch_and_add(&ticket->next, 1) + 1;
		if (copy_element(mark >> 32, position, drawn->element)) {
			if (!stands_under(key, ticket, mark))
				return -EAGAIN;
			drawn->position = position;
			tell(ticket, mark, position);
			return 0;
		}
	}
	if (!stands_under(key, ticket, mark))
		return -EAGAIN;
	tell(ticket, mark, position);
	return -ESTALE;
}

/* Draws the next element of the ticket for the socket. Returns 0 or the error. */
static __always_inline int draw_for(struct bpf_sock *socket, const struct usher_ticket_key *key)
{
	struct drawn fresh = {}, *kept;
	int outcome = -EAGAIN;

	for (int attempt = 0; attempt < ATTEMPTS && outcome == -EAGAIN; attempt++)
		outcome = draw_once(key, &fresh);
	switch (outcome) {
	case 0:
		break;
	case -EKEYEXPIRED:
		return COUNTED(expired, outcome);
	case -ESTALE:
		return COUNTED(exhausted, outcome);
	default:
		return COUNTED(without_ticket, -ENOENT);
	}
	fresh.uid = key->uid;
	fresh.server = key->server;
	kept = bpf_sk_storage_get(&drawn, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!kept)
		return -ENOMEM;
	/* Replaces the socket's earlier token, if any. */
	*kept = fresh;
	return COUNTED(drawn, 0);
}

#endif
