/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where labels are kept, and how they are looked up. An element is stored once, under a number that
 * is never used again; a label is numbers of elements. process_labels.h, file_labels.h and
 * object_labels.h set labels; those of interfaces are user space's.
 */
#ifndef USHER_MAC_LABELS_H
#define USHER_MAC_LABELS_H

#include "usher_kernel.h"
#include "usher_mac_label.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "usher_maps.h"

/* The modules in their slots, for user space. Key: the slot. Full: user space refuses the ninth. */
ARRAY_TABLE(modules, USHER_MAC_MODULES, struct usher_mac_module);

/* Which modules are in force. Key: 0. */
ARRAY_TABLE(in_force, 1, struct usher_mac_in_force);

/* Modules with labels that are in force. */
static __always_inline const struct usher_mac_labelled *labelled_now(void)
{
	const struct usher_mac_in_force *now = first_of(&in_force);

	return now ? &now->labelled : NULL;
}

/*
 * Elements. Key: the number. Full, as the next two: see number_of. An entry never changes; user
 * space removes those of a module that it has unloaded.
 */
SPARSE_TABLE(elements, USHER_MAC_ALL_ELEMENTS, __u32, struct usher_mac_numbered);

/* Numbers of elements. Key: the element, with its module. */
SPARSE_TABLE(element_numbers, USHER_MAC_ALL_ELEMENTS, struct usher_mac_numbered, __u32);

/* How many elements the module in a slot has. Key: the slot. */
ARRAY_TABLE(element_counts, USHER_MAC_MODULES, __u64);

/* The last number that was given. Key: 0. */
ARRAY_TABLE(last_element, 1, __u64);

/* Labels of processes. No room: the fork, the execution or the change of the label is refused. */
TASK_TABLE(processes, struct usher_mac_process);

/* Elements that checks have written for the access under way: see slots.h. No room: the access is
 * refused. */
struct mac_demotion {
	struct usher_mac_numbered wanted[USHER_MAC_MODULES]; /* by slot */
	struct usher_mac_label label; /* that the process is to get */
};
TASK_TABLE(demotions, struct mac_demotion);

/* Labels of files on multilabel file systems. No room: the file is as one that is not read. */
USHER_MAP(files, INODE_STORAGE, BPF_F_NO_PREALLOC, 0, int, struct usher_mac_file_label);

/*
 * Labels of sockets. An accepted TCP connection gets a copy of its listener's. No room: the socket
 * is not made, the connection is not accepted.
 */
USHER_MAP(sockets, SK_STORAGE, BPF_F_NO_PREALLOC | BPF_F_CLONE, 0, int, struct usher_mac_label);

/* Labels of System V IPC. Key: the object's address, while it exists. Full: processes with elements
 * make no further objects (ENOSPC). */
SPARSE_TABLE(ipc_objects, USHER_MAC_IPC_OBJECTS, __u64, struct usher_mac_label);

/* Labels of mounted file systems. Key: the address of the superblock, while it exists. Full:
 * processes with elements mount no further ones (ENOSPC). */
SPARSE_TABLE(file_systems, USHER_MAC_FILE_SYSTEMS, __u64, struct usher_mac_label);

/* Multilabel file systems. Key: the device, as in struct usher_mac_file. Full: user space refuses
 * another one. */
HASH_TABLE(multilabel, USHER_MAC_MULTILABEL, __u32, __u32);

/*
 * Labels of network interfaces, by network namespace and name, so that an interface has its label
 * as soon as it exists. User space fills an inner table before it puts the table in place: a packet
 * sees the former labels or the new ones. Full: user space refuses another one.
 */
struct mac_interface_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, USHER_MAC_INTERFACES);
	__uint(key_size, sizeof(struct usher_mac_interface));
	__uint(value_size, sizeof(struct usher_mac_label));
};

/* Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct mac_interface_table);
} interfaces SEC(".maps");

/* Refusals of files whose label is not known, one copy per CPU. Key: 0. */
CPU_TABLE(unknown_refusals, 1, __u64);

