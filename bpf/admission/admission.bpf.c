// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Admission: the kernel's decision on a SYN.
 *
 * A connection to a service's port exists only if its four-tuple was announced by an authenticated
 * session. The keeper enters announced four-tuples into `admissions`; the program at sk_lookup
 * looks the SYN's four-tuple up and hands it to the listener of the session's user, found in
 * `listeners`. Everything else for a service's port is dropped there, which TCP answers with a
 * RST, as if nothing listened. The application never sees it, whatever it does.
 *
 * sk_lookup runs for packets that belong to no established connection and to no handshake under
 * way: a SYN, and with SYN cookies also the handshake's last ACK. So ANNOUNCED and SYN_RECEIVED
 * are admitted. The program at sockops sees the handshake's end and the connection's end, and
 * keeps the entry's state, so that the table says what is live. Established connections are never
 * looked at per packet.
 *
 *   ANNOUNCED --SYN--> SYN_RECEIVED --last ACK--> ESTABLISHED --TCP_CLOSE--> (deleted)
 *       |                   |                          ^
 *       withdrawn           withdrawn --> WITHDRAWN ---'
 *       v                                    |
 *    (deleted) <------- deadline ------------'
 *
 * Every failure refuses: no entry, late, wrong state, no listener, assignment failed.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "usher_shared.h"

/* From <sys/socket.h>, which BPF does not include. */
#define AF_INET 2
#define AF_INET6 10

/* Service ports: port (machine's order) to service id. 1024 ports; full: the keeper refuses the
 * policy. Entered before the first listener, taken out after the last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} services SEC(".maps");

/* Listeners: (service, uid) to socket. Size set by the keeper; full: no new user is admitted.
 * An entry goes by itself when the last holder of the listener closes it: then refuse. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 4096);
	__type(key, struct usher_queue);
	__type(value, __u64);
} listeners SEC(".maps");

/* Announced and live connections. Size set by the keeper; full: no connection is announced. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct usher_connection);
	__type(value, struct usher_admission);
} admissions SEC(".maps");

/* Sessions by id; read and written by user space only. Full: no session is opened. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct usher_session_id);
	__type(value, struct usher_session);
} sessions SEC(".maps");

/* enum usher_counter to count. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, USHER_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Connections that were established without an entry: the keeper cuts them. 4096 bytes hold about
 * 90; full: the connection stays uncut and is counted in USHER_UNTRACKED. It was admitted while
 * it was announced, so it is its user's; only revocation would miss it. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} untracked SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &what);

	if (counter)
		*counter += 1;
}

static __always_inline void address_v4(__u8 *to, __u32 address)
{
	__builtin_memset(to, 0, 10);
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, &address, 4);
}

/* The context is read in words of 32 bits, one by one: volatile, or the compiler joins two reads
 * into one that the verifier refuses. */
static __always_inline void address_v6(__u8 *to, const volatile __u32 *address)
{
	__u32 words[4] = { address[0], address[1], address[2], address[3] };

	__builtin_memcpy(to, words, 16);
}

static __always_inline bool step(struct usher_admission *entry, __u32 from, __u32 to)
{
	return __sync_val_compare_and_swap(&entry->state, from, to) == from;
}

/* May a SYN (or a cookie's ACK) for this entry go on? */
static __always_inline bool admitted(struct usher_admission *entry)
{
	__u64 now = bpf_ktime_get_ns();

	if (entry->state == USHER_ANNOUNCED && now > entry->deadline) {
		count(USHER_REFUSED_LATE);
		return false;
	}
	if (step(entry, USHER_ANNOUNCED, USHER_SYN_RECEIVED)) {
		entry->deadline = now + USHER_HANDSHAKE_NS;
		return true;
	}
	if (entry->state == USHER_SYN_RECEIVED)
		return true;
	count(USHER_REFUSED_STATE);
	return false;
}

/* Hook: socket lookup of the network namespace, the one place where a listener can be chosen by
 * what the packet is (kernel 5.9 on). */
