/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables that gate.bpf.c and ticket.bpf.c share: which socket's connection between two
 * endpoints may begin. They are pinned, and outlive the signer. */
#ifndef USHER_TICKET_GATES_H
#define USHER_TICKET_GATES_H

#include "usher_ends.h"
#include "usher_maps.h"
#include "usher_ticket.h"

/* Key: a socket, whose end removes the entry. Limit: the memory for options of the socket. Full:
 * the connection is not held, and the server refuses it. */
SOCKET_TABLE(holds, struct usher_hold);

/*
 * Endpoints of connections that are under decision in user space, or announced. Limit: set before
 * loading. Full: user space gets the error: a held connection stays held and is reported again, an
 * announcement is refused.
 */
HASH_TABLE(gates, 1, struct usher_connection, struct usher_gate);

/* The endpoints as the connecting side sees them. */
static __always_inline void ends_of(const struct bpf_sock *socket,
				    struct usher_connection *connection)
{
	if (socket->family == AF_INET) {
		set_mapped(connection->client_address, socket->src_ip4);
		set_mapped(connection->server_address, socket->dst_ip4);
	} else {
		set_words(connection->client_address, socket->src_ip6);
		set_words(connection->server_address, socket->dst_ip6);
	}
	connection->client_port = bpf_htons(socket->src_port);
	connection->server_port = socket->dst_port;
}

/* Whether a packet of the socket may be a SYN. */
static __always_inline int is_connecting(const struct bpf_sock *socket)
{
	return socket->state == BPF_TCP_SYN_SENT && socket->protocol == IPPROTO_TCP &&
	       (socket->family == AF_INET || socket->family == AF_INET6);
}

/* The present gate of these endpoints. */
static __always_inline struct usher_gate *gate_of(const struct usher_connection *connection)
{
	struct usher_gate *gate = bpf_map_lookup_elem(&gates, connection);

	return gate && gate->until_ns > bpf_ktime_get_boot_ns() ? gate : NULL;
}

#endif
