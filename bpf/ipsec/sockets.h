/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Governed sockets: whose they are, and their marks. */
#ifndef USHER_IPSEC_SOCKETS_H
#define USHER_IPSEC_SOCKETS_H

#include "callers.h"
#include "usher_numbers.h"

/* Key: a socket, whose end removes the entry; accepted sockets inherit a copy. Limit: the memory
 * for options of the socket. Full: a governed program gets no socket, and one that another program
 * has made neither connects nor sends to an address. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct usher_governed);
} sockets SEC(".maps");

#define STAMPED(now, value) ((__u64)(now)->generation << 32 | (__u32)(value))
#define IS_CURRENT(now, stamped) ((__u32)((stamped) >> 32) == (now)->generation)

/* Makes a task that executes a file the maker of a socket. Returns the entry of its application;
 * none: it is not governed. */
static __always_inline struct usher_policy_entry *make_maker(const struct in_force *now,
							     const struct usher_origin *file,
							     struct usher_governed *socket,
							     struct task_struct *task)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct usher_execution *execution = execution_of(task);

	if (!key)
		return 0;
	socket->program = program_at(file->file, key);
	socket->place = file->directory ? place_at(file->directory, file->name, key) : 0;
	if (execution)
		socket->script = execution->now;
	return maker_entry(now, socket);
}

/*
 * Makes a process the maker of a socket. Its program may have been removed from its path, as an
 * upgrade does, which must not end the protection of running processes. Tickets differ: they are
 * refused to such programs. Returns the entry of its application; none: it is not governed.
 */
static __always_inline struct usher_policy_entry *
set_maker(const struct in_force *now, struct usher_governed *socket, struct task_struct *task)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct usher_origin file;

	if (!key || !read_origin(&file, executed_by(task), key))
		return 0;
	return make_maker(now, &file, socket, task);
}

/* Like set_maker, for the calling process, if may_be_governed has returned 1 for it. */
static __always_inline struct usher_policy_entry *
make_caller(const struct in_force *now, const struct caller *caller, struct usher_governed *socket)
{
	struct usher_policy_entry *entry;

	if (recall_maker(caller->number, socket))
		return maker_entry(now, socket);
	entry = make_maker(now, &caller->file, socket, bpf_get_current_task_btf());
	if (entry)
		note_maker(caller->number, socket);
	else
		note_ungoverned(caller->number);
	return entry;
}

/* Like set_maker, for the calling process. */
static __always_inline struct usher_policy_entry *set_caller(const struct in_force *now,
							     struct usher_governed *socket)
{
	struct caller caller;

	return may_be_governed(now, &caller) ? make_caller(now, &caller, socket) : 0;
}

static __always_inline __u32 creation_mark(const struct usher_policy_entry *entry, __u32 family)
{
	return family == AF_INET ? entry->mark_ipv4 : entry->mark_ipv6;
}

static __always_inline void govern(const struct in_force *now, struct usher_governed *socket,
				   const struct usher_policy_entry *entry, __u32 family)
{
	socket->application = STAMPED(now, entry ? entry->number : USHER_UNGOVERNED);
	socket->mark = STAMPED(now, entry ? creation_mark(entry, family) : 0);
	socket->class = 0;
}

/* The application of a governed socket in the policy in force. */
static __always_inline __u32 application_of(const struct in_force *now,
					    struct usher_governed *socket, __u32 family)
{
	__u64 application = socket->application;
	struct usher_policy_entry *entry;

	if (IS_CURRENT(now, application))
		return application;
	entry = maker_entry(now, socket);
	govern(now, socket, entry, family);
	return entry ? entry->number : USHER_UNGOVERNED;
}

/* The peer of a connection or of a connected datagram socket. */
static __always_inline void set_peer_of(struct peer *peer, const struct bpf_sock *socket)
{
	if (socket->family == AF_INET)
		set_peer4(peer, socket->dst_ip4);
	else
		set_peer6(peer, socket->dst_ip6);
}

/* Returns 1 if a datagram socket has a peer. */
static __always_inline int is_connected(const struct bpf_sock *socket)
{
	return socket->state == BPF_TCP_ESTABLISHED;
}

/* Returns 1 if sockets of a protocol of IP make traffic that no hook of the control group sees:
 * subflows of MPTCP are the kernel's own sockets, SCTP's accepted sockets are not copies of their
 * listener, and SMC sends beside IP. */
static __always_inline int is_refused(__u32 protocol)
{
	return protocol == IPPROTO_MPTCP || protocol == IPPROTO_SCTP || protocol == IPPROTO_SMC;
}

static __always_inline int is_of_ip(__u32 family)
{
	return family == AF_INET || family == AF_INET6;
}

/* Returns 1 if sockets of the family make traffic that no hook of the control group sees: all but
 * those of IP, and those that reach this host and its virtual machines only. */
static __always_inline int passes_beside(int family)
{
	return !is_of_ip(family) && family != AF_UNIX && family != AF_NETLINK && family != AF_KEY &&
	       family != AF_ALG && family != AF_VSOCK;
}

/* Returns 1 if a socket has a maker that the policy in force governs. */
static __always_inline int is_governed(const struct in_force *now, struct usher_governed *socket,
				       __u32 family)
{
	return socket && application_of(now, socket, family) != USHER_UNGOVERNED;
}

/* Sets another maker for a socket whose maker is no longer governed. The application is written
 * last: until then no program reads the other fields. */
static __always_inline void replace_maker(struct usher_governed *socket,
					  const struct usher_governed *fresh)
{
	socket->program = fresh->program;
	socket->place = fresh->place;
	socket->script = fresh->script;
	socket->mark = fresh->mark;
	socket->class = 0;
	*(volatile __u64 *)&socket->application = fresh->application;
}

/*
 * The storage of a socket that a program is about to use. If the policy in force governs the
 * calling program and no longer the maker, the calling program becomes the maker. Usher's daemons,
 * which hold copies of other programs' sockets, never do: no policy names them. 0: the socket has
 * no storage, because it is not governed, or (`*full`: 1) because there is no room. A macro,
 * because the type of `sk` differs between contexts.
 */
#define GOVERNED_BY_CALLER(now, sk, family, full)                                                  \
	({                                                                                         \
		struct usher_governed *found = bpf_sk_storage_get(&sockets, sk, 0, 0);             \
		*(full) = 0;                                                                       \
		if (!is_governed(now, found, family)) {                                            \
			struct usher_governed fresh __aligned = {};                                \
			struct usher_policy_entry *entry = set_caller(now, &fresh);                \
			if (entry) {                                                               \
				govern(now, &fresh, entry, family);                                \
				if (found)                                                         \
					replace_maker(found, &fresh);                              \
				else                                                               \
					found = bpf_sk_storage_get(&sockets, sk, &fresh,           \
								   BPF_SK_STORAGE_GET_F_CREATE);   \
				if (found) {                                                       \
					COUNT(adopted);                                            \
				} else {                                                           \
					*(full) = 1;                                               \
					COUNT(sockets_refused);                                    \
				}                                                                  \
			}                                                                          \
		}                                                                                  \
		found;                                                                             \
	})

/* Sets our bits of a socket's mark. `present`: its mark. Returns 0, or the error. */
static __always_inline long set_mark(void *context, const struct in_force *now, __u32 present,
				     __u32 ours)
{
	__u32 mark = (present & ~now->mask) | (ours & now->mask);

	if (mark == present)
		return 0;
	return bpf_setsockopt(context, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

#endif
