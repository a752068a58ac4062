/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields that programs at netfilter's hooks read: the context, the interfaces, the mark, the
 * route, and the packet from its IP header on. Kernel 6.4.
 */
#ifndef USHER_NETFILTER_H
#define USHER_NETFILTER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "usher_numbers.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net_device {
	int ifindex;
};

struct nf_hook_state {
	struct net_device *in;
	struct net_device *out;
};

struct sk_buff {
	unsigned int mark;
	int skb_iif;
	unsigned long _skb_refdst;
};

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

#pragma clang attribute pop

/* Kernel functions. The packet is passed as the type by which other programs know it. */
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *packet) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *packet, __u32 offset, void *buffer,
			      __u32 size) __ksym;

/* A packet from its IP header on, for usher_packet.h. */
#define PACKET const struct bpf_dynptr

static __always_inline const void *look(const struct bpf_dynptr *packet, __u32 offset, void *room,
					__u32 size)
{
	return bpf_dynptr_slice(packet, offset, room, size);
}

#include "usher_packet.h"

#endif
