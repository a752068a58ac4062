/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How check_token reads a packet at ingress of an interface. A part of admission.bpf.c. */
#ifndef USHER_INGRESS_BPF_H
#define USHER_INGRESS_BPF_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A packet, for syn.bpf.h. */
#define PACKET struct __sk_buff
/* All headers at their longest, from the beginning of an Ethernet frame, without IPv6 extensions.
 */
#define HEADERS_SIZE (14 + 60 + 60)
/* At most this many of the VLAN tags in the packet are read. */
#define VLAN_TAGS 4

/* Reads bytes at an offset from the network header, if they are in the linear part of the buffer.
 * An Ethernet header may come before the network header. */
static __always_inline int load_at_hand(struct __sk_buff *packet, __u32 offset, void *to,
					__u32 size)
{
	return !bpf_skb_load_bytes_relative(packet, offset, to, size, BPF_HDR_START_NET);
}

/* Reads bytes at an offset from the network header. */
static __always_inline int load(struct __sk_buff *packet, __u32 offset, void *to, __u32 size)
{
	__u32 headers = HEADERS_SIZE;

	if (load_at_hand(packet, offset, to, size))
		return 1;
	/* Some drivers leave the headers in pages, from which the network stack would fetch them
	 * next. The packet does not change. */
	if (headers < 14 + offset + size)
		headers = 14 + offset + size;
	if (headers > packet->len)
		headers = packet->len;
	return !bpf_skb_pull_data(packet, headers) && load_at_hand(packet, offset, to, size);
}

/* load(), as usher_packet.h calls it. */
static __always_inline const void *look(struct __sk_buff *packet, __u32 offset, void *room,
					__u32 size)
{
	return load(packet, offset, room, size) ? room : NULL;
}

/* Whether the packet has fewer bytes than this. */
static __always_inline int is_shorter(struct __sk_buff *packet, __u32 size)
{
	return packet->len < size;
}

/* The walk along the VLAN tags still in a packet. */
struct tags {
	struct __sk_buff *packet;
	__u32 offset; /* behind the tags so far */
	__be16 protocol; /* there */
};

static __always_inline int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* Skips one tag; 1 ends the walk. For bpf_loop, because the verifier would go through all
 * sequences of tags. */
static long next_tag(__u32 index, struct tags *walk)
{
	__be16 tag[2];

	if (!is_tag(walk->protocol) || !load(walk->packet, walk->offset, tag, sizeof(tag)))
		return 1;
	walk->protocol = tag[1];
	walk->offset += sizeof(tag);
	return 0;
}

/* Returns the protocol behind the VLAN tags still in the packet, and in `offset` the length of the
 * tags. If there are more tags than it reads, returns the protocol of a tag. */
static __always_inline __be16 network_protocol(struct __sk_buff *packet, __u32 *offset)
{
	struct tags walk = { .packet = packet, .protocol = packet->protocol };

	if (!is_tag(walk.protocol))
		return walk.protocol;
	bpf_loop(VLAN_TAGS, next_tag, &walk, 0);
	*offset = walk.offset;
	return is_tag(walk.protocol) ? bpf_htons(ETH_P_8021Q) : walk.protocol;
}

#endif
