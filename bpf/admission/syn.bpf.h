/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading a SYN: whose it is, for which service, and the token that it carries. A part of
 * admission.bpf.c. What is not exactly such a packet is none: IPv4 fragments, IPv6 with extension
 * headers, ends that no socket has.
 */
#ifndef USHER_SYN_BPF_H
#define USHER_SYN_BPF_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include "usher_token.h"

#define FRAGMENT 0x3fff /* more of them, or not the first */
#define OPTIONS_SIZE 40
/* All headers at their longest, from the beginning of an Ethernet frame. */
#define HEADERS_SIZE (14 + 60 + 60)

/* Reads from the network header on, with or without an Ethernet header before it. */
static __always_inline int load(struct __sk_buff *packet, __u32 offset, void *to, __u32 size)
{
	__u32 headers = packet->len < HEADERS_SIZE ? packet->len : HEADERS_SIZE;

	if (!bpf_skb_load_bytes_relative(packet, offset, to, size, BPF_HDR_START_NET))
		return 1;
	/* Some drivers leave the headers in pages, from where the network stack would fetch them
	 * next. The packet stays what it is. */
	return !bpf_skb_pull_data(packet, headers) &&
	       !bpf_skb_load_bytes_relative(packet, offset, to, size, BPF_HDR_START_NET);
}

/* An address that no connection has in the table: ::, or in an IPv6 packet one that means IPv4
 * (::ffff:0:0/96). User space could not read such an entry. */
static __always_inline int is_strange(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;

	if (words[0] || words[1])
		return 0;
	return words[2] == bpf_htonl(0x0000ffff) || (!words[2] && !words[3]);
}

/* Addresses of a TCP packet, and where its TCP header begins; 0 for every other packet. */
static __always_inline __u32 read_addresses(struct __sk_buff *packet,
					    struct usher_connection *connection)
{
	if (packet->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr header;

		if (!load(packet, 0, &header, sizeof(header)))
			return 0;
		if (header.version != 4 || header.ihl < 5 || header.protocol != IPPROTO_TCP ||
		    header.frag_off & bpf_htons(FRAGMENT) || !header.saddr || !header.daddr)
			return 0;
		set_mapped(connection->client_address, header.saddr);
		set_mapped(connection->server_address, header.daddr);
		return header.ihl * 4;
	}
	if (packet->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr header;

		if (!load(packet, 0, &header, sizeof(header)))
			return 0;
		if (header.version != 6 || header.nexthdr != IPPROTO_TCP)
			return 0;
		set_words(connection->client_address, header.saddr.in6_u.u6_addr32);
		set_words(connection->server_address, header.daddr.in6_u.u6_addr32);
		if (is_strange(connection->client_address) ||
		    is_strange(connection->server_address))
			return 0;
		return sizeof(header);
	}
	return 0;
}

struct options {
	__u32 offset;
	__u32 size; /* of all */
	__u32 found; /* whether ours is at `offset` */
	__u8 bytes[OPTIONS_SIZE];
};

/* One TCP option; for bpf_loop, because the verifier would go through all their sequences. */
static long next_option(__u32 index, struct options *options)
{
	__u32 offset = options->offset;
	__u8 kind, size;

	/* Ours would not fit any more. */
	if (offset > OPTIONS_SIZE - USHER_TOKEN_OPTION_SIZE ||
	    offset + USHER_TOKEN_OPTION_SIZE > options->size)
		return 1;
	kind = options->bytes[offset];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		options->offset = offset + 1;
		return 0;
	}
	size = options->bytes[offset + 1];
	if (size < 2)
		return 1;
	if (kind == USHER_TOKEN_KIND && size == USHER_TOKEN_OPTION_SIZE &&
	    options->bytes[offset + 2] == USHER_TOKEN_EXPERIMENT >> 8 &&
	    options->bytes[offset + 3] == (USHER_TOKEN_EXPERIMENT & 0xff)) {
		options->found = 1;
		return 1;
	}
	options->offset = offset + size;
	return 0;
}

/* The token of a SYN whose `size` bytes of options begin at `offset`; a function of its own, so
 * that its stack is free again while a chain is hashed. */
static __attribute__((noinline)) int find_option(struct __sk_buff *packet, __u32 offset, __u32 size,
						 struct usher_token_option *option)
{
	struct options options = {};

	if (size < USHER_TOKEN_OPTION_SIZE || size > OPTIONS_SIZE)
		return 0;
	options.size = size;
	if (!load(packet, offset, options.bytes, size))
		return 0;
	bpf_loop(OPTIONS_SIZE - USHER_TOKEN_OPTION_SIZE + 1, next_option, &options, 0);
	return options.found && load(packet, offset + options.offset, option, sizeof(*option));
}

/* A SYN to a service. */
struct syn {
	__u32 service;
	__be32 sequence;
	__u32 has_token; /* in `option` */
	struct usher_token_option option;
};

/* Whether this is one. Its ends go into `connection`. */
static __always_inline int read_syn(struct __sk_buff *packet, struct usher_connection *connection,
				    struct syn *syn)
{
	__u32 offset = read_addresses(packet, connection), port, *found;
	struct tcphdr header;

	if (!offset || !load(packet, offset, &header, sizeof(header)))
		return 0;
	if (!header.syn || header.ack || header.rst || header.fin || !header.source ||
	    header.doff < 5)
		return 0;
	port = bpf_ntohs(header.dest);
	found = bpf_map_lookup_elem(&services, &port);
	if (!found)
		return 0;
	syn->service = *found;
	syn->sequence = header.seq;
	connection->client_port = header.source;
	connection->server_port = header.dest;
	syn->has_token = find_option(packet, offset + sizeof(header),
				     header.doff * 4 - sizeof(header), &syn->option);
	return 1;
}

#endif
