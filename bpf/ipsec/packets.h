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

/* The most extension headers that are read. */
#define MOST_EXTENSIONS 8

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

static __always_inline int read_ipv4(struct __sk_buff *packet, __u32 offset, int leaving,
				     struct ends *ends)
{
	struct iphdr header;

	if (bpf_skb_load_bytes(packet, offset, &header, sizeof(header)))
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
		__u8 start[2];

		if (next != PROTOCOL_HOP_BY_HOP && next != PROTOCOL_ROUTING &&
		    next != PROTOCOL_FRAGMENT && next != PROTOCOL_DESTINATION) {
			ends->protocol = next;
			return read_ports(packet, offset, leaving, ends);
		}
		if (bpf_skb_load_bytes(packet, offset, start, sizeof(start)))
			return 0;
		offset += next == PROTOCOL_FRAGMENT ? 8 : 8 * (start[1] + 1);
		next = start[0];
	}
	return 0;
}

/* Reads a packet whose IP header is at `offset`. Returns 0 if it cannot be read. */
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
