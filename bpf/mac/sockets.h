/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about sockets. */
#ifndef USHER_MAC_SOCKETS_H
#define USHER_MAC_SOCKETS_H

#include "devices.h"

#include <linux/net.h>

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
	socket_state state;
	short type;
};

#pragma clang attribute pop

/* The common beginning of struct sockaddr_in and sockaddr_in6, and the rest with the address. */
struct internet_address {
	__u16 family;
	__be16 port;
	__u8 rest[24];
};

/* An address that a process names for a socket. */
struct mac_named {
	__u64 socket; /* where the kernel has it */
	__u64 address; /* where the kernel has it */
	int length; /* of the address */
	__u32 reserved;
};

/* Reads the interfaces of a packet socket: that which the address names, or else its own. Addresses
 * of AF_PACKET and AF_XDP both have the number in the same place. */
static __always_inline void read_interfaces(struct usher_mac_socket_address *wanted,
					    const struct mac_named *by,
					    const struct internet_address *named)
{
	const struct sock___mac *own = bpf_core_cast((const void *)by->socket, struct sock___mac);
	__u32 number;

	if (wanted->family == AF_PACKET) {
		wanted->receives = mac_read_bound_device(&wanted->bound, &by->socket);
		if (!by->length) {
			wanted->interface = wanted->bound;
			return;
		}
	}
	__builtin_memcpy(&number, named->rest, sizeof(number));
	if (by->length >= 8 && number)
		read_device_numbered(&wanted->interface, own->__sk_common.skc_net.net, number);
}

/* Reads the address that a process names. Global, so that the verifier goes through it once. */
__attribute__((noinline)) int
mac_read_address(struct usher_mac_socket_address *wanted __arg_nonnull,
		 const struct mac_named *by __arg_nonnull)
{
	struct internet_address named = {};
	int length = by->length;

	/* The kernel has room for any address there. */
	if (length > 0)
		bpf_probe_read_kernel(&named, sizeof(named), (const void *)by->address);
	if (wanted->family == AF_PACKET || wanted->family == AF_XDP)
		read_interfaces(wanted, by, &named);
	if (length < (int)sizeof(named.family))
		return 0;
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
	return 0;
}

/* Reads a socket and the address that a process names. `socket` and `own` are a hook's own
 * pointers. */
static __always_inline void read_address(struct usher_mac_socket_address *wanted,
					 const struct socket *socket, const struct sock *own,
					 const void *address, int length)
{
	const struct sock___mac *inner = (const struct sock___mac *)own;

	wanted->kind = ((const struct socket___mac *)socket)->type;
	if (inner) {
		wanted->family = inner->__sk_common.skc_family;
		wanted->protocol = inner->sk_protocol;
	}
	/* Most messages name no address. */
	if (length > 0 || wanted->family == AF_PACKET || wanted->family == AF_XDP) {
		struct mac_named by = {
			.socket = (__u64)own,
			.address = (__u64)address,
			.length = length,
		};

		mac_read_address(wanted, &by);
	}
}

/* Hook: socket_bind, because the address is copied from the process by then. */
SEC("lsm/socket_bind")
int BPF_PROG(dispatch_socket_bind, struct socket *socket, struct sockaddr *address, int length)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_bind, &caller);
	struct usher_mac_socket_address wanted = {};
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_address(&wanted, socket, own, address, length);
	return MAC_ASK_ABOUT_SOCKET(socket_bind, asked, &caller, &wanted, own);
}

/* Hook: socket_connect, because the address is copied from the process by then. */
SEC("lsm/socket_connect")
int BPF_PROG(dispatch_socket_connect, struct socket *socket, struct sockaddr *address, int length)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_socket_connect, &caller);
	struct usher_mac_socket_address wanted = {};
	struct sock *own;

	if (!asked)
		return 0;
	own = socket->sk;
	read_address(&wanted, socket, own, address, length);
	return MAC_ASK_ABOUT_SOCKET(socket_connect, asked, &caller, &wanted, own);
}

#endif