/* In place of an element's number: the element is not known. Only in labels that a program has
 * looked up. */
#define UNKNOWN (~0U)

/* A refusal is not reported, because the kernel only looks whether something would be permitted. */
#define UNTOLD 1

/* Elements of objects that have none, and of those whose label is not known. Never written. */
static struct usher_mac_element absent[2] = { [1] = { .kind = USHER_MAC_UNKNOWN } };
#define nothing absent[0]

/* The labels of an access. Where no module with labels is asked, the labels, `slot` and `by_labels`
 * are undefined. */
struct mac_labels {
	usher_mac_slots slots; /* of the modules with labels that are asked */
	__u32 slot; /* that is asked: see slots.h */
	usher_mac_slots unknown; /* those whose elements of a file are not known */
	usher_mac_slots by_labels; /* of the modules whose permission is remembered */
	usher_mac_slots remembered; /* of those that are not asked, because it is */
	__u64
	    told; /* of a refusal: the address of the file's inode, for its name; 0: none; UNTOLD */
	__u64 access; /* as in remembered.h; 0: it is not remembered */
	struct usher_mac_label subject;
	struct usher_mac_label object;
	struct usher_mac_label directory;
};

static const struct usher_mac_label no_label;

/* no_label for global functions, which accept no pointer to a constant. Never written. */
struct usher_mac_label blank_label;

/* The element with a number, for the module in a slot. The number may be of a former module there.
 * All absent elements are one result for the verifier, which follows each result separately from
 * here on. */
static __noinline const struct usher_mac_element *element_at(__u32 number, __u32 slot)
{
	struct usher_mac_numbered *found;
	struct usher_mac_module *module;

	/* Neither 0 nor UNKNOWN. */
	if (number + 1 > 1) {
		found = bpf_map_lookup_elem(&elements, &number);
		module = bpf_map_lookup_elem(&modules, &slot);
		if (found && module && found->slot == slot && found->order == module->order)
			return &found->element;
	}
	/* The second one for UNKNOWN only. */
	return &absent[((__u64)number + 1) >> 32];
}

/*
 * The number of an element of a module in force. A new element gets a new number. Returns a
 * negative number if the module has `limit` elements, or all numbers are used. Global, so that the
 * verifier goes through it once.
 */
__attribute__((noinline)) long number_of(struct usher_mac_numbered *wanted, __u32 limit)
{
	__u64 *count, *last, given;
	__u32 *found, number, slot;

	if (!wanted)
		return -EINVAL;
	found = bpf_map_lookup_elem(&element_numbers, wanted);
	if (found)
		return *found;
	slot = wanted->slot;
	count = bpf_map_lookup_elem(&element_counts, &slot);
	last = first_of(&last_element);
	if (!count || !last)
		return -EINVAL;
	if (__sync_fetch_and_add(count, 1) >= limit)
		goto full;
	given = __sync_fetch_and_add(last, 1) + 1;
	if (given >= UNKNOWN)
		goto full;
	number = given;
	/* The element first, so that a program that finds the number finds the element. */
	if (bpf_map_update_elem(&elements, &number, wanted, BPF_NOEXIST))
		goto full;
	if (!bpf_map_update_elem(&element_numbers, wanted, &number, BPF_NOEXIST))
		return number;
	/* Another process was first. */
	bpf_map_delete_elem(&elements, &number);
	__sync_fetch_and_add(count, -1);
	found = bpf_map_lookup_elem(&element_numbers, wanted);
	return found ? *found : -ENOSPC;
full:
	__sync_fetch_and_add(count, -1);
	return -ENOSPC;
}

/* Whether the module in a slot has no element with this number. Global, so that the verifier goes
 * through it once, as the next one. */
__attribute__((noinline)) __u64 mac_lacks(__u32 number, __u32 slot)
{
	return element_at(number, slot) == &nothing;
}

