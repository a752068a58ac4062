/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The policy in force: which program is which application, and how the traffic of an application
 * with a peer is treated. usher_protection::Tables::treat is the reference.
 *
 * One table has the whole policy, and is not changed. There is room for two: the next policy's
 * table takes the place that is not in force. Then one write raises `generation`: it puts that
 * place in force, and what sockets have cached is looked up again. Without that write the former
 * policy stays in force, whatever happens to user space.
 *
 * A program that has read a generation may be so late that its place has a later policy already.
 * The keys of networks and items contain the generation, so the program then finds none, and
 * discards.
 */
#ifndef USHER_IPSEC_POLICY_H
#define USHER_IPSEC_POLICY_H

#include "classes.h"
#include "usher_ends.h"
#include "usher_executable.h"
#include "usher_layout.h"
#include "usher_maps.h"
#include "usher_marks.h"

/* The bits of usher_policy_key.kind, .generation and .scope. */
#define SCOPE_BITS 96

/* A policy. Limit: user space makes it as large as its entries. */
struct policy {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct usher_policy_key));
	__uint(value_size, sizeof(struct usher_policy_entry));
};

/* The policy in force, and the one before or after it. Key: the lowest bit of the generation. None
 * before the first: then nothing is governed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, USHER_POLICY_PLACES);
	__type(key, __u32);
	__array(values, struct policy);
} policies SEC(".maps");

/* Key: 0. */
ARRAY_TABLE(state, 1, struct usher_ipsec_state);

/* The generation of the policy that is about to come into force; its table is in place. 0: there is
 * none. Key: 0. */
ARRAY_TABLE(next_generation, 1, __u32);

/* Peers that are held to a class; the value is unused. Limit: 65,536. Full: user space gets the
 * error, and the peer is not held. */
SPARSE_TABLE(held, 65536, struct usher_held, __u32);

/* Counters of events, one copy per CPU. Key: 0. */
CPU_TABLE(counters, 1, struct usher_ipsec_counters);

#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_ipsec_counters *here = first_of(&counters);                           \
		if (here)                                                                          \
			count_up(&here->what);                                                     \
	} while (0)

/* The policy and what belongs to it. */
struct in_force {
	void *policy;
	__u32 generation;
	__u32 mask;
	__u32 shift;
};

/* Finds the policy of a generation. 0: there is none. */
static __always_inline int find_policy(struct in_force *found, __u32 generation)
{
	__u32 place = generation % USHER_POLICY_PLACES;

	found->generation = generation;
	found->policy = bpf_map_lookup_elem(&policies, &place);
	return found->policy && generation;
}

/* Reads which policy is in force, without looking up its table. 0: there is none. */
static __always_inline int read_state(struct in_force *now)
{
	const volatile struct usher_ipsec_state *shared = first_of(&state);

	if (!shared)
		return 0;
	now->mask = shared->mask;
	now->shift = shared->shift;
	now->generation = shared->generation;
	return now->generation != 0;
}

/* Reads the policy in force. 0: there is none. */
static __always_inline int read_policy(struct in_force *now)
{
	return read_state(now) && find_policy(now, now->generation);
}

/* Finds the policy that is about to come into force, only to look up which programs it governs. 0:
 * there is none. */
static __always_inline int read_next_policy(struct in_force *next)
{
	const volatile __u32 *generation = first_of(&next_generation);

	return generation && *generation && find_policy(next, *generation);
}

/* The class number in a mark. */
static __always_inline __u32 class_in(const struct in_force *now, __u32 mark)
{
	return (mark & now->mask) >> now->shift & CLASS_BITS;
}

/* The bits of a mark that are the signature, not shifted; 0: none. */
static __always_inline __u32 signature_in(const struct in_force *now, __u32 mark)
{
	return mark & now->mask & ~((__u32)CLASS_BITS << now->shift);
}

static __always_inline struct usher_policy_entry *identity_entry(const struct in_force *now,
								 __u32 kind, __u64 identity)
{
	struct usher_policy_key key __aligned = {
		.length = SCOPE_BITS + 64,
		.kind = kind,
	};

	__builtin_memcpy(key.bytes, &identity, sizeof(identity));
	return bpf_map_lookup_elem(now->policy, &key);
}

/* The application that names the file with this kind and identity, or otherwise the place. */
static __always_inline struct usher_policy_entry *file_entry(const struct in_force *now, __u32 kind,
							     __u64 identity, __u64 place)
{
	struct usher_policy_entry *entry = identity_entry(now, kind, identity);

	return entry ? entry : identity_entry(now, USHER_POLICY_PLACE, place);
}

