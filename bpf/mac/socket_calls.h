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

/* Reads a socket, by a hook's own pointers. */
static __always_inline void read_socket(struct usher_mac_socket_call *wanted,
					const struct socket *socket, const struct sock *own)
{
	const struct sock___mac *inner = (const struct sock___mac *)own;
	__u64 address = (__u64)own;

	wanted->kind = ((const struct socket___mac *)socket)->type;
	if (!inner)
		return;
	wanted->family = inner->__sk_common.skc_family;
	wanted->protocol = inner->sk_protocol;
	if (wanted->family == AF_PACKET)
		mac_read_bound_device(&wanted->interface, &address);
}

/* Whether the policy permits a family to processes with a level. SMC is a protocol of IP, too. */
static __always_inline int is_permitted_family(int family, int protocol)
{
	const struct usher_mac_in_force *now = first_of(&in_force);
	__u32 number = family;

	if ((number == AF_INET || number == AF_INET6) && protocol == IPPROTO_SMC)
		number = AF_SMC;
	return now && number < 64 && now->families >> number & 1;
}

/* Hook: socket_create, because no socket is there without it. Modules are not asked about the
 * kernel's. */
SEC("lsm/socket_create")
int BPF_PROG(dispatch_socket_create, int family, int kind, int protocol, int is_kernels)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_create, &caller);
	struct usher_mac_socket_call wanted = {
		.family = family,
		.kind = kind,
		.protocol = protocol,
	};

	if (!asked || is_kernels)
		return 0;
	wanted.argument = is_permitted_family(family, protocol);
	return MAC_ASK_CALLER(socket_create, asked, &caller, &wanted);
}

/* Hook: socket_listen, because a socket accepts connections from then on. */
SEC("lsm/socket_listen")
int BPF_PROG(dispatch_socket_listen, struct socket *socket, int backlog)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_listen, &caller);
	struct usher_mac_socket_call wanted = { .argument = backlog };
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_listen, asked, &caller, &wanted, own);
}

/* Hook: socket_accept, because another process may have made the socket. */
SEC("lsm/socket_accept")
int BPF_PROG(dispatch_socket_accept, struct socket *socket, struct socket *fresh)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_accept, &caller);
	struct usher_mac_socket_call wanted = {};
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_accept, asked, &caller, &wanted, own);
}

/* Hook: socket_sendmsg, because a datagram has an address that no connect(2) has named. */
SEC("lsm/socket_sendmsg")
int BPF_PROG(dispatch_socket_sendmsg, struct socket *socket, struct msghdr *message, int size)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_socket_sendmsg, &caller);
	const struct msghdr___mac *sent = (const struct msghdr___mac *)message;
	struct usher_mac_socket_address wanted;
	struct usher_mac_subject subject;
	struct mac_labels labels;
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	asked = begin_socket_labels(&labels, asked, &caller, own,
				    access_at(MAC_POINT_socket_sendmsg, 0));
	if (!asked)
		return 0;
	read_subject(&subject);
	__builtin_memset(&wanted, 0, sizeof(wanted));
	read_address(&wanted, socket, own, sent->msg_name, sent->msg_name ? sent->msg_namelen : 0);
	return mac_ask_socket_sendmsg(asked, &subject, &wanted, &labels);
}

/* Hook: socket_recvmsg, because all ways of receiving pass it but
 * splice(2) and getsockopt(2) with TCP_ZEROCOPY_RECEIVE. */
SEC("lsm/socket_recvmsg")
int BPF_PROG(dispatch_socket_recvmsg, struct socket *socket, struct msghdr *message, int size,
	     int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_socket_recvmsg, &caller);
	struct usher_mac_socket_call wanted;
	struct usher_mac_subject subject;
	struct mac_labels labels;
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	asked = begin_socket_labels(&labels, asked, &caller, own,
				    access_at(MAC_POINT_socket_recvmsg, 0));
	if (!asked)
		return 0;
	read_subject(&subject);
	__builtin_memset(&wanted, 0, sizeof(wanted));
	wanted.argument = flags;
	read_socket(&wanted, socket, own);
	return mac_ask_socket_recvmsg(asked, &subject, &wanted, &labels);
}

