/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about what is done with sockets after and before they have an address. */
#ifndef USHER_MAC_SOCKET_CALLS_H
#define USHER_MAC_SOCKET_CALLS_H

#include "object_labels.h"
#include "sockets.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock___mac_owner {
	struct sock_common___mac __sk_common;
	__u16 sk_type;
	kuid_t sk_uid;
};

struct socket___mac_owner {
	struct sock___mac_owner *sk;
};

struct msghdr___mac {
	void *msg_name;
	int msg_namelen;
};

#pragma clang attribute pop

/* Reads a socket. */
static __always_inline void read_socket(struct usher_mac_socket_call *wanted, struct socket *socket)
{
	const struct socket___mac *own = bpf_core_cast(socket, struct socket___mac);

	wanted->family = own->sk->__sk_common.skc_family;
	wanted->kind = own->type;
	wanted->protocol = own->sk->sk_protocol;
	if (wanted->family == AF_PACKET)
		read_bound_device(&wanted->interface, own->sk);
}

/* Hook: socket_create, because no socket is there without it. Modules are not asked about the
 * kernel's. */
SEC("lsm/socket_create")
int BPF_PROG(dispatch_socket_create, int family, int kind, int protocol, int is_kernels)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_create);
	struct usher_mac_socket_call wanted = {
		.family = family,
		.kind = kind,
		.protocol = protocol,
	};

	if (!asked || is_kernels)
		return 0;
	return MAC_ASK_CALLER(socket_create, asked, &wanted);
}

/* Hook: socket_listen, because a socket accepts connections from then on. */
SEC("lsm/socket_listen")
int BPF_PROG(dispatch_socket_listen, struct socket *socket, int backlog)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_listen);
	struct usher_mac_socket_call wanted = { .argument = backlog };

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_listen, asked, &wanted, socket->sk);
}

/* Hook: socket_accept, because another process may have made the socket. */
SEC("lsm/socket_accept")
int BPF_PROG(dispatch_socket_accept, struct socket *socket, struct socket *fresh)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_accept);
	struct usher_mac_socket_call wanted = {};

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_accept, asked, &wanted, socket->sk);
}

/* Hook: socket_sendmsg, because a datagram has an address that no connect(2) has named. */
SEC("lsm/socket_sendmsg")
int BPF_PROG(dispatch_socket_sendmsg, struct socket *socket, struct msghdr *message, int size)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_sendmsg);
	const struct msghdr___mac *sent = bpf_core_cast(message, struct msghdr___mac);
	struct usher_mac_socket_address wanted = {};

	if (!asked)
		return 0;
	read_address(&wanted, socket, sent->msg_name, sent->msg_name ? sent->msg_namelen : 0);
	return MAC_ASK_ABOUT_SOCKET(socket_sendmsg, asked, &wanted, socket->sk);
}

/* Hook: socket_recvmsg, because all ways of receiving pass it but
 * splice(2) and getsockopt(2) with TCP_ZEROCOPY_RECEIVE. */
SEC("lsm/socket_recvmsg")
int BPF_PROG(dispatch_socket_recvmsg, struct socket *socket, struct msghdr *message, int size,
	     int flags)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_recvmsg);
	struct usher_mac_socket_call wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_recvmsg, asked, &wanted, socket->sk);
}

/* Hook: socket_getsockname, because it tells a process the address. */
SEC("lsm/socket_getsockname")
int BPF_PROG(dispatch_socket_getsockname, struct socket *socket)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_getsockname);
	struct usher_mac_socket_call wanted = {};

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_getsockname, asked, &wanted, socket->sk);
}

/* Hook: socket_setsockopt, because options change what a socket does. */
SEC("lsm/socket_setsockopt")
int BPF_PROG(dispatch_socket_setsockopt, struct socket *socket, int level, int option)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_setsockopt);
	struct usher_mac_socket_call wanted = { .level = level, .option = option };

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_setsockopt, asked, &wanted, socket->sk);
}

/* Hook: socket_getsockopt, because one option receives what was sent (TCP_ZEROCOPY_RECEIVE). */
SEC("lsm/socket_getsockopt")
int BPF_PROG(dispatch_socket_getsockopt, struct socket *socket, int level, int option)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_getsockopt);
	struct usher_mac_socket_call wanted = { .level = level, .option = option };

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_getsockopt, asked, &wanted, socket->sk);
}

/* Hook: socket_getpeername, because it tells a process the address at the other end. */
SEC("lsm/socket_getpeername")
int BPF_PROG(dispatch_socket_getpeername, struct socket *socket)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_getpeername);
	struct usher_mac_socket_call wanted = {};

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_getpeername, asked, &wanted, socket->sk);
}

/* Hook: socket_shutdown, because it ends the connection of all who hold the socket. */
SEC("lsm/socket_shutdown")
int BPF_PROG(dispatch_socket_shutdown, struct socket *socket, int how)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_shutdown);
	struct usher_mac_socket_call wanted = { .argument = how };

	if (!asked)
		return 0;
	read_socket(&wanted, socket);
	return MAC_ASK_ABOUT_SOCKET(socket_shutdown, asked, &wanted, socket->sk);
}

/* Hook: unix_stream_connect, because it knows the socket at the other end, whatever its name, and
 * the one that the other process will accept. */
SEC("lsm/unix_stream_connect")
int BPF_PROG(dispatch_unix_stream_connect, struct sock *own, struct sock *other, struct sock *fresh)
{
	__u64 asked = modules_about_caller(MAC_POINT_unix_stream_connect);
	const struct sock___mac_owner *peer = bpf_core_cast(other, struct sock___mac_owner);
	struct usher_mac_peer wanted = {};
	struct usher_mac_label label;
	int error;

	if (asked) {
		wanted.kind = peer->sk_type;
		wanted.uid = peer->sk_uid.val;
		error = MAC_ASK_ABOUT_SOCKET(unix_stream_connect, asked, &wanted, other);
		if (error)
			return error;
	}
	if (!labelled_of(~0ULL))
		return 0;
	read_socket_label(&label, other);
	return are_equal(&label, &no_label) ? 0 : label_socket(fresh, &label);
}

/* Hook: unix_may_send, because it knows the socket that gets a datagram, whatever its name. */
SEC("lsm/unix_may_send")
int BPF_PROG(dispatch_unix_may_send, struct socket *own, struct socket *other)
{
	__u64 asked = modules_about_caller(MAC_POINT_unix_may_send);
	const struct socket___mac_owner *peer = bpf_core_cast(other, struct socket___mac_owner);
	struct usher_mac_peer wanted = {};

	if (!asked)
		return 0;
	wanted.kind = peer->sk->sk_type;
	wanted.uid = peer->sk->sk_uid.val;
	return MAC_ASK_ABOUT_SOCKET(unix_may_send, asked, &wanted, other->sk);
}

#endif
