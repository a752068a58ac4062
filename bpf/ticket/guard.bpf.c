// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Guards: an announced connection is one socket's.
 *
 * The server admits an announced connection by its two ends. A guard stands for these ends from
 * before the announcement until the server has taken the announcement back, or does not admit by it
 * any more. As long as it stands no SYN with these ends leaves this host but the one of the socket
 * that was announced. So who gets the port meanwhile does not get the connection.
 *
 * The signer enters guards and takes them away. When the signer dies, the kernel closes its
 * duplicates of sockets and frees their ports, and the announcements stand; so this program and its
 * tables are pinned, and each guard ends by the clock. What else the signer does to SYNs (hold_syn,
 * holding.h) ends with it: its program is in `holding`, an array that the kernel empties when
 * the last process that has it open is gone.
 *
 * Kernel 6.1 or later (tail calls 4.2, boot time 5.8).
 */
#include "guards.h"

/* What decides about SYNs that no guard decides about: hold_syn. Key: 0. Not pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} holding SEC(".maps");

/* SYNs that were kept back, one copy per CPU. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} kept_back SEC(".maps");

static __always_inline void count_kept_back(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&kept_back, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* Whether it is the connection that the guard was entered for. */
static __always_inline int is_for(const struct usher_guard *guard, struct bpf_sock *socket,
				  __u64 cookie)
{
	struct usher_hold *hold;

	if (guard->attempt.cookie != cookie)
		return 0;
	if (!guard->attempt.begun_ns)
		return 1;
	hold = bpf_sk_storage_get(&holds, socket, 0, 0);
	return hold && hold->begun_ns == guard->attempt.begun_ns;
}

/*
 * Hook: egress of the cgroup, because it is the one place before the wire that knows the socket of
 * a packet and may drop it, without a firewall's rule. tcp_connect() takes that for a lost packet
 * and goes on to send the SYN again. Other packets than SYNs cost a look at their socket's type and
 * state.
 *
 * Not asked is whose network namespace it is: of one of its own, a SYN with the very ends of a
 * connection that is guarded is kept back too. Kernel 4.10.
 */
SEC("cgroup_skb/egress")
int guard_syn(struct __sk_buff *packet)
{
	struct usher_connection connection __aligned = {};
	struct bpf_sock *socket = packet->sk;
	struct usher_guard *guard;

	if (!socket)
		return 1;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return 1;
	/* Raw sockets in whatever state: connect() changes it. */
	if (socket->type != SOCK_RAW) {
		if (!is_connecting(socket))
			return 1;
		ends_of(socket, &connection);
		guard = guard_of(&connection);
		if (guard) {
			if (!is_for(guard, socket, bpf_get_socket_cookie(packet))) {
				count_kept_back();
				return 0;
			}
			if (guard->released)
				return 1;
		}
	}
	bpf_tail_call(packet, &holding, 0);
	/* No signer holds anything: what was not announced is refused by the server. */
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