/* Returns those of these slots whose modules have no element in the label. */
__attribute__((noinline)) usher_mac_slots
mac_lacking(const struct usher_mac_label *label __arg_nonnull, usher_mac_slots slots)
{
	usher_mac_slots lacking = 0;

#pragma unroll
	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++)
		if (slots >> slot & 1)
			lacking |= (mac_lacks(label->elements[slot], slot) & 1) << slot;
	return lacking;
}

/* Whether a label has no element of any module, as those of most processes. */
static __always_inline int is_blank(const struct usher_mac_label *label)
{
	__u32 numbers = 0;

#pragma unroll
	for (int slot = 0; slot < USHER_MAC_MODULES; slot++)
		numbers |= label->elements[slot];
	return !numbers;
}

/* Returns which modules in `exempting` exempt a process or a socket with this label (NULL: without
 * one). */
static __always_inline usher_mac_slots exempted(const struct usher_mac_label *label,
						usher_mac_slots exempting)
{
	if (!label || !exempting || is_blank(label))
		return exempting;
	return mac_lacking(label, exempting);
}

/* Returns which of these modules are asked about a process or a socket with this label (NULL:
 * without one). */
static __always_inline usher_mac_slots asked_about(usher_mac_slots asked,
						   const struct usher_mac_label *label)
{
	const struct usher_mac_labelled *now = labelled_now();

	return now ? asked & ~exempted(label, now->exempting & asked) : asked;
}

/* The one about whom modules are asked: the calling process, or the owner of a socket. Looked up
 * once, and only where a module with labels is asked. */
struct mac_asker {
	usher_mac_slots slots; /* of the modules with labels among those that are asked */
	usher_mac_slots by_labels; /* of these, those that decide by labels */
	usher_mac_slots exempting; /* of these, those that may still exempt it: those_left */
	const struct usher_mac_label *label; /* NULL: it has none, or `slots` is 0 */
};

/* Begins an asker without its label. Returns the modules that exempt askers without an element. */
static __always_inline usher_mac_slots begin_asker(const struct usher_mac_in_force *now,
						   usher_mac_slots asked, struct mac_asker *asker)
{
	asker->label = NULL;
	asker->exempting = 0;
	asker->slots = now ? now->labelled.slots & asked : 0;
	asker->by_labels = now ? now->labelled.by_labels & asked : 0;
	/* All of these have labels. */
	return now ? now->labelled.exempting & asked : 0;
}

/* The modules with labels among these. */
static __always_inline usher_mac_slots labelled_of(usher_mac_slots asked)
{
	const struct usher_mac_labelled *now = labelled_now();

	return now ? now->slots & asked : 0;
}

/* One bit shows that most devices are not multilabel: only others are looked up. */
static __always_inline int is_multilabel_now(const struct usher_mac_in_force *now, __u32 device)
{
	return now && now->multilabel >> device % 64 & 1 &&
	       bpf_map_lookup_elem(&multilabel, &device);
}

static __always_inline int is_multilabel(__u32 device)
{
	return is_multilabel_now(first_of(&in_force), device);
}

/* The number of a slot's element. */
static __always_inline __u32 element_of(const struct usher_mac_label *label, __u32 slot)
{
	return label->elements[slot & (USHER_MAC_MODULES - 1)];
}

/* The place of a slot's element. The asm keeps clang from removing the bound, which the verifier
 * does not see otherwise. */
static __always_inline __u32 *place_of(struct usher_mac_label *label, __u32 slot)
{
	asm volatile("" : "+r"(slot));
	return &label->elements[slot & (USHER_MAC_MODULES - 1)];
}

static __always_inline int are_equal(const struct usher_mac_label *one,
				     const struct usher_mac_label *other)
{
	__u32 differences = 0;

#pragma unroll
	for (int i = 0; i < USHER_MAC_MODULES; i++)
		differences |= one->elements[i] ^ other->elements[i];
	return !differences;
}

/* The label of a process, from its main thread. */
static __always_inline void read_process_label(struct usher_mac_label *label,
					       struct task_struct *leader)
{
	struct usher_mac_process *stored = bpf_task_storage_get(&processes, leader, NULL, 0);

