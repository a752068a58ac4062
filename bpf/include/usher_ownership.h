/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of bpf/ownership and user space both read and write. The Rust side is
 * crates/usher-kernel/src/ownership/layout.rs; both sides assert the sizes, a test compares the
 * versions, and USHER_OWNERSHIP_VERSION goes up with every change of a size, an offset or a
 * meaning, because the maps outlive the keeper.
 */
#ifndef USHER_OWNERSHIP_H
#define USHER_OWNERSHIP_H

#include <linux/types.h>

#define USHER_OWNERSHIP_VERSION 3

#define USHER_GROUPS 128
#define USHER_PATH_SIZE 256

/* A link that does not exist, and what protection.bpf.c answers to who asks for it: that is how
 * user space finds that the programs really run. EUCLEAN, which the kernel itself never says. */
#define USHER_ROLL_CALL_LINK 0xffffffffU
#define USHER_ROLL_CALL_ANSWER 117

/* The same answer, to a keeper that presents itself: struct usher_place is written. */
#define USHER_PRESENTATION_LINK 0xfffffffeU

/* The same answer, when pages of the asking process have been pinned. */
#define USHER_PINNED_LINK 0xfffffffdU

/* Why something was refused; index into the map `refusals`. */
enum usher_refusal {
	/* fence.bpf.c */
	USHER_REFUSED_NOT_GRANTED, /* a change of identity without a grant, or a second one */
	USHER_REFUSED_OTHER_USER, /* not the user that was granted */
	USHER_REFUSED_OTHER_GROUP, /* not the group that was granted */
	USHER_REFUSED_OTHER_GROUPS, /* not the supplementary groups that were granted */
	USHER_REFUSED_ORDER, /* the user before the groups */
	USHER_REFUSED_THREADS, /* a process of several threads */
	USHER_REFUSED_SHARED_MEMORY, /* memory, files or directory shared with another process */
	USHER_REFUSED_TRACED, /* a tracer is attached */
	USHER_REFUSED_CAPABILITY,
	USHER_REFUSED_USER_NAMESPACE,
	USHER_REFUSED_IO_URING_CREDENTIALS,
	USHER_REFUSED_EXECUTION, /* a program that gives a privilege */
	USHER_REFUSED_NO_MEMORY, /* no place for the mark of a settled process */
	USHER_REFUSED_WATCHED_CALLS, /* another process may answer its system calls (seccomp) */
	USHER_REFUSED_PERFORMANCE_EVENTS, /* it is sampled, or a service's process wants to sample
					   */
	USHER_REFUSED_PINNED_MEMORY, /* its pages may be held by io_uring or a device */
	USHER_REFUSED_MEMORY_ACCESS, /* /proc/PID/mem or a userfaultfd of a service's process */
	/* connection.bpf.c */
	USHER_REFUSED_ACCEPT,
	USHER_REFUSED_CONNECTION, /* a system call on another user's connection */
	USHER_REFUSED_LISTENER, /* a system call on another user's listener */
	USHER_REFUSED_DESCRIPTOR, /* a descriptor of another user's socket came in */
	/* protection.bpf.c */
	USHER_REFUSED_MAP,
	USHER_REFUSED_PROGRAM,
	USHER_REFUSED_LINK,
	USHER_REFUSED_PINS,
	USHER_REFUSED_UNMOUNT,
	USHER_REFUSED_TRACING,
	USHER_REFUSALS,
};

/* The identity that one process may take, once, while the keeper that granted it has no successor.
 */
struct usher_identity {
	__u32 keeper; /* which one: see the map `keeper` */
	__u32 uid;
	__u32 gid;
	__u32 group_count;
	__u32 groups[USHER_GROUPS]; /* ascending */
};

/* What a process has become, for good. */
struct usher_settled {
	__u32 uid;
	__u32 gid;
};

struct usher_owner {
	__u32 uid;
};

/* The mark of a daemon. */
enum usher_mark {
	USHER_DAEMON = 1, /* is not traced */
	USHER_KEEPER = 2, /* and touches Usher's objects */
};

/* A folder. The device as the kernel numbers it: major << 20 | minor. */
struct usher_folder {
	__u64 inode;
	__u32 device;
	__u32 reserved;
};

/* Which program is a daemon of Usher's, and where its pins are. Key: 0. */
struct usher_protection {
	__u32 children_of_init; /* whether only they are daemons */
	__u32 device; /* of the pins; 0: nothing is protected */
	__u32 path_length; /* of `daemon`, with the final zero byte */
	__u32 reserved;
	char daemon[USHER_PATH_SIZE]; /* path of the daemons' program, padded with zeros */
};

/* Where the present keeper was executed, as the kernel numbers it. Written by these programs. */
struct usher_place {
	__u64 program_inode; /* 0: no keeper has presented itself */
	__u64 root_inode;
	__u32 program_device; /* as in struct usher_folder */
	__u32 root_device;
	__u32 program_mount; /* the mount that its file was found in */
	__u32 root_mount;
	__u32 mount_namespace; /* inode number */
	__u32 reserved;
};

_Static_assert(sizeof(struct usher_identity) == 528, "usher_identity");
_Static_assert(sizeof(struct usher_settled) == 8, "usher_settled");
_Static_assert(sizeof(struct usher_owner) == 4, "usher_owner");
_Static_assert(sizeof(struct usher_folder) == 16, "usher_folder");
_Static_assert(sizeof(struct usher_protection) == 272, "usher_protection");
_Static_assert(sizeof(struct usher_place) == 40, "usher_place");
_Static_assert(USHER_REFUSALS == 27, "usher_refusal");

#endif