/* Hook: socket_getsockname, because it tells a process the address. */
SEC("lsm/socket_getsockname")
int BPF_PROG(dispatch_socket_getsockname, struct socket *socket)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_getsockname, &caller);
	struct usher_mac_socket_call wanted = {};
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_getsockname, asked, &caller, &wanted, own);
}

/*
 * Whether an option may turn a TCP socket into an SMC socket, without socket_create: TCP_ULP with
 * `smc`, as the kernel has it from 5.17 on. Hooks do not see the value, but only SMC takes a socket
 * that is not connected: kTLS and ESP in TCP take one that is.
 */
static __always_inline int may_become_smc(const struct socket *socket, int level, int option)
{
	if (level != IPPROTO_TCP || option != TCP_ULP || is_permitted_family(AF_SMC, 0))
		return 0;
	return ((const struct socket___mac *)socket)->state == SS_UNCONNECTED;
}

/* Hook: socket_setsockopt, because options change what a socket does. */
SEC("lsm/socket_setsockopt")
int BPF_PROG(dispatch_socket_setsockopt, struct socket *socket, int level, int option)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_setsockopt, &caller);
	struct usher_mac_socket_call wanted = { .level = level, .option = option };
	struct sock *own;

	if (!asked)
		return 0;
	wanted.argument = may_become_smc(socket, level, option);
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_setsockopt, asked, &caller, &wanted, own);
}

/* Hook: socket_getsockopt, because one option receives what was sent (TCP_ZEROCOPY_RECEIVE). */
SEC("lsm/socket_getsockopt")
int BPF_PROG(dispatch_socket_getsockopt, struct socket *socket, int level, int option)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_getsockopt, &caller);
	struct usher_mac_socket_call wanted = { .level = level, .option = option };
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_getsockopt, asked, &caller, &wanted, own);
}

/* Hook: socket_getpeername, because it tells a process the address at the other end. */
SEC("lsm/socket_getpeername")
int BPF_PROG(dispatch_socket_getpeername, struct socket *socket)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_getpeername, &caller);
	struct usher_mac_socket_call wanted = {};
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_getpeername, asked, &caller, &wanted, own);
}

/* Hook: socket_shutdown, because it ends the connection of all who hold the socket. */
SEC("lsm/socket_shutdown")
int BPF_PROG(dispatch_socket_shutdown, struct socket *socket, int how)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_shutdown, &caller);
	struct usher_mac_socket_call wanted = { .argument = how };
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_socket(&wanted, socket, own);
	return MAC_ASK_ABOUT_SOCKET(socket_shutdown, asked, &caller, &wanted, own);
}

/* Hook: unix_stream_connect, because it knows the socket at the other end, whatever its name, and
 * the one that the other process will accept. */
SEC("lsm/unix_stream_connect")
int BPF_PROG(dispatch_unix_stream_connect, struct sock *own, struct sock *other, struct sock *fresh)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_unix_stream_connect, &caller);
	const struct sock___mac_owner *peer = bpf_core_cast(other, struct sock___mac_owner);
	struct usher_mac_peer wanted = {};
	struct usher_mac_label label;
	int error;

	if (asked) {
		wanted.kind = peer->sk_type;
		wanted.uid = peer->sk_uid.val;
		error = MAC_ASK_ABOUT_SOCKET(unix_stream_connect, asked, &caller, &wanted, other);
		if (error)
			return error;
	}
	if (!labelled_of(USHER_MAC_ALL_SLOTS))
		return 0;
	read_socket_label(&label, other);
	return are_equal(&label, &no_label) ? 0 : label_socket(fresh, &label);
}

/* Hook: unix_may_send, because it knows the socket that gets a datagram, whatever its name. */
SEC("lsm/unix_may_send")
int BPF_PROG(dispatch_unix_may_send, struct socket *own, struct socket *other)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_unix_may_send, &caller);
	const struct socket___mac_owner *peer = bpf_core_cast(other, struct socket___mac_owner);
	struct usher_mac_peer wanted = {};

	if (!asked)
		return 0;
	wanted.kind = peer->sk->sk_type;
	wanted.uid = peer->sk->sk_uid.val;
	return MAC_ASK_ABOUT_SOCKET(unix_may_send, asked, &caller, &wanted, other->sk);
}

#endif
