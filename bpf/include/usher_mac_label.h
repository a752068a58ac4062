/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Labels of mandatory access control, as modules and user space see them, and as the framework
 * (bpf/mac) keeps them. Part of the interface of modules (USHER_MAC_INTERFACE) and of the layout of
 * what is pinned (USHER_MAC_LAYOUT).
 *
 * A label has an element for each module that labels the object: `biba/high,mls/low`. Each distinct
 * element is stored once, under a number; the label of an object is eight such numbers. A module
 * sees elements only, its own ones.
 */
#ifndef USHER_MAC_LABEL_H
#define USHER_MAC_LABEL_H

#include <linux/bpf.h>
#include <linux/types.h>

/* Limit of the modules that are loaded at the same time, and so of the elements of a label. */
#define USHER_MAC_MODULES 8

/* The name of a module, with the zero that ends it. */
#define USHER_MAC_NAME_SIZE 32

/* Limits of the text of a label, and of a value in it. */
#define USHER_MAC_TEXT_SIZE 1024
#define USHER_MAC_TEXT_VALUE 255

/* Limit of the distinct elements of one module. Processes without CAP_SYS_ADMIN and CAP_SETUID make
 * half of them at most, so that attributes of files and administrators find room. */
#define USHER_MAC_ELEMENTS 8192
#define USHER_MAC_ELEMENTS_OF_USERS 4096
/* Limit of the elements of all modules: USHER_MAC_MODULES times as many. */
#define USHER_MAC_ALL_ELEMENTS 65536

/*
 * The kinds of elements, of which a module declares one (MAC_POLICY), and their texts:
 *
 *   number  0, or digits without a zero in front, up to the limit
 *   level   low, high, equal, or GRADE[:COMPARTMENT+...], with a grade up to 65535 and compartments
 *           from 1 to 256, in any order
 */
enum usher_mac_kind {
	USHER_MAC_NONE = 0, /* an object without an element; a module that labels nothing */
	USHER_MAC_LEVELS = 1, /* level, (level-level), level(level-level); the last one dominates
			       * the one before: struct usher_mac_levels */
	USHER_MAC_AUXILIARY = 2, /* the same without compartments, or level[level] or [level]:
				  * struct usher_mac_levels, too */
	USHER_MAC_NUMBER = 3, /* up to 4294967295, in the first four bytes */
	USHER_MAC_NAME = 4, /* 1 to 63 letters, digits and _.-@:+, padded with zeros */
	USHER_MAC_UNKNOWN = 5, /* of an object only: its label is not read yet, and this hook cannot
				* read it */
};

/* The kinds of a level. */
enum usher_mac_level_kind {
	USHER_MAC_LEVEL_NONE = 0,
	USHER_MAC_LEVEL_LOW = 1,
	USHER_MAC_LEVEL_HIGH = 2,
	USHER_MAC_LEVEL_EQUAL = 3,
	USHER_MAC_LEVEL_GRADE = 4,
};

/* Limit of the numbers of compartments. */
#define USHER_MAC_COMPARTMENTS 256

struct usher_mac_level {
	__u16 kind; /* enum usher_mac_level_kind */
	__u16 grade; /* 0 but for USHER_MAC_LEVEL_GRADE */
	__u8 compartments[32]; /* number n is bit (n - 1) % 8 of byte (n - 1) / 8 */
};

/* A level without compartments. */
struct usher_mac_grade {
	__u16 kind; /* enum usher_mac_level_kind */
	__u16 grade;
};

struct usher_mac_levels {
	struct usher_mac_level effective;
	struct usher_mac_level low;
	struct usher_mac_level high;
	struct usher_mac_grade auxiliary;
};

/* An element. Bytes that its kind does not use are 0: equal elements are equal bytes. */
struct usher_mac_element {
	__u32 kind; /* enum usher_mac_kind */
	__u32 reserved; /* 0 */
	__u8 value[112];
};

/* An element of a module, as the table `elements` has it. */
struct usher_mac_numbered {
	struct usher_mac_element element;
	__u64 order; /* the module's; another module in this slot has another one */
	__u32 slot; /* the module's */
	__u32 reserved; /* 0 */
};

/* The label of an object: numbers of elements by the slots of modules; 0: none. */
struct usher_mac_label {
	__u32 elements[USHER_MAC_MODULES];
};

