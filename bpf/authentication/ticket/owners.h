/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Owners of connections to the client proxy.
 *
 * A program that sends and closes at once has left before the proxy accepts. The kernel answers its
 * FIN, and keeps a TIME_WAIT entry that names no user: sock_diag(7) no longer knows whose the
 * connection was. So the owner is noted when the connection is made: by its endpoints as the
 * connecting socket sends its first SYN, and then with the very socket that the proxy accepts.
 *
 * The endpoints alone do not suffice: other sockets may use them again before the proxy looks. The
 * entry of the endpoints exists from the first SYN to the end of the handshake; if another user's
 * socket has tried to connect with the same ones meanwhile, the owner is unknown.
 */
#ifndef USHER_TICKET_OWNERS_H
#define USHER_TICKET_OWNERS_H

#include "maps.h"

/* Whether this is a connection to the proxy. */
static __always_inline int is_relayed(struct bpf_sock_ops *context,
				      const struct usher_connection *connection)
{
	struct usher_destination server __aligned = {};

	__builtin_memcpy(server.address, connection->server_address, sizeof(server.address));
	server.port = connection->server_port;
	return bpf_map_lookup_elem(&relayed, &server) &&
	       bpf_get_netns_cookie(context) == own_network;
}

/* A socket begins to connect. Its uid is the one that sock_diag shows: that of its maker. */
static __always_inline void note_connecting(struct bpf_sock_ops *context, struct bpf_sock *socket,
					    const struct usher_connection *connection)
{
	struct usher_owner owner = { .known = 1 };
	struct usher_owner *before;
	struct sock *kernels;

	if (!is_relayed(context, connection))
		return;
	kernels = (struct sock *)bpf_skc_to_tcp_sock(socket);
	if (!kernels)
		owner.known = 0;
	else
		owner.uid = kernels->sk_uid.val;
	before = bpf_map_lookup_elem(&connecting_owners, connection);
	if (before && (!before->known || before->uid != owner.uid))
		owner.known = 0;
	if (bpf_map_update_elem(&connecting_owners, connection, &owner, BPF_ANY))
		bpf_map_delete_elem(&connecting_owners, connection);
}

/* The proxy's side is established: the entry moves to its socket. */
static __always_inline void note_owner(struct bpf_sock_ops *context, struct bpf_sock *socket,
				       const struct usher_connection *connection)
{
	struct usher_owner *found, owner;

	if (!is_relayed(context, connection))
		return;
	found = bpf_map_lookup_elem(&connecting_owners, connection);
	if (!found)
		return;
	owner = *found;
	bpf_map_delete_elem(&connecting_owners, connection);
	if (owner.known)
		bpf_sk_storage_get(&owners, socket, &owner, BPF_SK_STORAGE_GET_F_CREATE);
}

#endif
