// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Admission decides which TCP connections may reach a service, and which user's queue takes them.
 *
 * A connection has an entry because the keeper announced it by its two endpoints before the client
 * connected, or because its SYN carried a valid token (check_token, token.bpf.h). The life of the
 * entry:
 *
 *     ANNOUNCED ---- SYN ----> SYN_RECEIVED -- handshake --> ESTABLISHED
 *         |      choose_queue       |      done: follow       ^      |
 *     withdrawn,                withdrawn                     |    closed:
 *     expired                       v                         |    follow
 *         v                     WITHDRAWN --------------------'      v
 *      removed                                                    removed
 *
 * choose_queue runs when a SYN (or the ACK that answers a SYN cookie) looks for a listener. For a
 * port of a service it admits only a connection that is ANNOUNCED or SYN_RECEIVED and not expired,
 * and assigns it to the listener of (service, uid); anything else gets SK_DROP, which the client
 * sees as a RST. A token's entry is for one SYN: choose_queue admits only a packet that check_token
 * has identified as that SYN (reading.bpf.h). Every failure inside the program refuses. Packets of
 * established connections never come here.
 *
 * follow keeps the entry up to date from then on. It reports a connection that reached a service
 * without an entry, or with a sequence number that its token's SYN did not have, so that user space
 * cuts it.
 *
 * check_token runs before choose_queue, on every incoming packet: the program of arriving.bpf.c
 * where the kernel accepts it, otherwise the one below. It makes the entry of a connection whose
 * SYN carries a valid token, replacing an older one of another connection; it ensures that an entry
 * is for one SYN and its copies; and it notes what it has read.
 *
 * remove makes the state changes of user space. User space cannot make them itself: between reading
 * an entry and writing it the connection may be established, and an overwritten ESTABLISHED would
 * hide a living connection from revocation.
 *
 * Several CPUs and user space change an entry at the same time, and the kernel may give the memory
 * of a deleted entry to another announcement while a program still reads it. So the state shares
 * one 64-bit word with the number of the announcement (`mark`), and all changes are
 * compare-and-exchange on that word. The CPU that changed it to REMOVED deletes the entry. Code
 * that acts on an entry's contents looks the key up again afterwards, and must find the same
 * announcement.
 *
 * Kernel 6.1 or later (sk_lookup 5.9, atomic compare-and-exchange 5.12, syscall programs 5.14,
 * ingress_ifindex 5.17).
 */
#include "entries.bpf.h"
#include "ingress.bpf.h"
#include "token.bpf.h"
#include "usher_layout.h"

/*
 * The queues. Key: service and user; value: the listening socket (read back: its cookie).
 * Limit: set before loading. Full: user space gets the error, and the user is not served.
 * An entry vanishes when the last holder closes the listener: refused.
 */
USHER_MAP(listeners, SOCKHASH, 0, 1, struct usher_target, __u64);

/*
 * Open sessions, which these programs do not use. Key: session id.
 * Limit: set before loading. Full: user space gets the error, and the session is refused.
 */
HASH_TABLE(sessions, 1, struct usher_session_id, struct usher_session);

/*
 * Certificates of open sessions, which these programs do not use either. Key: session id.
 * Limit: that of sessions. Full: user space gets the error, and the session is refused.
 */
SPARSE_TABLE(certificates, 1, struct usher_session_id, struct usher_certificate);

static __always_inline int lookup_connection(struct bpf_sk_lookup *context,
					     struct usher_connection *connection)
{
	if (!SET_ADDRESSES(connection, context, remote, local))
		return 0;
	connection->client_port = context->remote_port;
	connection->server_port = bpf_htons(context->local_port);
	return 1;
}

/*
 * Puts the announcement numbered in `mark` into SYN_RECEIVED. Tries twice, because another CPU may
 * take a copy of the same SYN meanwhile: then the state is already SYN_RECEIVED, and both pass.
 */
static __always_inline int take_syn(struct usher_admission *entry,
				    const struct usher_connection *connection, __u64 mark)
{
	if (exchange(entry, mark, USHER_SYN_RECEIVED))
		return stands_under(connection, mark);
	mark = with_state(mark, USHER_SYN_RECEIVED);
	return exchange(entry, mark, USHER_SYN_RECEIVED) && stands_under(connection, mark);
}

