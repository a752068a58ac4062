/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Governed sockets: whose they are, and their marks. */
#ifndef USHER_IPSEC_SOCKETS_H
#define USHER_IPSEC_SOCKETS_H

#include <linux/in.h>

#include "policy.h"

#define SOL_SOCKET 1
#define SO_MARK 36

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

/* The program of the calling process; 0: none. Unlike a ticket's, it may no longer be at any path:
 * an upgrade does not end the protection of what runs. */
static __always_inline __u64 calling_program(void)
{
	struct inode *inode = executable_of(bpf_get_current_task_btf());

	return inode ? program_of(inode) : 0;
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
	entry = program_entry(now, socket->program);
	govern(now, socket, entry, family);
	return entry ? entry->number : USHER_UNGOVERNED;
}

/*
 * The storage of a socket that a program is about to use: its maker's, or else the calling
 * program's. 0: the socket is not governed, or (`*full`: 1) there is no room for its storage. A
 * macro, because the helper takes different contexts' sockets.
 */
#define GOVERNED_BY_CALLER(now, sk, family, full)                                                  \
	({                                                                                         \
		struct usher_governed *found = bpf_sk_storage_get(&sockets, sk, 0, 0);             \
		*(full) = 0;                                                                       \
		if (!found) {                                                                      \
			struct usher_governed fresh __aligned = { .program = calling_program() };  \
			struct usher_policy_entry *entry =                                         \
			    fresh.program ? program_entry(now, fresh.program) : 0;                 \
			if (entry) {                                                               \
				govern(now, &fresh, entry, family);                                \
				found = bpf_sk_storage_get(&sockets, sk, &fresh,                   \
							   BPF_SK_STORAGE_GET_F_CREATE);           \
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