/*
 * The label of a process, in the storage of its main thread. Another thread has an entry, too, once
 * it has executed a program or set the elements of its next exec; the label there is a copy. The
 * lock in the main thread's entry guards all entries of the process, and is the only one taken.
 */
struct usher_mac_process {
	struct bpf_spin_lock lock; /* of all entries of the process: that of its main thread */
	__u32 is_decided; /* 1: `from` and `to` are those of the execution under way */
	struct usher_mac_label label;
	struct usher_mac_label at_exec; /* elements that replace it at the next exec; 0: none */
	/* While a program is being executed: the label before, and the one that follows. */
	struct usher_mac_label from;
	struct usher_mac_label to;
	/* The order of the youngest module with labels when the process executed its program; 0:
	 * there was none. The notes about the process are complete for that module. */
	__u64 began;
	__u32 shares_memory; /* 1: it has mapped a file or memory that it shares, and can write */
	__u32 may_hold_ring; /* 1: it, or a process from which it has got its open files, has made
			      * or received an io_uring */
};

/* States of a file's label. */
enum usher_mac_file_state {
	USHER_MAC_FILE_COLD = 0, /* its attribute is to be read */
	USHER_MAC_FILE_READ = 1, /* it is as in the attribute */
	USHER_MAC_FILE_NEW = 2, /* a new file: the attribute is to be written */
	USHER_MAC_FILE_HELD = 3, /* a pipe or another object without attributes, which ends with
				  * its last holder: the label is in the storage only */
};

/* The label of a file, in the storage of its inode. */
struct usher_mac_file_label {
	struct bpf_spin_lock lock;
	__u32 changes; /* counts the labels that were set, so that an older one is not stored */
	struct usher_mac_label label;
	__u64 order; /* of the label: struct usher_mac_labelled */
	__u32 state; /* enum usher_mac_file_state */
	__u32 reserved; /* 0 */
};

/* A set of slots, and so of the modules in them: one bit each. */
typedef __u32 usher_mac_slots;

#define USHER_MAC_ALL_SLOTS (~0U)

/* The modules with labels that are in force. */
struct usher_mac_labelled {
	__u64 order; /* of the one that was loaded last; files are read again when it changes */
	__u64 last_order; /* the largest one that any module has had: none has it twice */
	usher_mac_slots slots; /* all of them */
	usher_mac_slots exempting; /* of those that exempt processes without an element */
	usher_mac_slots by_labels; /* of those that decide by labels: a part of `exempting` */
	__u32 reserved; /* 0 */
};

/* Bytes of a file's name in an event, with the zero that ends it; a longer one is cut off. */
#define USHER_MAC_EVENT_NAME 64

/* The size of the ring of events that user space has not read yet, in bytes. */
#define USHER_MAC_EVENTS_SIZE 262144

/* Why something was refused. */
enum usher_mac_reason {
	USHER_MAC_BY_MODULE = 0, /* the module refuses it; or nothing was refused */
	/* The module demands another element of the process, which the process cannot get: */
	USHER_MAC_IS_TRACED = 1, /* a process traces it or answers its calls, or it traces one */
	USHER_MAC_SHARES_MEMORY = 2, /* it has memory that it shares, and can write, or may hold an
				      * io_uring that another process has, too */
	USHER_MAC_IS_OLDER = 3, /* its program began before the module came into force */
	USHER_MAC_CHANGES = 4, /* its label changes again and again */
	USHER_MAC_NO_ROOM = 5, /* no room, or the module wrote an element of another kind */
};

/* The action of a module: it refused, or it lowered a process. */
struct usher_mac_event {
	__u64 order; /* the module's; another module in this slot has another one */
	__u64 inode; /* of the file or directory that the request is about; 0: of none */
	__u32 device; /* as in struct usher_mac_file */
	__u32 point; /* enum mac_point */
	__u32 slot; /* the module's */
	__u32 error; /* its number; 0: the process has got `element` */
	__u32 reason; /* enum usher_mac_reason */
	__u32 process; /* its number in the initial namespace; 0: no process acts */
	__u32 uid; /* the real one */
	__u32 subject; /* the number of the module's element of the process; 0: none, or not told */
	__u32 object; /* the same of the object; ~0: not known */
	__u32 element; /* the number of the new one, if it has got one */
	char command[16]; /* the name of the process, if it is the calling one */
	char name[USHER_MAC_EVENT_NAME]; /* a name of the file, if the kernel remembers one */
};