/*
 * Hook: sk_lookup of the network namespace, because every SYN passes it, by any address and
 * interface, and it can choose the listener. Kernel 5.9.
 */
SEC("sk_lookup")
int choose_queue(struct bpf_sk_lookup *context)
{
	struct usher_connection connection __aligned = {};
	struct usher_admission *entry;
	struct usher_target target;
	struct bpf_sock *listener;
	__u32 port = context->local_port;
	__u32 *service;
	__u64 mark, expires_ns;
	long failed;

	if (context->protocol != IPPROTO_TCP)
		return SK_PASS;
	service = bpf_map_lookup_elem(&services, &port);
	if (!service)
		return SK_PASS;
	/* Not a packet but a query, of sock_diag or of another BPF program. The answer must not be
	 * a listener (SOCK_DESTROY would close it), and a query must not use up the announcement.
	 */
	if (!context->ingress_ifindex)
		return SK_DROP;

	if (!lookup_connection(context, &connection))
		return SK_DROP;
	entry = bpf_map_lookup_elem(&admissions, &connection);
	if (!entry)
		return COUNTED(refused_unannounced, SK_DROP);
	mark = *(volatile __u64 *)&entry->mark;
	expires_ns = entry->expires_ns;
	target = entry->target;
	if ((state_of(mark) != USHER_ANNOUNCED && state_of(mark) != USHER_SYN_RECEIVED) ||
	    target.service != *service)
		return COUNTED(refused_state, SK_DROP);
	if (expires_ns <= bpf_ktime_get_boot_ns())
		return COUNTED(refused_late, SK_DROP);

	/* `by_token` and `syn` are read after the mark: they belong to the mark's announcement if
	 * take_syn exchanges the mark. */
	if (!is_in_hand(&connection, state_of(mark), *(volatile __u32 *)&entry->by_token,
			*(volatile __u64 *)&entry->syn))
		return COUNTED(refused_unread, SK_DROP);

	listener = bpf_map_lookup_elem(&listeners, &target);
	if (!listener)
		return COUNTED(refused_no_listener, SK_DROP);
	if (!take_syn(entry, &connection, mark)) {
		bpf_sk_release(listener);
		return COUNTED(refused_state, SK_DROP);
	}
	/* Assigns this listener, never one that shares its address (SO_REUSEPORT). */
	failed = bpf_sk_assign(context, listener, BPF_SK_LOOKUP_F_NO_REUSEPORT);
	bpf_sk_release(listener);
	if (failed)
		return COUNTED(refused_no_listener, SK_DROP);
	return COUNTED(admitted, SK_PASS);
}

/* The endpoints as the accepting side sees them. The local port comes in host, the remote one in
 * network byte order. */
static __always_inline int accepted_connection(struct bpf_sock_ops *context,
					       struct usher_connection *connection)
{
	if (!SET_ADDRESSES(connection, context, remote, local))
		return 0;
	connection->client_port = bpf_htons(bpf_ntohl(context->remote_port));
	connection->server_port = bpf_htons(context->local_port);
	return 1;
}

/* Establishes the entry of the connection whose SYN had this number. Returns whether it had one. */
static __always_inline int establish(const struct usher_connection *connection, __be32 sequence)
{
	struct usher_admission *entry = bpf_map_lookup_elem(&admissions, connection);
	__u64 mark;

	/* Twice, because a withdrawal may come between read and exchange. A withdrawal comes once:
	 * nothing leads back from WITHDRAWN. */
	for (int attempt = 0; attempt < 2; attempt++) {
		if (!entry)
			return 0;
		mark = *(volatile __u64 *)&entry->mark;
		if (state_of(mark) != USHER_SYN_RECEIVED && state_of(mark) != USHER_WITHDRAWN)
			return 0;
		if (*(volatile __u64 *)&entry->syn &&
		    *(volatile __u64 *)&entry->syn != known_syn(sequence))
			return 0;
		if (exchange(entry, mark, USHER_ESTABLISHED)) {
			if (!stands_under(connection, mark))
				return 0;
			entry->established_ns = bpf_ktime_get_boot_ns();
			if (entry->by_token)
				count_outstanding(&entry->target, -1);
			return 1;
		}
	}
	return 0;
}