/* The application of a socket's maker: of its script, or otherwise of its executable. */
static __always_inline struct usher_policy_entry *maker_entry(const struct in_force *now,
							      const struct usher_governed *socket)
{
	struct usher_policy_entry *entry = 0;

	if (socket->script.script)
		entry = file_entry(now, USHER_POLICY_SCRIPT, socket->script.script,
				   socket->script.place);
	return entry ? entry
		     : file_entry(now, USHER_POLICY_PROGRAM, socket->program, socket->place);
}

/* The other end of a packet or a call. */
struct peer {
	__u32 is_ipv4;
	__u32 words[4]; /* as in usher_connection */
};

static __always_inline void set_peer4(struct peer *peer, __be32 address)
{
	peer->is_ipv4 = 1;
	set_mapped((__u8 *)peer->words, address);
}

/* Here and below, addresses are compared by one branch, not by one for each word: the verifier
 * would walk what follows once for each. */
static __always_inline void set_peer6(struct peer *peer, const volatile __u32 from[4])
{
	const __u32 *words = peer->words;

	set_words((__u8 *)peer->words, from);
	peer->is_ipv4 = !(words[0] | words[1] | (words[2] ^ bpf_htonl(0x0000ffff)));
}

static __always_inline int is_loopback(const struct peer *peer)
{
	if (peer->is_ipv4)
		return (peer->words[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return !(peer->words[0] | peer->words[1] | peer->words[2] |
		 (peer->words[3] ^ bpf_htonl(1)));
}

/* The treatment of an application's traffic with the addresses of the longest matching network. */
static __always_inline struct usher_policy_entry *
network_entry(const struct in_force *now, __u32 application, const struct peer *peer)
{
	struct usher_policy_key key __aligned = {
		.generation = now->generation,
		.scope = application,
	};

	if (peer->is_ipv4) {
		key.kind = USHER_POLICY_IPV4;
		key.length = SCOPE_BITS + 32;
		__builtin_memcpy(key.bytes, &peer->words[3], 4);
	} else {
		key.kind = USHER_POLICY_IPV6;
		key.length = SCOPE_BITS + 128;
		__builtin_memcpy(key.bytes, peer->words, 16);
	}
	return bpf_map_lookup_elem(now->policy, &key);
}

/* The class of the first item of a list that has both ports; ports in host byte order. */
static __always_inline __u32 class_by_items(const struct in_force *now, __u32 list, __u32 patterns,
					    __u16 local, __u16 remote)
{
	__u32 class = USHER_CLASS_DISCARD, first = ~0U;

	for (__u32 pattern = 0; pattern < 4; pattern++) {
		struct usher_policy_key key __aligned = {
			.length = SCOPE_BITS + 40,
			.kind = USHER_POLICY_ITEM,
			.generation = now->generation,
			.scope = list,
		};
		struct usher_policy_entry *item;

		if (!(patterns & (1 << pattern)))
			continue;
		if (pattern & USHER_PATTERN_LOCAL) {
			key.bytes[0] = local >> 8;
			key.bytes[1] = local;
		}
		if (pattern & USHER_PATTERN_REMOTE) {
			key.bytes[2] = remote >> 8;
			key.bytes[3] = remote;
		}
		key.bytes[4] = pattern;
		item = bpf_map_lookup_elem(now->policy, &key);
		if (item && item->number < first) {
			first = item->number;
			class = item->class;
		}
	}
	return class;
}

/*
 * The class number for a packet between a local port of an application and a port of a peer, ports
 * in host byte order. `patterns`: set to those of the network's items; 0: ports do not matter.
 */
static __always_inline __u32 treat(const struct in_force *now, __u32 application,
				   const struct peer *peer, __u16 local, __u16 remote,
				   __u32 *patterns)
{
	struct usher_policy_entry *network;

	*patterns = 0;
	if (is_loopback(peer))
		return USHER_CLASS_BYPASS;
	network = network_entry(now, application, peer);
	if (!network)
		return USHER_CLASS_DISCARD;
	*patterns = network->patterns;
	if (!*patterns)
		return network->class;
	return class_by_items(now, network->number, *patterns, local, remote);
}

/* Returns 1 if traffic of this class with the peer may pass without protection. */
static __always_inline int may_be_plain(__u32 class, const struct peer *peer)
{
	struct usher_held key __aligned = { .class = class };

	if (class == USHER_CLASS_BYPASS)
		return 1;
	if (class == USHER_CLASS_DISCARD || is_mandatory(class))
		return 0;
	__builtin_memcpy(key.address, peer->words, sizeof(key.address));
	return !bpf_map_lookup_elem(&held, &key);
}

#endif
