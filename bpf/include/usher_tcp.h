/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the endpoints of a TCP packet, for programs at netfilter's hooks. */
#ifndef USHER_TCP_H
#define USHER_TCP_H

#include "usher_ends.h"
#include "usher_netfilter.h"

/* Whether a packet is TCP. */
enum tcp_reading {
	IS_TCP,
	NO_TCP,
	/* It may be TCP, and its endpoints cannot be read. */
	UNREADABLE,
};

/* The endpoints of a packet; addresses as in usher_connection, ports in host byte order. */
struct tcp_ends {
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
};

/*
 * Reads a packet from its IP header on. Where packets arrive, the kernel has reassembled fragments;
 * where they leave, it fragments them after the hook, so only raw sockets send fragments here. An
 * arriving packet that has still to visit other addresses is read like others: if these addresses
 * are this host's, the packet may not come by a second time.
 */
static __always_inline enum tcp_reading read_tcp(struct sk_buff *skb, int leaving,
						 struct tcp_ends *ends)
{
	struct packet_walk walk;
	__be16 room_of_ports[2];
	struct bpf_dynptr packet;
	struct ip_header ip;
	const __be16 *ports;
	union ip_room room;

	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return UNREADABLE;
	ip = read_packet(&packet, 0, leaving, &room, &walk);
	if (!may_be_tcp(&walk))
		return NO_TCP;
	if (walk.state & ~(leaving ? 0 : PACKET_IS_UNDER_WAY))
		return UNREADABLE;
	ports = look(&packet, walk.offset, room_of_ports, sizeof(room_of_ports));
	if (!ports)
		return UNREADABLE;
	if (ip.v4) {
		set_mapped(ends->source, ip.v4->saddr);
		set_mapped(ends->destination, ip.v4->daddr);
	} else if (ip.v6) {
		set_words(ends->source, ip.v6->saddr.in6_u.u6_addr32);
		set_words(ends->destination, ip.v6->daddr.in6_u.u6_addr32);
	}
	ends->source_port = bpf_ntohs(ports[0]);
	ends->destination_port = bpf_ntohs(ports[1]);
	return IS_TCP;
}

#endif
