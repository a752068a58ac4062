/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The guard of Usher's own objects and daemons: shared between the programs of bpf/guard, the
 * daemons and the keeper. The Rust side is generated from this header. USHER_OWNERSHIP_VERSION goes
 * up with every change of a size, an offset or a meaning; it stays for new roles and questions.
 */
#ifndef USHER_GUARD_H
#define USHER_GUARD_H

#include <linux/types.h>

#define USHER_PATH_SIZE 256

/*
 * The id of a link that does not exist, and the answer of bpf/guard to a process that asks for it.
 * User space learns from the answer that the programs really run. The answer is EUCLEAN, which
 * bpf(2) itself never returns; the ids below get the same one.
 */
#define USHER_ROLL_CALL_LINK 0xffffffffU
#define USHER_ROLL_CALL_ANSWER 117

/* A keeper presents itself by this id: answered when struct usher_place is written. */
#define USHER_PRESENTATION_LINK 0xfffffffeU

/* Answered if pages of the calling process have been pinned. */
#define USHER_PINNED_LINK 0xfffffffdU

/*
 * A daemon declares its roles (enum usher_mark, added to this number) by this id, once and for all.
 */
#define USHER_ROLES_LINK 0xffffff00U

/*
 * A daemon claims an object by this id: `next_id` of bpf(2) is the object's id or a folder's inode,
 * `open_flags` is enum usher_object.
 */
#define USHER_CLAIM_LINK 0xfffffffcU

/* Answered once the objects of the role's former processes are removed from the tables. */
#define USHER_SWEEP_LINK 0xfffffffbU

/* A daemon gives up its claim by this id; the object is named as in a claim. */
#define USHER_DISCLAIM_LINK 0xfffffffaU

enum usher_object {
	USHER_OBJECT_MAP = 1,
	USHER_OBJECT_PROGRAM,
	USHER_OBJECT_LINK,
	USHER_OBJECT_FOLDER,
};

/*
 * The mark of a daemon. The low bits are the roles whose objects it may touch or, until it declares
 * its roles, the roles that it may declare. An object's owner is one of them. The next daemon with
 * kernel objects takes the next bit.
 */
enum usher_mark {
	USHER_KEEPER = 1,
	USHER_SIGNER = 2,
	USHER_PROTECTOR = 4,
	USHER_LABELLER = 8,
	USHER_ROLES = 0x3f, /* all role bits */
	USHER_UNDECLARED = 0x40, /* it touches nothing yet */
	USHER_DAEMON = 0x80, /* it is not traced */
};

/* The owner of an object, in the tables of objects. */
#define USHER_OWNER_MASK 0xff
/* The process that claimed the object; 0: the keeper entered it. */
#define USHER_CLAIMANT_SHIFT 8

/* A folder. The device is in the kernel's numbering: major << 20 | minor. */
struct usher_folder {
	__u64 inode;
	__u32 device;
	__u32 reserved;
};

/* How to recognize an Usher daemon, and where the pins are. Key: 0. */
struct usher_guard_settings {
	__u32 children_of_init; /* whether only they can be daemons */
	__u32 device; /* the device of the pins; 0: nothing is guarded */
	__u32 path_length; /* the length of `daemon`, with the final zero byte */
	__u32 parent; /* inode of the folder above the pins */
	char daemon[USHER_PATH_SIZE]; /* path of the daemons' program, padded with
					 zeros */
};

/*
 * The place where the present keeper was executed, in the kernel's numbering. Only these programs
 * write it.
 */
struct usher_place {
	__u64 program_inode; /* 0: no keeper has presented itself */
	__u64 root_inode;
	__u32 program_device; /* as in struct usher_folder */
	__u32 root_device;
	__u32 program_mount; /* the mount of its file */
	__u32 root_mount;
	__u32 mount_namespace; /* inode number */
	__u32 reserved;
};

_Static_assert(sizeof(struct usher_folder) == 16, "usher_folder");
_Static_assert(sizeof(struct usher_guard_settings) == 272, "usher_guard_settings");
_Static_assert(sizeof(struct usher_place) == 40, "usher_place");

#endif
