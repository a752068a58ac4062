// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Destinations restrict where the processes of a service may connect.
 *
 * The calling process's cgroup determines its service. The descriptor's cgroup does not: the
 * descriptor may have been made before the process became its user, or sent to it. In the service's
 * table the address's longest prefix selects the set of permitted ports, and the port's longest
 * prefix in that set decides. Tables are not changed but replaced, so one table decides each call.
 */

#include "usher_destinations.h"
#include "usher_ends.h"
#include "usher_kernel.h"
#include "usher_maps.h"

/* A service's longest-prefix table from prefixes to the set of ports (for an address) or to any
 * value (for a port). Limit: user space makes it as large as its entries. */
struct prefixes {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct usher_prefix));
	__uint(value_size, sizeof(__u32));
};

/* The service of a cgroup's processes. Key: the cgroup's id. Full: user space gets the error, and
 * starts no process in a cgroup without a place. */
SPARSE_TABLE(governed, 262144, __u64, __u32);

/* The destinations of a service; a service without an entry is not restricted. Key: the service's
 * number. Full: user space gets the error, before the policy is in force. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__array(values, struct prefixes);
} permitted SEC(".maps");

/* The number of refused calls. Key: 0. */
CPU_TABLE(refused, 1, __u64);

/* The table of the calling process's service; none if it is not restricted. An adopted process has
 * a cgroup of its own below its user's. */
static __always_inline void *own_table(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 group = bpf_get_current_cgroup_id();
	__u32 *service = bpf_map_lookup_elem(&governed, &group);

	if (!service) {
		group = bpf_get_current_ancestor_cgroup_id(task->cgroups->dfl_cgrp->level - 1);
		service = bpf_map_lookup_elem(&governed, &group);
	}
	return service ? bpf_map_lookup_elem(&permitted, service) : 0;
}

static __always_inline int refuse(void)
{
	count_up(first_of(&refused));
	bpf_set_retval(-EACCES);
	return 0;
}

static __always_inline int decide(void *table, struct usher_prefix *to, __be16 port)
{
	struct usher_prefix at = {};
	__u32 *ports = bpf_map_lookup_elem(table, to);

	if (!ports)
		return refuse();
	at.kind = *ports;
	at.length = 8 * (sizeof(at.kind) + sizeof(port));
	__builtin_memcpy(at.bytes, &port, sizeof(port));
	return bpf_map_lookup_elem(table, &at) ? 1 : refuse();
}

static __always_inline int to_ipv4(void *table, __be32 address, __be16 port)
{
	struct usher_prefix to = {};

	/* 0.0.0.0 means an address of this host; which one is unknown here. */
	if (!address)
		return refuse();
	to.kind = USHER_IPV4;
	to.length = 8 * (sizeof(to.kind) + sizeof(address));
	__builtin_memcpy(to.bytes, &address, sizeof(address));
	return decide(table, &to, port);
}

static __always_inline int ipv4(struct bpf_sock_addr *context)
{
	void *table = own_table();

	return table ? to_ipv4(table, context->user_ip4, (__be16)context->user_port) : 1;
}

static __always_inline int ipv6(struct bpf_sock_addr *context)
{
	struct usher_prefix to = {};
	void *table = own_table();
	__u32 words[4];
	__be16 port;

	if (!table)
		return 1;
	set_words((__u8 *)words, context->user_ip6);
	port = (__be16)context->user_port;
	if (!words[0] && !words[1] && words[2] == bpf_htonl(0x0000ffff))
		return to_ipv4(table, words[3], port);
	if (!words[0] && !words[1] && !words[2] && !words[3])
		return refuse();
	to.kind = USHER_IPV6;
	to.length = 8 * (sizeof(to.kind) + sizeof(words));
	__builtin_memcpy(to.bytes, words, sizeof(words));
	return decide(table, &to, port);
}

/*
 * Hooks: connect of the cgroup, because nothing has been sent by then: TCP, even with data in the
 * SYN (TCP Fast Open), MPTCP's first connection, UDP. Kernel 4.17; bpf_set_retval 5.18, the cgroup
 * helpers 6.1.
 */
SEC("cgroup/connect4")
int connects4(struct bpf_sock_addr *context)
{
	return ipv4(context);
}

/* Like connects4, for IPv6 sockets, including mapped addresses. */
SEC("cgroup/connect6")
int connects6(struct bpf_sock_addr *context)
{
	return ipv6(context);
}

/* Hooks: sendmsg of the cgroup, because unconnected UDP names its peer there. Kernel 4.18. */
SEC("cgroup/sendmsg4")
int sends4(struct bpf_sock_addr *context)
{
	return ipv4(context);
}

/* Like sends4, for IPv6 sockets. */
SEC("cgroup/sendmsg6")
int sends6(struct bpf_sock_addr *context)
{
	return ipv6(context);
}

/*
 * Hook: creation of sockets in the cgroup, because other protocols pass none of the hooks above:
 * ping, UDP-Lite, SCTP, raw packets. Kernel 4.10.
 */
SEC("cgroup/sock_create")
int makes(struct bpf_sock *socket)
{
	__u32 type = socket->type, protocol = socket->protocol;

	if (type == SOCK_STREAM && (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP))
		return 1;
	if (type == SOCK_DGRAM && protocol == IPPROTO_UDP)
		return 1;
	return own_table() ? refuse() : 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
