/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads a packet: whether it is a SYN, its endpoints, its service, and the token that it carries. A
 * part of admission.bpf.c and of arriving.bpf.c. Each defines how it reads bytes: PACKET, load,
 * look, load_at_hand, is_shorter and network_protocol.
 *
 * check_token can read IPv4 with any options, IPv6 with extension headers, including atomic
 * fragments, and either behind VLAN tags. It cannot read fragments, IPsec, a routing header with
 * segments left (which holds the packet's true destination), and longer chains of headers or tags.
 * Such a packet may turn out to be TCP later, and is noted as unread. At LOCAL_IN the kernel has
 * reassembled fragments, and a packet that IPsec carried comes by again after its decryption.
 */
#ifndef USHER_SYN_BPF_H
#define USHER_SYN_BPF_H

#include <linux/if_ether.h>
#include <linux/tcp.h>

#include "reading.bpf.h"
#include "usher_packet.h"
#include "usher_token.h"

#define OPTIONS_SIZE 40

/* Whether this address must not be in the table: it is ::, or in an IPv6 packet one that means IPv4
 * (::ffff:0:0/96). User space could not read such an entry. */
static __always_inline int is_strange(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;

	if (words[0] || words[1])
		return 0;
	return words[2] == bpf_htonl(0x0000ffff) || (!words[2] && !words[3]);
}

/*
 * Results for a packet without a TCP header at a known offset. All offsets are larger. The verifier
 * knows that some offsets are divisible by 4. If these numbers were not, it would take the
 * resulting range for a mistake of its own, warn, and taint the kernel (6.18).
 */
#define NOT_TCP 0
#define UNREADABLE 4
#define UNREADABLE_ADDRESS 8

/* Protocols that never become TCP at this host. */
static __always_inline int is_something_else(__u8 protocol)
{
	return protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP || protocol == IPPROTO_IGMP ||
	       protocol == IPPROTO_ICMPV6;
}

/* The first headers of most packets. */
union heads {
	struct {
		struct iphdr ip;
		struct tcphdr tcp;
	} v4;
	struct {
		struct ipv6hdr ip;
		struct tcphdr tcp;
	} v6;
};

enum loaded { LOADED_NOTHING, LOADED_IP, LOADED_BOTH };

/* Loads both headers at once, or only the first one. */
static __always_inline enum loaded load_heads(PACKET *packet, __u32 offset, void *to, __u32 ip_size)
{
	if (load_at_hand(packet, offset, to, ip_size + sizeof(struct tcphdr)))
		return LOADED_BOTH;
	return load(packet, offset, to, ip_size) ? LOADED_IP : LOADED_NOTHING;
}

/* A short packet cannot be loaded, and the kernel drops it. Another packet was not loaded because
 * memory was short. */
static __always_inline __u32 not_loaded(PACKET *packet, __u32 ip_size)
{
	return is_shorter(packet, ip_size) ? NOT_TCP : UNREADABLE_ADDRESS;
}

/* Reads addresses and TCP header of a packet. Returns the header's offset, or one of the above. */
static __always_inline __u32 read_headers(PACKET *packet, struct usher_connection *connection,
					  struct tcphdr *header)
{
	struct packet_walk walk = { .packet = packet };
	const struct tcphdr *next;
	enum loaded loaded;
	union heads heads;
	__be16 protocol = network_protocol(packet, &walk.offset);

	if (protocol == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = &heads.v4.ip;

		loaded = load_heads(packet, walk.offset, &heads, sizeof(*ip));
		if (loaded == LOADED_NOTHING)
			return not_loaded(packet, sizeof(*ip));
		walk_ipv4(&walk, ip);
		if (walk.state & PACKET_IS_BROKEN || is_something_else(walk.protocol) ||
		    !ip->saddr || !ip->daddr)
			return NOT_TCP;
		set_mapped(connection->client_address, ip->saddr);
		set_mapped(connection->server_address, ip->daddr);
		next = ip->ihl == 5 ? &heads.v4.tcp : NULL;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = &heads.v6.ip;

		loaded = load_heads(packet, walk.offset, &heads, sizeof(*ip));
		if (loaded == LOADED_NOTHING)
			return not_loaded(packet, sizeof(*ip));
		walk_ipv6(&walk, ip);
		if (walk.state & PACKET_IS_BROKEN || is_something_else(walk.protocol) ||
		    walk.protocol == IPPROTO_NONE)
			return NOT_TCP;
		set_words(connection->client_address, ip->saddr.in6_u.u6_addr32);
		set_words(connection->server_address, ip->daddr.in6_u.u6_addr32);
		if (is_strange(connection->client_address) ||
		    is_strange(connection->server_address))
			return NOT_TCP;
		next = ip->nexthdr == IPPROTO_TCP ? &heads.v6.tcp : NULL;
	} else if (protocol == bpf_htons(ETH_P_8021Q)) {
		return UNREADABLE_ADDRESS;
	} else {
		return NOT_TCP;
	}
	/* With segments left in its routing header, a packet's destination is another one. */
	if (walk.protocol != IPPROTO_TCP || walk.state)
		return UNREADABLE;
	if (next && loaded == LOADED_BOTH) {
		*header = *next;
		return walk.offset;
	}
	return load(packet, walk.offset, header, sizeof(*header)) ? walk.offset : UNREADABLE;
}

struct options {
	__u32 offset;
	__u32 size; /* of all */
	__u32 found; /* whether ours is at `offset` */
	__u8 bytes[OPTIONS_SIZE];
};

/* One TCP option, for bpf_loop: a plain loop has too many paths for the verifier. */
static long next_option(__u32 index, struct options *options)
{
	__u32 offset = options->offset;
	__u8 kind, size;

	/* Our option would no longer fit. */
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
static __attribute__((noinline)) int find_option(PACKET *packet, __u32 offset, __u32 size,
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

/* The note about a TCP packet with this header. */
static __always_inline enum reading reading_of(const struct tcphdr *header)
{
	if (header->rst || header->doff < 5 || !header->source)
		return READ_OTHER;
	if (header->syn)
		return header->ack || header->fin ? READ_OTHER : READ_SYN;
	return header->ack ? READ_LATER : READ_OTHER;
}

/* Notes the packet. Returns whether it is a SYN to a service; fills `connection`. */
static __always_inline int read_syn(PACKET *packet, struct usher_connection *connection,
				    struct syn *syn)
{
	struct tcphdr header;
	__u32 offset = read_headers(packet, connection, &header), port, *found;
	enum reading reading;

	if (offset == NOT_TCP)
		return 0;
	if (offset <= UNREADABLE_ADDRESS) {
		take_note(connection, 0, offset == UNREADABLE ? UNREAD : UNREAD_ANYONES);
		return 0;
	}
	connection->client_port = header.source;
	connection->server_port = header.dest;
	reading = reading_of(&header);
	take_note(connection, header.seq, reading);
	if (reading != READ_SYN)
		return 0;
	port = bpf_ntohs(header.dest);
	found = bpf_map_lookup_elem(&services, &port);
	if (!found)
		return 0;
	syn->service = *found;
	syn->sequence = header.seq;
	syn->has_token = find_option(packet, offset + sizeof(header),
				     header.doff * 4 - sizeof(header), &syn->option);
	return 1;
}

#endif