static __always_inline void established(struct bpf_sock_ops *context)
{
	struct usher_connection connection __aligned = {};
	__u32 port = context->local_port;

	if (!bpf_map_lookup_elem(&services, &port))
		return;
	if (!accepted_connection(context, &connection))
		return;
	/* No data is received yet: the next number expected is the one after the SYN's. */
	if (establish(&connection, bpf_htonl(context->rcv_nxt - 1))) {
		bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags |
						       BPF_SOCK_OPS_STATE_CB_FLAG);
		COUNT(established);
		return;
	}
	COUNT(untracked);
	bpf_ringbuf_output(&untracked, &connection, sizeof(connection), 0);
}

static __always_inline void closed(struct bpf_sock_ops *context)
{
	struct usher_connection connection __aligned = {};
	struct usher_admission *entry;
	__u64 mark;

	if (!accepted_connection(context, &connection))
		return;
	entry = bpf_map_lookup_elem(&admissions, &connection);
	if (!entry)
		return;
	mark = *(volatile __u64 *)&entry->mark;
	if (state_of(mark) == USHER_ESTABLISHED && exchange(entry, mark, USHER_REMOVED)) {
		bpf_map_delete_elem(&admissions, &connection);
		COUNT(closed);
	}
}

/*
 * Hook: sockops of the cgroup in which the keeper makes its listeners, because accepted connections
 * inherit the listener's cgroup in any accepting process, and no other connection of the machine is
 * affected. State callbacks are requested per connection. Kernel 4.16.
 */
SEC("sockops")
int follow(struct bpf_sock_ops *context)
{
	switch (context->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		established(context);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (context->args[1] == BPF_TCP_CLOSE)
			closed(context);
		break;
	}
	return 1;
}

static __always_inline __u32 next_state(const struct usher_removal *removal, __u32 reason,
					const struct usher_admission *entry, __u64 mark)
{
	__u64 now = bpf_ktime_get_boot_ns();

	switch (reason) {
	case USHER_WITHDRAW:
		if (!equal_words(entry->session, removal->session))
			return 0;
		if (state_of(mark) == USHER_ANNOUNCED)
			return USHER_REMOVED;
		return state_of(mark) == USHER_SYN_RECEIVED ? USHER_WITHDRAWN : 0;
	case USHER_EXPIRE:
		if (state_of(mark) == USHER_ANNOUNCED && entry->expires_ns <= now)
			return USHER_REMOVED;
		if ((state_of(mark) == USHER_SYN_RECEIVED || state_of(mark) == USHER_WITHDRAWN) &&
		    entry->expires_ns + USHER_HANDSHAKE_NS <= now)
			return USHER_REMOVED;
		return 0;
	case USHER_FORGET:
		return state_of(mark) == USHER_ESTABLISHED ? 0 : USHER_REMOVED;
	default:
		return 0;
	}
}

/*
 * Run by user space (BPF_PROG_RUN) with one usher_removal; returns 1 when the entry was deleted,
 * 2 when it was changed, 0 when there was nothing to do. Kernel 5.14.
 */
SEC("syscall")
int remove(struct usher_removal *removal)
{
	struct usher_connection connection __aligned = removal->connection;
	struct usher_admission *entry = bpf_map_lookup_elem(&admissions, &connection);
	__u32 state;
	__u64 mark;

	/* The state only moves forward, so it changes concurrently at most three times. */
	for (int attempt = 0; attempt < 4; attempt++) {
		if (!entry)
			return 0;
		mark = *(volatile __u64 *)&entry->mark;
		if (state_of(mark) == USHER_REMOVED)
			return 0;
		state = next_state(removal, removal->reason, entry, mark);
		if (!state)
			return 0;
		if (!stands_under(&connection, mark))
			return 0;
		if (exchange(entry, mark, state)) {
			if (state != USHER_REMOVED)
				return 2;
			bpf_map_delete_elem(&admissions, &connection);
			return 1;
		}
	}
	return 0;
}

/*
 * Hook: a clsact filter at ingress of every interface, on kernels that do not accept the program of
 * arriving.bpf.c, because it is the earliest place that sees the options of a SYN on every kind of
 * interface, and exists on 6.1 (docs/adr/0016). It decides nothing for the packet or for later
 * filters: TC_ACT_UNSPEC. Kernel 4.5.
 */
SEC("tc")
int check_token(struct __sk_buff *packet)
{
	read_token(packet);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
