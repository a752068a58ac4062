/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ends and the protocol of a packet. */
#ifndef USHER_IPSEC_PACKETS_H
#define USHER_IPSEC_PACKETS_H

#include "policy.h"
#include "usher_skb.h"

struct ends {
	struct peer peer;
	__u16 local; /* ports in host byte order; 0: the protocol has none */
	__u16 remote;
	__u8 protocol;
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE ||
	       protocol == IPPROTO_SCTP;
}

static __always_inline int read_ports(const struct packet_walk *walk, int leaving,
				      struct ends *ends)
{
	const __be16 *ports;
	__be16 room[2];

	ends->local = 0;
	ends->remote = 0;
	if (!has_ports(ends->protocol))
		return 1;
	ports = look(walk->packet, walk->offset, room, sizeof(room));
	if (!ports)
		return 0;
	ends->local = bpf_ntohs(ports[leaving ? 0 : 1]);
	ends->remote = bpf_ntohs(ports[leaving ? 1 : 0]);
	return 1;
}

/*
 * Reads a packet whose IP header is at `offset`. Returns 0 if it cannot be read, if it is a
 * fragment, or if it leaves with the next address of a source route in place of its destination.
 * Only raw sockets have fragments: the kernel has reassembled what arrives, and has not yet cut
 * what leaves.
 */
static __always_inline int read_ends(struct __sk_buff *packet, __u32 offset, int leaving,
				     struct ends *ends)
{
	struct packet_walk walk;
	struct ip_header ip;
	union ip_room room;

	ip = read_packet(packet, offset, leaving, &room, &walk);
	if (walk.state & ~(leaving ? 0 : PACKET_IS_UNDER_WAY))
		return 0;
	if (ip.v4)
		set_peer4(&ends->peer, leaving ? ip.v4->daddr : ip.v4->saddr);
	else if (ip.v6)
		set_peer6(&ends->peer,
			  leaving ? ip.v6->daddr.in6_u.u6_addr32 : ip.v6->saddr.in6_u.u6_addr32);
	ends->protocol = walk.protocol;
	return read_ports(&walk, leaving, ends);
}

#endif
