/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ends of a TCP packet, for programs at netfilter's hooks. */
#ifndef USHER_TCP_H
#define USHER_TCP_H

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "usher_ends.h"
#include "usher_netfilter.h"

/* Limit of extension headers that are read. */
#define EXTENSIONS 8

#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV6_FRAGMENT_OFFSET 0xfff8

/* Whether a packet is of TCP. */
enum tcp_reading {
	IS_TCP,
	NO_TCP,
	/* Its ports cannot be read. */
	UNREADABLE,
};

/* The ends of a packet; addresses as in usher_connection, ports in host byte order. */
struct tcp_ends {
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
};

static __always_inline enum tcp_reading read_tcp_ports(const struct bpf_dynptr *packet,
						       __u32 offset, struct tcp_ends *ends)
{
	__be16 buffer[2], *ports;

	ports = bpf_dynptr_slice(packet, offset, buffer, sizeof(buffer));
	if (!ports)
		return UNREADABLE;
	ends->source_port = bpf_ntohs(ports[0]);
	ends->destination_port = bpf_ntohs(ports[1]);
	return IS_TCP;
}

static __always_inline enum tcp_reading read_tcp_over_ipv4(const struct bpf_dynptr *packet,
							   struct tcp_ends *ends)
{
	struct iphdr buffer, *header;

	header = bpf_dynptr_slice(packet, 0, &buffer, sizeof(buffer));
	if (!header)
		return UNREADABLE;
	if (header->protocol != IPPROTO_TCP)
		return NO_TCP;
	if (header->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return UNREADABLE;
	set_mapped(ends->source, header->saddr);
	set_mapped(ends->destination, header->daddr);
	return read_tcp_ports(packet, header->ihl * 4, ends);
}

static __always_inline int is_extension(__u8 header)
{
	return header == IPPROTO_HOPOPTS || header == IPPROTO_ROUTING ||
	       header == IPPROTO_FRAGMENT || header == IPPROTO_DSTOPTS;
}

/* The beginning of the extension headers. */
struct extension {
	__u8 next;
	__u8 size; /* in units of eight bytes, without the first one; unused in a fragment header */
	__be16 offset; /* in a fragment header */
};

static __always_inline enum tcp_reading read_tcp_over_ipv6(const struct bpf_dynptr *packet,
							   struct tcp_ends *ends)
{
	struct ipv6hdr buffer, *header;
	__u32 offset = sizeof(buffer);
	__u8 next;

	header = bpf_dynptr_slice(packet, 0, &buffer, sizeof(buffer));
	if (!header)
		return UNREADABLE;
	set_words(ends->source, header->saddr.in6_u.u6_addr32);
	set_words(ends->destination, header->daddr.in6_u.u6_addr32);
	next = header->nexthdr;
	for (int i = 0; i <= EXTENSIONS; i++) {
		struct extension room, *extension;
		int is_fragment = next == IPPROTO_FRAGMENT;

		if (next == IPPROTO_TCP)
			return read_tcp_ports(packet, offset, ends);
		if (!is_extension(next))
			return NO_TCP;
		extension = bpf_dynptr_slice(packet, offset, &room, sizeof(room));
		if (!extension)
			return UNREADABLE;
		next = extension->next;
		if (is_fragment && extension->offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
			return next == IPPROTO_TCP || is_extension(next) ? UNREADABLE : NO_TCP;
		offset += is_fragment ? 8 : (extension->size + 1) * 8;
	}
	return UNREADABLE;
}

/* Reads a packet from its IP header on. A fragment after the first has no ports; where the link has
 * fragments put together, there is none. */
static __always_inline enum tcp_reading read_tcp(struct sk_buff *skb, struct tcp_ends *ends)
{
	struct bpf_dynptr packet;
	__u8 buffer, *first;

	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return UNREADABLE;
	first = bpf_dynptr_slice(&packet, 0, &buffer, sizeof(buffer));
	if (!first)
		return UNREADABLE;
	return *first >> 4 == 4 ? read_tcp_over_ipv4(&packet, ends)
				: read_tcp_over_ipv6(&packet, ends);
}

#endif