/*
 * The interface of the library.
 *
 * lsm_set_self_attr(2) with this id of an LSM reaches the framework. LSM_ATTR_CURRENT (100) sets
 * elements of the calling process, LSM_ATTR_EXEC (101) those that it gets when it next executes a
 * program: the context is the text of a label, without a zero at its end. An empty one for
 * LSM_ATTR_EXEC takes them back. USHER_MAC_ATTR_CALL: the context is struct usher_mac_call.
 *
 * The call fails with errno USHER_MAC_DONE when it has succeeded. It cannot return 0: when a hook
 * does, the kernel concludes that no LSM knows the attribute, and answers EOPNOTSUPP. That is also
 * the answer where no module with labels is loaded.
 *
 *   EINVAL  no label, an element of a module that is not loaded, a value of another kind
 *   EPERM   the module permits no change
 *   EAGAIN  another thread has changed the label meanwhile
 *   ENOSPC  no room for another element of the module
 *   ENOSYS  USHER_MAC_ATTR_CALL: no such module, or the module has no calls
 *   or the error of a module
 */
#define USHER_MAC_LSM_ID 109
#define USHER_MAC_ATTR_CALL 0x4d41
#define USHER_MAC_DONE 1111

/* A call of a module, as mac_syscall(3) has them. */
struct usher_mac_call {
	char module[USHER_MAC_NAME_SIZE]; /* padded with zeros */
	__u32 call;
	__u32 reserved; /* 0 */
	__u64 argument;
};

/* Limit of the file systems whose files have labels of their own. */
#define USHER_MAC_MULTILABEL 64

/* Limit of the paths whose file systems are followed: one for each rule of `bsdextended`, and the
 * multilabel ones. */
#define USHER_MAC_FOLLOWED 320

/* Limit of the objects of System V IPC that have elements. The kernel's own limits are 68,096 for
 * each IPC namespace. */
#define USHER_MAC_IPC_OBJECTS 131072

/* Limit of the mounted file systems that have elements. */
#define USHER_MAC_FILE_SYSTEMS 65536

/* Limit of the network interfaces that have elements. */
#define USHER_MAC_INTERFACES 64

/* Bytes of the name of a network interface, with the zero that ends it: IFNAMSIZ. */
#define USHER_MAC_INTERFACE_NAME 16

/* A network interface, present or not. */
struct usher_mac_interface {
	__u64 network; /* the cookie of its network namespace, which no other one ever has */
	char name[USHER_MAC_INTERFACE_NAME]; /* padded with zeros */
};

/* A question of user space: which number has this element? The kernel gives a new element one. */
struct usher_mac_numbering {
	struct usher_mac_numbered wanted; /* of a module in its slot */
	__u64 network; /* answer: the cookie of the asking process's network namespace */
	__u32 number; /* answer; 0: there is no room for another element */
	__u32 reserved; /* 0 */
};

_Static_assert(sizeof(struct usher_mac_level) == 36, "usher_mac_level");
_Static_assert(sizeof(struct usher_mac_grade) == 4, "usher_mac_grade");
_Static_assert(sizeof(struct usher_mac_levels) == 112, "usher_mac_levels");
_Static_assert(sizeof(struct usher_mac_element) == 120, "usher_mac_element");
_Static_assert(sizeof(struct usher_mac_numbered) == 136, "usher_mac_numbered");
_Static_assert(sizeof(struct usher_mac_label) == 32, "usher_mac_label");
_Static_assert(sizeof(struct usher_mac_process) == 152, "usher_mac_process");
_Static_assert(sizeof(struct usher_mac_file_label) == 56, "usher_mac_file_label");
_Static_assert(sizeof(struct usher_mac_labelled) == 32, "usher_mac_labelled");
_Static_assert(sizeof(struct usher_mac_event) == 136, "usher_mac_event");
_Static_assert(sizeof(struct usher_mac_call) == 48, "usher_mac_call");
_Static_assert(sizeof(struct usher_mac_interface) == 24, "usher_mac_interface");
_Static_assert(sizeof(struct usher_mac_numbering) == 152, "usher_mac_numbering");

#endif
