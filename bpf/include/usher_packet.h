/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads the IP headers of a packet. A header that is included before this one defines how bytes are
 * read (usher_skb.h, usher_netfilter.h, ingress.bpf.h of admission): the type PACKET, and
 * look(packet, offset, room, size). `look` returns where these bytes are, in the packet or in the
 * room; NULL: the packet lacks them. `size` is a constant.
 *
 * The rules are the same for all programs (docs/adr/0095). Behind IPv6 up to eight extension
 * headers are read: hop-by-hop options, destination options, routing and fragment headers. Any
 * other header is the packet's protocol, also AH and ESP. Each reason why a packet cannot be read,
 * or is not what it seems, is a bit of `state`; each program decides which bits it takes.
 */
#ifndef USHER_PACKET_H
#define USHER_PACKET_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "usher_numbers.h"

/* Limit of extension headers that are read. */
#define EXTENSIONS 8

/* Bits of fragments: more follow, or it is not the first. Whole packets and atomic IPv6 fragments
 * have none. */
#define IPV4_FRAGMENT 0x3fff
#define IPV6_FRAGMENT 0xfff9

#define LONGEST_IPV4_OPTIONS 40
/* Options of IPv4: the end of the list, padding, and the two source routes. */
#define OPTION_END 0
#define OPTION_PADDING 1
#define OPTION_LOOSE_ROUTE 131
#define OPTION_STRICT_ROUTE 137

/* Bits of `state`. */
enum packet_state {
	/* The packet has no whole header of IP. The kernel drops it. */
	PACKET_IS_BROKEN = 1,
	/* The packet is a fragment, perhaps the first one. In IPv6 only the first says what all of
	 * them are, so the protocol is that of the fragment header. */
	PACKET_IS_PART = 2,
	/* Extension headers are missing, or too many. The protocol is that of the last one read. */
	PACKET_IS_UNREAD = 4,
	/* The packet has still to visit other addresses: the destination is not the last one. */
	PACKET_IS_UNDER_WAY = 8,
};

/* A packet as far as it has been read. */
struct packet_walk {
	PACKET *packet;
	__u32 offset; /* of the header behind those that have been read */
	__u32 protocol; /* its */
	__u32 state; /* 0: it has been read up to its protocol */
};

/* Returns 1 if a header is an extension header, behind which a protocol of IPv6 may be. */
static __always_inline int is_extension(__u32 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING ||
	       header == IPPROTO_FRAGMENT || header == IPPROTO_DSTOPTS;
}

/* Returns 1 if the packet is TCP, or may be TCP behind headers that have not been read. */
static __always_inline int may_be_tcp(const struct packet_walk *walk)
{
	return walk->protocol == IPPROTO_TCP || (walk->state && is_extension(walk->protocol));
}

/* The common beginning of the extension headers. */
struct extension {
	__u8 next;
	__u8 size; /* in units of eight bytes, after the first eight; not for a fragment header */
	union {
		struct {
			__u8 type;
			__u8 left;
		} routing;
		__be16 fragment;
	};
};

/* Looks at one header; 1 ends the walk. For bpf_loop, because the verifier would go through all
 * sequences of headers. */
static long next_extension(__u32 index, struct packet_walk *walk)
{
	__u32 protocol = walk->protocol;
	const struct extension *header;
	struct extension room;

	if (!is_extension(protocol))
		return 1;
	header = look(walk->packet, walk->offset, &room, sizeof(room));
	if (!header)
		return 1;
	if (protocol == IPPROTO_FRAGMENT && header->fragment & bpf_htons(IPV6_FRAGMENT)) {
		walk->state |= PACKET_IS_PART;
		return 1;
	}
	if (protocol == IPPROTO_ROUTING && header->routing.left)
		walk->state |= PACKET_IS_UNDER_WAY;
	walk->offset += protocol == IPPROTO_FRAGMENT ? 8 : (header->size + 1) * 8;
	walk->protocol = header->next;
	return 0;
}

/* Reads on from the header of IPv6 at `walk->offset`. */
static __always_inline void walk_ipv6(struct packet_walk *walk, const struct ipv6hdr *ip)
{
	walk->state = ip->version == 6 ? 0 : PACKET_IS_BROKEN;
	walk->protocol = ip->nexthdr;
	walk->offset += sizeof(*ip);
	if (walk->state || !is_extension(walk->protocol))
		return;
	bpf_loop(EXTENSIONS, next_extension, walk, 0);
	if (is_extension(walk->protocol))
		walk->state |= PACKET_IS_UNREAD;
}

/* Reads on from the header of IPv4 at `walk->offset`. */
static __always_inline void walk_ipv4(struct packet_walk *walk, const struct iphdr *ip)
{
	walk->state = ip->version == 4 && ip->ihl >= 5 ? 0 : PACKET_IS_BROKEN;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		walk->state |= PACKET_IS_PART;
	walk->protocol = ip->protocol;
	walk->offset += ip->ihl * 4;
}

/* Returns 1 if the options have a source route, or cannot be read. The destination in the header is
 * then only the next address. `options`: their offset; `length`: their length. */
static __always_inline int names_its_way(PACKET *packet, __u32 options, __u32 length)
{
	__u32 skipped = 0;

	for (__u32 at = 0; at < LONGEST_IPV4_OPTIONS; at++) {
		const __u8 *option;
		__u8 room[2];

		if (at >= length)
			return 0;
		if (skipped) {
			skipped--;
			continue;
		}
		option = look(packet, options + at, room, 1);
		if (!option)
			return 1;
		if (*option == OPTION_END)
			return 0;
		if (*option == OPTION_PADDING)
			continue;
		if (*option == OPTION_LOOSE_ROUTE || *option == OPTION_STRICT_ROUTE)
			return 1;
		option = look(packet, options + at, room, sizeof(room));
		if (!option || option[1] < sizeof(room))
			return 1;
		skipped = option[1] - 1;
	}
	return 0;
}

/* The IP header: one of the two. Both NULL: the packet has none. */
struct ip_header {
	const struct iphdr *v4;
	const struct ipv6hdr *v6;
};

union ip_room {
	struct iphdr v4;
	struct ipv6hdr v6;
};

/*
 * Reads a packet whose IP header is at `offset`. `leaving`: it is about to leave this host. The
 * kernel has already handled the IPv4 options of packets that arrive.
 */
static __always_inline struct ip_header read_packet(PACKET *packet, __u32 offset, int leaving,
						    union ip_room *room, struct packet_walk *walk)
{
	struct ip_header none = {}, ip = {};

	walk->packet = packet;
	walk->offset = offset;
	walk->protocol = IPPROTO_HOPOPTS;
	walk->state = PACKET_IS_BROKEN;
	ip.v4 = look(packet, offset, &room->v4, sizeof(room->v4));
	if (!ip.v4)
		return none;
	if (ip.v4->version != 6) {
		walk_ipv4(walk, ip.v4);
		if (leaving && ip.v4->ihl > 5 &&
		    names_its_way(packet, offset + sizeof(*ip.v4), 4 * (ip.v4->ihl - 5)))
			walk->state |= PACKET_IS_UNDER_WAY;
		return ip;
	}
	ip.v4 = NULL;
	ip.v6 = look(packet, offset, &room->v6, sizeof(room->v6));
	if (ip.v6)
		walk_ipv6(walk, ip.v6);
	return ip;
}

#endif