SEC("sk_lookup")
int usher_admit(struct bpf_sk_lookup *ctx)
{
	struct usher_connection connection = {};
	struct usher_admission *entry;
	struct bpf_sock *listener;
	__u32 port = ctx->local_port;
	long assigned;

	if (ctx->protocol != IPPROTO_TCP || !bpf_map_lookup_elem(&services, &port))
		return SK_PASS;
	if (ctx->family == AF_INET) {
		address_v4(connection.client, ctx->remote_ip4);
		address_v4(connection.server, ctx->local_ip4);
	} else {
		address_v6(connection.client, ctx->remote_ip6);
		address_v6(connection.server, ctx->local_ip6);
	}
	connection.client_port = ctx->remote_port;
	connection.server_port = bpf_htons(port);

	entry = bpf_map_lookup_elem(&admissions, &connection);
	if (!entry) {
		count(USHER_REFUSED_UNANNOUNCED);
		return SK_DROP;
	}
	if (!admitted(entry))
		return SK_DROP;
	listener = bpf_map_lookup_elem(&listeners, &entry->queue);
	if (!listener) {
		count(USHER_REFUSED_NO_LISTENER);
		return SK_DROP;
	}
	/* This listener and no other: never one that shares its address (SO_REUSEPORT). */
	assigned = bpf_sk_assign(ctx, listener, BPF_SK_LOOKUP_F_NO_REUSEPORT);
	bpf_sk_release(listener);
	if (assigned) {
		count(USHER_REFUSED_NO_LISTENER);
		return SK_DROP;
	}
	count(USHER_ADMITTED);
	return SK_PASS;
}

static __always_inline void connection_of(struct bpf_sock_ops *ctx, struct usher_connection *to)
{
	if (ctx->family == AF_INET) {
		address_v4(to->client, ctx->remote_ip4);
		address_v4(to->server, ctx->local_ip4);
	} else {
		/* An IPv4 connection of a dual-stack listener has mapped addresses here. */
		address_v6(to->client, ctx->remote_ip6);
		address_v6(to->server, ctx->local_ip6);
	}
	/* remote_port: network's order in 32 bits; local_port: machine's order. */
	to->client_port = bpf_htons(bpf_ntohl(ctx->remote_port));
	to->server_port = bpf_htons(ctx->local_port);
}

static __always_inline void established(struct bpf_sock_ops *ctx)
{
	struct usher_connection connection = {};
	struct usher_admission *entry;
	__u32 port = ctx->local_port;

	if (!bpf_map_lookup_elem(&services, &port))
		return;
	connection_of(ctx, &connection);
	entry = bpf_map_lookup_elem(&admissions, &connection);
	if (!entry || (!step(entry, USHER_SYN_RECEIVED, USHER_ESTABLISHED) &&
		       !step(entry, USHER_WITHDRAWN, USHER_ESTABLISHED))) {
		count(USHER_UNTRACKED);
		bpf_ringbuf_output(&untracked, &connection, sizeof(connection), 0);
		return;
	}
	entry->established = bpf_ktime_get_ns();
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	count(USHER_COUNT_ESTABLISHED);
}

static __always_inline void closed(struct bpf_sock_ops *ctx)
{
	struct usher_connection connection = {};

	/* Only sockets that established() has marked come here. */
	connection_of(ctx, &connection);
	if (bpf_map_delete_elem(&admissions, &connection) == 0)
		count(USHER_COUNT_CLOSED);
}

/* Hook: TCP events of sockets whose listener was made in the keeper's cgroup, the one place that
 * sees a passive connection established and closed without looking at packets (4.16 on). */
SEC("sockops")
int usher_track(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == BPF_TCP_CLOSE)
			closed(ctx);
		break;
	}
	return 1;
}

static __always_inline bool same_session(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline void remove_entry(struct usher_connection *connection)
{
	bpf_map_delete_elem(&admissions, connection);
}

/* Run by the keeper (BPF_PROG_TEST_RUN, 5.14 on), not attached: user space cannot compare and
 * swap in a map, and a plain update would overwrite a step of the programs above.
 * Returns 1 when the entry was deleted, 0 otherwise. */
SEC("syscall")
int usher_take_step(struct usher_step *argument)
{
	struct usher_connection connection = argument->connection;
	__u8 session[16] __attribute__((aligned(8)));
	__u32 kind = argument->step;
	struct usher_admission *entry = bpf_map_lookup_elem(&admissions, &connection);

	if (!entry)
		return 0;
	if (kind == USHER_STEP_WITHDRAW) {
		__builtin_memcpy(session, argument->session, 16);
		if (!same_session(entry->session, session))
			return 0;
		if (step(entry, USHER_ANNOUNCED, USHER_DEAD)) {
			remove_entry(&connection);
			return 1;
		}
		step(entry, USHER_SYN_RECEIVED, USHER_WITHDRAWN);
		return 0;
	}
	if (kind == USHER_STEP_EXPIRE && bpf_ktime_get_ns() <= entry->deadline)
		return 0;
	/* An established connection goes by TCP_CLOSE only. */
	if (step(entry, USHER_ANNOUNCED, USHER_DEAD) ||
	    step(entry, USHER_SYN_RECEIVED, USHER_DEAD) ||
	    step(entry, USHER_WITHDRAWN, USHER_DEAD)) {
		remove_entry(&connection);
		return 1;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
