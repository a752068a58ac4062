/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Network interfaces in plain numbers, and the one that a packet socket uses. */
#ifndef USHER_MAC_DEVICES_H
#define USHER_MAC_DEVICES_H

#include "accesses.h"

/* The chains in the kernel's table of the interfaces of a network namespace, by their numbers. */
#define DEVICE_CHAINS 256
/* Limit of the interfaces that are looked at in a chain. Interfaces behind it are not found. */
#define DEVICES_IN_CHAIN 4096

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common___mac {
	unsigned int inum;
};

struct hlist_node___mac {
	struct hlist_node___mac *next;
};

struct hlist_head___mac {
	struct hlist_node___mac *first;
};

struct net___mac {
	__u64 net_cookie;
	struct ns_common___mac ns;
	struct hlist_head___mac *dev_index_head;
};

struct network_of___mac {
	struct net___mac *net;
};

struct net_device___mac {
	char name[USHER_MAC_INTERFACE_NAME];
	int ifindex;
	struct network_of___mac nd_net;
	struct hlist_node___mac index_hlist;
};

struct packet_type___mac {
	struct net_device___mac *dev;
};

struct packet_sock___mac {
	__be16 num;
	struct packet_type___mac prot_hook;
};

#pragma clang attribute pop

#define ONES 0x0101010101010101ULL

/* Not 0 if a byte of the word is zero. The lowest bit of the result is then in the lowest byte that
 * is zero. */
static __always_inline __u64 zeros_of(__u64 word)
{
	return (word - ONES) & ~word & ONES << 7;
}

/* The bytes of a word before its first zero, the others zero. */
static __always_inline __u64 before_zero(__u64 word)
{
	__u64 zeros;

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	word = __builtin_bswap64(word);
#endif
	zeros = zeros_of(word);
	if (zeros)
		word &= ((zeros & -zeros) - 1) >> 7;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	word = __builtin_bswap64(word);
#endif
	return word;
}

_Static_assert(USHER_MAC_INTERFACE_NAME == 2 * sizeof(__u64), "two words");

/* Copies the name of an interface, behind whose final zero any bytes may stand. Copies words,
 * because this runs for each packet, and a helper copies single bytes. */
static __always_inline void copy_device_name(char *into, const struct net_device___mac *device)
{
	const char *name = device->name;
	__u64 *words = (__u64 *)into, first;

	/* So that clang reads words and not bytes. */
	asm volatile("" : "+r"(name));
	first = *(const volatile __u64 *)name;
	words[0] = before_zero(first);
	words[1] = 0;
	if (!zeros_of(first))
		words[1] = before_zero(*(const volatile __u64 *)(name + sizeof(first)));
}

/* Reads an interface, which may be NULL: zeros then. */
static __always_inline void read_device(struct usher_mac_device *into,
					const struct net_device___mac *device)
{
	__builtin_memset(into, 0, sizeof(*into));
	into->number = device->ifindex;
	if (!into->number)
		return;
	into->network = device->nd_net.net->ns.inum;
	copy_device_name(into->name, device);
}

struct mac_device_search {
	__u64 node; /* its address; 0: the end of the chain */
	__u64 found; /* the interface's address; 0: none yet */
	__u32 number;
	__u32 reserved;
};

static long look_at_device(__u32 index, struct mac_device_search *search)
{
	const struct hlist_node___mac *node = (const void *)search->node;
	const struct net_device___mac *device;

	if (!node)
		return 1;
	device = (const void *)(search->node -
				bpf_core_field_offset(struct net_device___mac, index_hlist));
	if (BPF_CORE_READ(device, ifindex) == (int)search->number) {
		search->found = (__u64)device;
		return 1;
	}
	search->node = (__u64)BPF_CORE_READ(node, next);
	return 0;
}

/*
 * Reads the interface with a number in a network namespace, for which programs have no helper. The
 * hook holds RCU's read lock, under which the kernel itself walks this chain. Not found: number
 * only.
 */
static __always_inline void read_device_numbered(struct usher_mac_device *into,
						 const struct net___mac *network, __u32 number)
{
	struct mac_device_search search = { .number = number };
	__u64 chains = (__u64)BPF_CORE_READ(network, dev_index_head);
	const struct hlist_head___mac *chain;

	chain = (const void *)(chains + sizeof(*chain) * (number & (DEVICE_CHAINS - 1)));
	search.node = (__u64)BPF_CORE_READ(chain, first);
	bpf_loop(DEVICES_IN_CHAIN, look_at_device, &search, 0);
	read_device(into, bpf_core_cast((const void *)search.found, struct net_device___mac));
	into->number = number;
}

/* Reads the interface to which the packet socket at an address is bound. Returns whether the socket
 * receives. Global, so that the verifier goes through it once: such functions get no pointer of the
 * kernel. */
__attribute__((noinline)) int mac_read_bound_device(struct usher_mac_device *into __arg_nonnull,
						    const __u64 *socket __arg_nonnull)
{
	const struct packet_sock___mac *own = (const void *)*socket;

	__builtin_memset(into, 0, sizeof(*into));
	/* A kernel with AF_PACKET in a module does not describe these sockets among its own types:
	 * they look like sockets that receive by all interfaces. */
	if (!bpf_core_type_exists(struct packet_sock___mac))
		return 1;
	read_device(into,
		    bpf_core_cast(BPF_CORE_READ(own, prot_hook.dev), struct net_device___mac));
	return BPF_CORE_READ(own, num) != 0;
}

#endif
