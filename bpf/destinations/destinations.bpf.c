// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Destinations: where the processes of a service may connect.
 *
 * The process that calls is looked for by its cgroup, which says its service: a descriptor may be
 * of another one, made before the process became its user, or sent to it. The service's table has
 * the address's longest prefix, which says which set of ports is permitted there, and the port's
 * longest prefix in that set. Tables are not changed but replaced: a call is decided by one of
 * them.
 */
#include <linux/bpf.h>
#include <linux/in.h>

#include "usher_kernel.h"
#include "usher_ends.h"
#include "usher_destinations.h"

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define EACCES 13

/* Of a service: a longest-prefix table from prefixes to the set of ports (of an address) or to
 * anything (of a port). Limit: user space makes it as large as what it enters. */
struct prefixes {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct usher_prefix));
	__uint(value_size, sizeof(__u32));
};

/* Which service the processes of a cgroup are of. Key: the cgroup's id. Full: user space is told,
 * and starts no process in a cgroup that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} governed SEC(".maps");

/* What a service may connect to; a service without entry is not restricted. Key: the service's
 * number. Full: user space is told, before the policy is in force. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__array(values, struct prefixes);
} permitted SEC(".maps");

/* How many calls were refused. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} refused SEC(".maps");

/* The table of the calling process's service; none when it is not restricted. A process that was
 * taken in has a cgroup of its own below its user's. */
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
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&refused, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
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

	/* The kernel takes it for an address of this host, and which one is not known here. */
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
 * Hooks: connect of the cgroup, because nothing has been sent by then: TCP also when it sends with
 * the SYN (TCP Fast Open), MPTCP's first connection, UDP. Kernel 4.17; bpf_set_retval 5.18,
 * the cgroup helpers 6.1.
 */
SEC("cgroup/connect4")
int connects4(struct bpf_sock_addr *context)
{
	return ipv4(context);
}

/* As connects4, for sockets of IPv6: also for mapped addresses. */
SEC("cgroup/connect6")
int connects6(struct bpf_sock_addr *context)
{
	return ipv6(context);
}

/* Hooks: sendmsg of the cgroup, because UDP that is not connected names its peer there. Kernel
 * 4.18. */
SEC("cgroup/sendmsg4")
int sends4(struct bpf_sock_addr *context)
{
	return ipv4(context);
}

/* As sends4, for sockets of IPv6. */
SEC("cgroup/sendmsg6")
int sends6(struct bpf_sock_addr *context)
{
	return ipv6(context);
}

/*
 * Hook: making of sockets in the cgroup, because what is sent by other protocols passes none of the
 * hooks above: ping, UDP-Lite, SCTP, raw packets. Kernel 4.10.
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
