// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Ports reserve the TCP ports that the policy assigns.
 *
 * Only the service may bind its port, and only the local proxy may bind the proxy's: any other
 * process there would keep the service from starting, or pass for another host while the proxy is
 * not running. Root may bind everything, as it may read everything.
 */
#include <linux/errno.h>

#include "usher_ends.h"
#include "usher_maps.h"
#include "usher_ports.h"

/* The network namespace of these ports: that of the loader, set before loading. */
const volatile __u64 own_network = 0;

/* Key: a port. Limit: every port there is. */
SPARSE_TABLE(ports, 65536, __u32, struct usher_port);

/* The user who may bind a port to one address; 0: only root. Full: user space gets the error, and
 * every user may bind the ports without an entry. */
SPARSE_TABLE(addresses, 16384, struct usher_bound, __u32);

/* The number of refused calls. Key: 0. */
CPU_TABLE(refused, 1, __u64);

static __always_inline int is_any(const __u8 address[16])
{
	const __u32 *words = (const __u32 *)address;
	__u32 prefix = words[2];

	return !words[0] && !words[1] && !words[3] && (!prefix || prefix == bpf_htonl(0x0000ffff));
}

/* Nobody else may bind a port that is reserved at one address to all addresses together: a socket
 * bound there would take the port at that address, too. */
static __always_inline int may_bind(const struct usher_bound *bound, __u32 uid)
{
	struct usher_port *port = bpf_map_lookup_elem(&ports, &bound->port);
	__u32 *owner;

	if (!port || !uid)
		return 1;
	if (port->all || is_any(bound->address))
		return uid == port->uid;
	owner = bpf_map_lookup_elem(&addresses, bound);
	return !owner || uid == *owner;
}

static __always_inline int decide(const struct usher_bound *bound)
{
	if (may_bind(bound, (__u32)bpf_get_current_uid_gid()))
		return 1;
	count_up(first_of(&refused));
	bpf_set_retval(-EACCES);
	return 0;
}

/* Whether the call is about TCP of this host. */
#define IS_OURS(context)                                                                           \
	((context)->type == SOCK_STREAM && (context)->protocol == IPPROTO_TCP &&                   \
	 bpf_get_netns_cookie(context) == own_network)

/*
 * Hook: before bind of the cgroup, because a later refusal leaves the port taken for a moment, in
 * which its owner could get EADDRINUSE. Kernel 4.17; bpf_set_retval 5.18.
 */
SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *context)
{
	struct usher_bound bound __aligned = {};

	if (!IS_OURS(context))
		return 1;
	set_mapped(bound.address, context->user_ip4);
	bound.port = bpf_ntohs(context->user_port);
	return decide(&bound);
}

/* Like bind4, for IPv6 sockets, including mapped addresses. Kernel 4.17. */
SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *context)
{
	struct usher_bound bound __aligned = {};

	if (!IS_OURS(context))
		return 1;
	set_words(bound.address, context->user_ip6);
	bound.port = bpf_ntohs(context->user_port);
	return decide(&bound);
}

/*
 * Hook: after bind of the cgroup, because the kernel has by then chosen the port if it was asked
 * to. A refusal frees the port. listen() and connect() on an unbound socket take a port without
 * this hook: one of net.ipv4.ip_local_port_range. Kernel 4.17; bpf_set_retval 5.18.
 */
SEC("cgroup/post_bind4")
int bound4(struct bpf_sock *socket)
{
	struct usher_bound bound __aligned = {};

	if (!IS_OURS(socket))
		return 1;
	set_mapped(bound.address, socket->src_ip4);
	bound.port = socket->src_port;
	return decide(&bound);
}

/* Like bound4, for IPv6 sockets, including mapped addresses. Kernel 4.17. */
SEC("cgroup/post_bind6")
int bound6(struct bpf_sock *socket)
{
	struct usher_bound bound __aligned = {};

	if (!IS_OURS(socket))
		return 1;
	set_words(bound.address, socket->src_ip6);
	bound.port = socket->src_port;
	return decide(&bound);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
