/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the programs of bpf/authentication/ownership, bpf/guard and user space. The Rust
 * side is generated from this header. USHER_OWNERSHIP_VERSION goes up with every change of a size,
 * an offset or a meaning, because the maps outlive the keeper.
 */
#ifndef USHER_OWNERSHIP_H
#define USHER_OWNERSHIP_H

#include <linux/types.h>

#include "usher_guard.h"

#define USHER_OWNERSHIP_VERSION 5

#define USHER_GROUPS 128

/* The reason for a refusal; the index into the map `refusals`. */
enum usher_reason {
	USHER_REASON_IDENTITY_NOT_GRANTED, /* A change of identity without a grant, or
					    * a second one.
					    */
	USHER_REASON_IDENTITY_OTHER_USER, /* Another user than granted. */
	USHER_REASON_IDENTITY_OTHER_GROUP, /* Another group than granted. */
	USHER_REASON_IDENTITY_OTHER_GROUPS, /* Other supplementary groups than
					       granted. */
	USHER_REASON_IDENTITY_ORDER, /* The user changed before the groups. */
	USHER_REASON_IDENTITY_THREADS, /* The process has several threads. */
	USHER_REASON_IDENTITY_SHARED_MEMORY, /* Another process shares its memory. */
	USHER_REASON_IDENTITY_TRACED, /* A tracer is attached. */
	USHER_REASON_CAPABILITY, /* Use of a capability. */
	USHER_REASON_USER_NAMESPACE, /* Making a user namespace. */
	USHER_REASON_IO_URING_CREDENTIALS, /* Credentials registered with io_uring, or
					      a kernel thread that keeps them. */
	USHER_REASON_EXECUTION, /* Executing a program that confers a privilege. */
	USHER_REASON_NO_MEMORY, /* No memory for the mark of a settled process. */
	USHER_REASON_IDENTITY_WATCHED_CALLS, /* A seccomp listener answers the
						process's system calls. */
	USHER_REASON_PERFORMANCE_EVENTS, /* A performance event on the process, or one
					    that a service's process opens. */
	USHER_REASON_IDENTITY_PINNED_MEMORY, /* An io_uring, or pinned pages. */
	USHER_REASON_MEMORY_ACCESS, /* A service's process opens /proc/PID/mem, or
				       makes a userfaultfd. */
	USHER_REASON_ACCEPT, /* Accepting another user's connection. */
	USHER_REASON_CONNECTION, /* A system call on another user's connection. */
	USHER_REASON_LISTENER, /* A system call on another user's listener. */
	USHER_REASON_DESCRIPTOR, /* A descriptor of another user's socket. */
	USHER_REASON_MAP, /* An Usher map. */
	USHER_REASON_PROGRAM, /* An Usher program. */
	USHER_REASON_LINK, /* An Usher link. */
	USHER_REASON_PINS, /* The folder of the pins. */
	USHER_REASON_UNMOUNT, /* Unmounting the file system of the pins. */
	USHER_REASON_TRACING, /* Tracing a daemon. */
	USHER_REASONS,
};

/*
 * The identity that one process may take, once, while the keeper that granted it is the current
 * one.
 */
struct usher_identity {
	__u32 keeper; /* its number: see the map `keeper` */
	__u32 uid;
	__u32 gid;
	__u32 group_count;
	__u32 groups[USHER_GROUPS]; /* ascending */
};

/* The identity that a process has taken for good. */
struct usher_settled {
	__u32 uid;
	__u32 gid;
};

struct usher_owner {
	__u32 uid;
};

_Static_assert(sizeof(struct usher_identity) == 528, "usher_identity");
_Static_assert(sizeof(struct usher_settled) == 8, "usher_settled");
_Static_assert(sizeof(struct usher_owner) == 4, "usher_owner");

#endif
