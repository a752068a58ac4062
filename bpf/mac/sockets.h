/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about sockets. */
#ifndef USHER_MAC_SOCKETS_H
#define USHER_MAC_SOCKETS_H

#include "devices.h"

#define AF_SMC 43

#define AF_INET 2
#define AF_INET6 10

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common___mac {
	unsigned short skc_family;
	struct network_of___mac skc_net;
};

struct sock___mac {
	struct sock_common___mac __sk_common;
	__u16 sk_protocol;
};

struct socket___mac {
	short type;
	struct sock___mac *sk;
};

#pragma clang attribute pop

/* The common beginning of struct sockaddr_in and sockaddr_in6, and the rest with the address. */
struct internet_address {
	__u16 family;
	__be16 port;
	__u8 rest[24];
};

/* Reads the interfaces of a packet socket: that which the address names, or else its own. Addresses
 * of AF_PACKET and AF_XDP both have the number in the same place. */
static __always_inline void read_interfaces(struct usher_mac_socket_address *wanted,
					    const struct socket___mac *socket,
					    const struct internet_address *named, int length)
{
	__u32 number;

	if (wanted->family == AF_PACKET) {
		wanted->receives = read_bound_device(&wanted->bound, socket->sk);
		if (!length) {
			wanted->interface = wanted->bound;
			return;
		}
	}
	__builtin_memcpy(&number, named->rest, sizeof(number));
	if (length >= 8 && number)
		read_device_numbered(&wanted->interface, socket->sk->__sk_common.skc_net.net,
				     number);
}

/* Reads a socket and the address that a process names. */
static __always_inline void read_address(struct usher_mac_socket_address *wanted,
					 struct socket *socket, struct sockaddr *address,
					 int length)
{
	const struct socket___mac *own = bpf_core_cast(socket, struct socket___mac);
	struct internet_address named = {};

	wanted->family = own->sk->__sk_common.skc_family;
	wanted->kind = own->type;
	wanted->protocol = own->sk->sk_protocol;
	/* The kernel has room for any address there. */
	bpf_probe_read_kernel(&named, sizeof(named), address);
	if (wanted->family == AF_PACKET || wanted->family == AF_XDP)
		read_interfaces(wanted, own, &named, length);
	if (length < (int)sizeof(named.family))
		return;
	wanted->address_family = named.family;
	/* bind(2) takes AF_UNSPEC for AF_INET, which must not hide a port. */
	if (length >= 8 &&
	    (named.family == AF_INET ||
	     (!named.family && (wanted->family == AF_INET || wanted->family == AF_SMC)))) {
		wanted->port = __builtin_bswap16(named.port);
		wanted->address[10] = 0xff;
		wanted->address[11] = 0xff;
		__builtin_memcpy(wanted->address + 12, named.rest, 4);
	} else if (length >= 24 && named.family == AF_INET6) {
		wanted->port = __builtin_bswap16(named.port);
		__builtin_memcpy(wanted->address, named.rest + 4, 16);
	}
}

/* Hook: socket_bind, because the address is copied from the process by then. */
SEC("lsm/socket_bind")
int BPF_PROG(dispatch_socket_bind, struct socket *socket, struct sockaddr *address, int length)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_bind);
	struct usher_mac_socket_address wanted = {};

	if (!asked)
		return 0;
	read_address(&wanted, socket, address, length);
	return MAC_ASK_ABOUT_SOCKET(socket_bind, asked, &wanted, socket->sk);
}

/* Hook: socket_connect, because the address is copied from the process by then. */
SEC("lsm/socket_connect")
int BPF_PROG(dispatch_socket_connect, struct socket *socket, struct sockaddr *address, int length)
{
	__u64 asked = modules_about_caller(MAC_POINT_socket_connect);
	struct usher_mac_socket_address wanted = {};

	if (!asked)
		return 0;
	read_address(&wanted, socket, address, length);
	return MAC_ASK_ABOUT_SOCKET(socket_connect, asked, &wanted, socket->sk);
}

#endif
