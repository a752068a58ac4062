/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ends and the protocol of a packet. */
#ifndef USHER_IPSEC_PACKETS_H
#define USHER_IPSEC_PACKETS_H

#include <linux/ip.h>
#include <linux/ipv6.h>

#include "policy.h"

#define PROTOCOL_HOP_BY_HOP 0
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ROUTING 43
#define PROTOCOL_FRAGMENT 44
#define PROTOCOL_ESP 50
#define PROTOCOL_AH 51
#define PROTOCOL_DESTINATION 60
#define PROTOCOL_SCTP 132
#define PROTOCOL_UDP_LITE 136

/* Limit of extension headers that are read. */
#define MOST_EXTENSIONS 8

#define IPV4_HEADER 20
#define MOST_IPV4_OPTIONS 40
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV6_FRAGMENT_OFFSET 0xfff8

/* Options of IPv4: the end of the list, padding, and the two that name the way. */
#define OPTION_END 0
#define OPTION_PADDING 1
#define OPTION_LOOSE_ROUTE 131
#define OPTION_STRICT_ROUTE 137

struct ends {
	struct peer peer;
	__u16 local; /* ports in host byte order; 0: the protocol has none */
	__u16 remote;
	__u8 protocol;
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP ||
	       protocol == PROTOCOL_UDP_LITE || protocol == PROTOCOL_SCTP;
}

static __always_inline int read_ports(struct __sk_buff *packet, __u32 offset, int leaving,
				      struct ends *ends)
{
	__be16 ports[2];

	ends->local = 0;
	ends->remote = 0;
	if (!has_ports(ends->protocol))
		return 1;
	if (bpf_skb_load_bytes(packet, offset, ports, sizeof(ports)))
		return 0;
	ends->local = bpf_ntohs(ports[leaving ? 0 : 1]);
	ends->remote = bpf_ntohs(ports[leaving ? 1 : 0]);
	return 1;
}

/* Returns 1 if the packet goes to its destination by the way of another address, which is in its
 * header meanwhile. `options`: where the options begin; `length`: of all. */
static __always_inline int names_its_way(struct __sk_buff *packet, __u32 options, __u32 length)
{
	__u32 skipped = 0;

	for (__u32 at = 0; at < MOST_IPV4_OPTIONS; at++) {
		__u8 option[2];

		if (at >= length)
			return 0;
		if (skipped) {
			skipped--;
			continue;
		}
		if (bpf_skb_load_bytes(packet, options + at, option, 1))
			return 1;
		if (option[0] == OPTION_END)
			return 0;
		if (option[0] == OPTION_PADDING)
			continue;
		if (option[0] == OPTION_LOOSE_ROUTE || option[0] == OPTION_STRICT_ROUTE ||
		    bpf_skb_load_bytes(packet, options + at, option, sizeof(option)) ||
		    option[1] < sizeof(option))
			return 1;
		skipped = option[1] - 1;
	}
	return 0;
}

static __always_inline int read_ipv4(struct __sk_buff *packet, __u32 offset, int leaving,
				     struct ends *ends)
{
	struct iphdr header;

	if (bpf_skb_load_bytes(packet, offset, &header, sizeof(header)))
		return 0;
	if (header.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return 0;
	if (leaving && header.ihl > IPV4_HEADER / 4 &&
	    names_its_way(packet, offset + IPV4_HEADER, 4 * header.ihl - IPV4_HEADER))
		return 0;
	set_peer4(&ends->peer, leaving ? header.daddr : header.saddr);
	ends->protocol = header.protocol;
	return read_ports(packet, offset + 4 * header.ihl, leaving, ends);
}

static __always_inline int read_ipv6(struct __sk_buff *packet, __u32 offset, int leaving,
				     struct ends *ends)
{
	struct ipv6hdr header;
	__u8 next;

	if (bpf_skb_load_bytes(packet, offset, &header, sizeof(header)))
		return 0;
	set_peer6(&ends->peer,
		  leaving ? header.daddr.in6_u.u6_addr32 : header.saddr.in6_u.u6_addr32);
	next = header.nexthdr;
	offset += sizeof(header);
	for (int extension = 0; extension < MOST_EXTENSIONS; extension++) {
		__u8 start[4];

		if (next != PROTOCOL_HOP_BY_HOP && next != PROTOCOL_ROUTING &&
		    next != PROTOCOL_FRAGMENT && next != PROTOCOL_DESTINATION) {
			ends->protocol = next;
			return read_ports(packet, offset, leaving, ends);
		}
		if (bpf_skb_load_bytes(packet, offset, start, sizeof(start)))
			return 0;
		if (next == PROTOCOL_FRAGMENT && (start[2] << 8 | start[3]) & IPV6_FRAGMENT_OFFSET)
			return 0;
		/* Addresses are left that the packet has still to visit. */
		if (leaving && next == PROTOCOL_ROUTING && start[3])
			return 0;
		offset += next == PROTOCOL_FRAGMENT ? 8 : 8 * (start[1] + 1);
		next = start[0];
	}
	return 0;
}

/*
 * Reads a packet whose IP header is at `offset`. Returns 0 if it cannot be read, or does not say
 * where it goes: fragments after the first have no ports (what arrives has been put together, and
 * what leaves is not yet cut, so only raw sockets have them), and a leaving packet that names its
 * way has the next address in place of the last.
 */
static __always_inline int read_ends(struct __sk_buff *packet, __u32 offset, int leaving,
				     struct ends *ends)
{
	__u8 first;

	if (bpf_skb_load_bytes(packet, offset, &first, sizeof(first)))
		return 0;
	if (first >> 4 == 4)
		return read_ipv4(packet, offset, leaving, ends);
	return first >> 4 == 6 && read_ipv6(packet, offset, leaving, ends);
}

#endif
