/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Remembers what modules have permitted, so that most accesses of a process with a label cost two
 * look-ups of labels and one of this table.
 *
 * Only of modules that decide by labels: their permissions depend on their elements of the two
 * labels, the entry point, and the parts of the request that usher_mac_policy.h names. All of that
 * is in one word, so a word that is found was permitted in exactly this case. Words are read and
 * written whole, by all processors. Nothing ever has to be forgotten: the number of an element is
 * given once and means the same for ever, the module has no settings, and a process with elements
 * of former modules is exempt. Refusals are not remembered, because each of them is counted and
 * reported.
 *
 * Bits of a word, from the lowest: 20 of the number of the object's element, 20 of that of the
 * process, 11 of the parts of the request, 8 of the entry point, and a one. Elements with larger
 * numbers, such as UNKNOWN, are not remembered.
 */
#ifndef USHER_MAC_REMEMBERED_H
#define USHER_MAC_REMEMBERED_H

#include "labels.h"

#define NUMBER_BITS 20
#define PARTS_SHIFT 40
#define POINT_SHIFT 51

_Static_assert(MAC_POINTS <= 256, "entry points");

#define REMEMBERED_BITS 12

/* Key: of a mix of the word; value: the word, or 0. Limit: 4,096. Full: a word takes the place of
 * another one, about which the module is asked again. */
ARRAY_TABLE(remembered, 1 << REMEMBERED_BITS, __u64);

/* Whether accesses at this entry point are remembered. Programs at others leave the table out: some
 * of their stacks have no room. */
static __always_inline int has_remembered(__u32 point)
{
	switch (point) {
	case MAC_POINT_inode_permission:
	case MAC_POINT_file_open:
	case MAC_POINT_file_permission:
	case MAC_POINT_inode_getattr:
	case MAC_POINT_mmap_file:
	case MAC_POINT_socket_sendmsg:
	case MAC_POINT_socket_recvmsg:
	case MAC_POINT_socket_deliver:
	case MAC_POINT_interface_transmit:
		return 1;
	}
	return 0;
}

/* The word of an access without the numbers. Never 0. */
static __always_inline __u64 access_at(__u32 point, __u64 parts)
{
	return 1ULL << 63 | (__u64)point << POINT_SHIFT | parts << PARTS_SHIFT;
}

/* The word of an access, by the numbers of a module's elements; 0: it is not remembered. */
static __always_inline __u64 word_of(__u64 access, __u64 own, __u64 object)
{
	return !own || (own | object) >> NUMBER_BITS ? 0 : access | own << NUMBER_BITS | object;
}

static __always_inline __u64 *place_of_word(__u64 word)
{
	__u32 place = word * 0x9e3779b97f4a7c15ULL >> (64 - REMEMBERED_BITS);

	return bpf_map_lookup_elem(&remembered, &place);
}

static __always_inline int is_remembered(__u64 word)
{
	const volatile __u64 *place = place_of_word(word);

	return word && place && *place == word;
}

/* Returns which modules in these slots have permitted the access of a process with one label to an
 * object with the other. Global, so that the verifier goes through it once. */
usher_mac_slots __attribute__((noinline))
mac_remembered(const struct usher_mac_label *own __arg_nonnull,
	       const struct usher_mac_label *object __arg_nonnull, usher_mac_slots slots,
	       __u64 access)
{
	usher_mac_slots found = 0;

#pragma unroll
	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++) {
		if (slots >> slot & 1)
			found |= (usher_mac_slots)is_remembered(
				     word_of(access, own->elements[slot], object->elements[slot]))
				 << slot;
		if (!(slots >> slot >> 1))
			break;
	}
	return found;
}

/* Remembers that the module in the labels' slot has permitted the access. Global, as
 * mac_remembered is. */
__attribute__((noinline)) int mac_remember(const struct mac_labels *labels __arg_nonnull)
{
	__u32 slot = labels->slot & (USHER_MAC_MODULES - 1);
	volatile __u64 *place;
	__u64 word;

	if (!(labels->by_labels >> slot & 1))
		return 0;
	word = word_of(labels->access, element_of(&labels->subject, slot),
		       element_of(&labels->object, slot));
	place = place_of_word(word);
	if (word && place)
		*place = word;
	return 0;
}

#endif