	*label = stored ? stored->label : no_label;
}

/* The label of the calling process. */
static __always_inline void read_own_label(struct usher_mac_label *label)
{
	read_process_label(label, bpf_get_current_task_btf()->group_leader);
}

/* The label of a socket, which may be NULL. */
static __always_inline void read_socket_label(struct usher_mac_label *label, struct sock *socket)
{
	struct usher_mac_label *stored = NULL;

	if (socket)
		stored = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	*label = stored ? *stored : no_label;
}

/* The label of an object in a table by addresses; NULL has none. */
static __always_inline void read_label_at(struct usher_mac_label *label, void *table,
					  const void *object)
{
	__u64 key = (__u64)object;
	struct usher_mac_label *stored = bpf_map_lookup_elem(table, &key);

	*label = stored ? *stored : no_label;
}

/* The label of an object of System V IPC. */
static __always_inline void read_ipc_label(struct usher_mac_label *label, const void *object)
{
	read_label_at(label, &ipc_objects, object);
}

/* The label of a mounted file system. */
static __always_inline void read_system_label(struct usher_mac_label *label,
					      const struct super_block *system)
{
	read_label_at(label, &file_systems, system);
}

/* Whether a stored label is that of the file at present, with elements of all modules in force. */
static __always_inline int is_known(const struct usher_mac_file_label *stored)
{
	const struct usher_mac_labelled *now = labelled_now();

	return now && stored->state != USHER_MAC_FILE_COLD && stored->order == now->order;
}

/* Marks elements of modules that are younger than a label as unknown. Returns their slots. */
__attribute__((noinline)) usher_mac_slots
mac_mark_younger(struct usher_mac_label *label __arg_nonnull, __u64 order)
{
	usher_mac_slots younger = 0;

#pragma unroll
	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++) {
		__u32 key = slot;
		struct usher_mac_module *module = bpf_map_lookup_elem(&modules, &key);

		if (module && module->order <= order)
			continue;
		label->elements[slot] = UNKNOWN;
		younger |= 1U << slot;
	}
	return younger;
}

/* Reads the stored label of a file. Elements that are not stored are UNKNOWN. Returns the slots of
 * these. */
static __always_inline usher_mac_slots read_file_label(struct usher_mac_label *label,
						       struct inode *inode, __u32 device)
{
	struct usher_mac_file_label *stored = bpf_inode_storage_get(&files, inode, NULL, 0);
	const struct usher_mac_in_force *now = first_of(&in_force);
	__u64 order;

	if (!is_multilabel_now(now, device)) {
		*label = stored && stored->state == USHER_MAC_FILE_HELD ? stored->label : no_label;
		return 0;
	}
	if (!stored || stored->state == USHER_MAC_FILE_COLD) {
		__builtin_memset(label, 0xff, sizeof(*label));
		return USHER_MAC_ALL_SLOTS;
	}
	/* The order is read first: otherwise an older label could count with the order of one that
	 * is stored meanwhile. */
	order = *(volatile __u64 *)&stored->order;
	asm volatile("" : "+r"(order) : : "memory");
	*label = stored->label;
	return now && order == now->labelled.order ? 0 : mac_mark_younger(label, order);
}

/* The label of a file where all of its elements are known; NULL elsewhere. */
static __always_inline const struct usher_mac_label *known_file_label(struct inode *inode,
								      __u32 device)
{
	const struct usher_mac_file_label *stored = bpf_inode_storage_get(&files, inode, NULL, 0);
	const struct usher_mac_in_force *now = first_of(&in_force);
	__u64 order;

	if (!is_multilabel_now(now, device))
		return stored && stored->state == USHER_MAC_FILE_HELD ? &stored->label
								      : &blank_label;
	if (!stored || stored->state == USHER_MAC_FILE_COLD)
		return NULL;
	/* The order is read first, as in read_file_label. */
	order = *(volatile __u64 *)&stored->order;
	asm volatile("" : "+r"(order) : : "memory");
	return now && order == now->labelled.order ? &stored->label : NULL;
}

#endif
