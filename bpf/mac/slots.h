/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The slots of dispatchers, and the tables that say which of them are in force.
 *
 * A slot is a global function that a module's check replaces (BPF_PROG_TYPE_EXT). As it is, it
 * permits. It is weak because clang would otherwise drop its arguments.
 */
#ifndef USHER_MAC_SLOTS_H
#define USHER_MAC_SLOTS_H

#include "usher_layout.h"
#include "labels.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "precedence.h"

_Static_assert(MAC_POINTS <= 64 * USHER_MAC_POINT_WORDS, "entry points");

/* Bit i: the module in slot i decides. Key: 0. The only word that puts a module in force. */
ARRAY_TABLE(enabled, 1, __u64);

/* Bit i: the module in slot i declares this entry point. Key: enum mac_point. */
ARRAY_TABLE(declared, MAC_POINTS, __u64);

/* Refusals, one copy per CPU. Key: entry point * USHER_MAC_MODULES + slot. */
CPU_TABLE(refusals, MAC_POINTS *USHER_MAC_MODULES, __u64);

/* The modules to ask at an entry point, one bit each. */
static __always_inline __u64 modules_at(__u32 point)
{
	__u64 *in_force = first_of(&enabled);
	__u64 *asked = bpf_map_lookup_elem(&declared, &point);

	return in_force && asked ? *in_force & *asked : 0;
}

/* The same at an entry point about the calling process. First of all, because a process that all of
 * them exempt is to cost no more. */
static __always_inline __u64 modules_about_caller(__u32 point)
{
	__u64 asked = modules_at(point);
	struct usher_mac_process *own;

	if (!exempting_of(asked))
		return asked;
	own = bpf_task_storage_get(&processes, bpf_get_current_task_btf()->group_leader, NULL, 0);
	return asked_about(asked, own ? &own->label : NULL);
}

/* The same about a socket, which may be NULL. */
static __always_inline __u64 modules_about_socket(__u32 point, struct sock *socket)
{
	__u64 asked = modules_at(point);
	struct usher_mac_label *label = NULL;

	if (!exempting_of(asked))
		return asked;
	if (socket)
		label = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	return asked_about(asked, label);
}

/*
 * Adds a module's answer to those before, and counts a refusal. Global, so that the verifier goes
 * through it once and not on every path.
 */
__attribute__((noinline)) int mac_add(int before, int answer, __u32 point, __u32 slot)
{
	__u32 place = point * USHER_MAC_MODULES + slot;
	int error = mac_error_of(answer);

	if (error)
		count_up(bpf_map_lookup_elem(&refusals, &place));
	return mac_compose(before, error);
}

/* One answer for two. Global, as mac_add is. */
__attribute__((noinline)) int mac_both(int one, int other)
{
	return mac_compose(one, other);
}

/* The composed answer, in bounds that the verifier sees: the asm keeps clang from joining or
 * removing the comparisons. */
static __always_inline int mac_bounded(int error)
{
	if (error < -MAC_LARGEST_ERROR)
		return -EACCES;
	asm volatile("" : "+r"(error));
	if (error > 0)
		return -EACCES;
	return error;
}

#define MAC_SLOT(name, number)                                                                     \
	__weak __attribute__((noinline)) int mac_slot_##name##_##number(                           \
	    const struct usher_mac_subject *subject, mac_##name##_request *wanted,                 \
	    const struct usher_mac_element *subject_label, const struct usher_mac_element *fourth, \
	    mac_##name##_last *last)                                                               \
	{                                                                                          \
		asm volatile("");                                                                  \
		return 0;                                                                          \
	}

#define MAC_SLOTS(name, ...)                                                                       \
	MAC_SLOT(name, 0)                                                                          \
	MAC_SLOT(name, 1)                                                                          \
	MAC_SLOT(name, 2)                                                                          \
	MAC_SLOT(name, 3)                                                                          \
	MAC_SLOT(name, 4)                                                                          \
	MAC_SLOT(name, 5)                                                                          \
	MAC_SLOT(name, 6)                                                                          \
	MAC_SLOT(name, 7)

USHER_MAC_ENTRY_POINTS(MAC_SLOTS)

#define MAC_ANSWER_OF(name, number, ...)                                                           \
	case number:                                                                               \
		answer = mac_slot_##name##_##number(__VA_ARGS__);                                  \
		break;

/* The answer of the module in a slot. */
#define MAC_ANSWER_IN(name, slot, ...)                                                             \
	({                                                                                         \
		int answer = -EACCES;                                                              \
                                                                                                   \
		switch (slot) {                                                                    \
			MAC_ANSWER_OF(name, 0, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 1, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 2, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 3, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 4, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 5, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 6, __VA_ARGS__)                                        \
			MAC_ANSWER_OF(name, 7, __VA_ARGS__)                                        \
		}                                                                                  \
		answer;                                                                            \
	})

#define MAC_ASK_SLOT(name, number)                                                                 \
	if (asked & (1 << number))                                                                 \
		error = mac_one_##name(error, number, subject, wanted, labels);

/*
 * Asks the modules in `asked`, and composes their answers. Global functions do the work, because
 * the verifier goes through each of them once, and not for each slot on every path: mac_one_NAME
 * asks the module in a slot and adds its answer to those before, mac_answer_NAME calls it. Labels
 * are looked up only for a module that has some.
 */
#define MAC_ASK_CHECK(name)                                                                        \
	__attribute__((noinline)) int mac_answer_##name(                                           \
	    const struct usher_mac_subject *subject, mac_##name##_request *wanted,                 \
	    const struct usher_mac_element *own, const struct usher_mac_element *object,           \
	    const struct mac_labels *labels __arg_nonnull)                                         \
	{                                                                                          \
		const struct usher_mac_element *directory = &nothing;                              \
		__u32 slot = labels->slot;                                                         \
                                                                                                   \
		if (labels->slots >> slot & 1)                                                     \
			directory = element_at(element_of(&labels->directory, slot), slot);        \
		return MAC_ANSWER_IN(name, slot, subject, wanted, own, object, directory);         \
	}                                                                                          \
                                                                                                   \
	__attribute__((noinline)) int mac_one_##name(                                              \
	    int before, __u32 slot, const struct usher_mac_subject *subject,                       \
	    mac_##name##_request *wanted, struct mac_labels *labels __arg_nonnull)                 \
	{                                                                                          \
		const struct usher_mac_element *own = &nothing, *object = &nothing;                \
		int answer;                                                                        \
                                                                                                   \
		labels->slot = slot;                                                               \
		if (labels->slots >> slot & 1) {                                                   \
			own = element_at(element_of(&labels->subject, slot), slot);                \
			object = element_at(element_of(&labels->object, slot), slot);              \
		}                                                                                  \
		answer = mac_answer_##name(subject, wanted, own, object, labels);                  \
		return answer ? mac_add(before, answer, MAC_POINT_##name, slot) : before;          \
	}                                                                                          \
                                                                                                   \
	static __always_inline int mac_ask_##name(                                                 \
	    __u64 asked, const struct usher_mac_subject *subject, mac_##name##_request *wanted,    \
	    struct mac_labels *labels)                                                             \
	{                                                                                          \
		int error = 0;                                                                     \
                                                                                                   \
		MAC_ASK_SLOT(name, 0)                                                              \
		MAC_ASK_SLOT(name, 1)                                                              \
		MAC_ASK_SLOT(name, 2)                                                              \
		MAC_ASK_SLOT(name, 3)                                                              \
		MAC_ASK_SLOT(name, 4)                                                              \
		MAC_ASK_SLOT(name, 5)                                                              \
		MAC_ASK_SLOT(name, 6)                                                              \
		MAC_ASK_SLOT(name, 7)                                                              \
		asm volatile("" : "+r"(error));                                                    \
		return mac_bounded(error);                                                         \
	}

/* Asks the module in one slot about its element: relabels and decisions. */
#define MAC_ASK_RELABEL(name)                                                                      \
	static __always_inline int mac_ask_##name(                                                 \
	    __u32 slot, const struct usher_mac_subject *subject, mac_##name##_request *wanted,     \
	    const struct usher_mac_element *own, const struct usher_mac_element *fourth,           \
	    mac_##name##_last *last)                                                               \
	{                                                                                          \
		int answer = MAC_ANSWER_IN(name, slot, subject, wanted, own, fourth, last);        \
                                                                                                   \
		return mac_add(0, answer, MAC_POINT_##name, slot);                                 \
	}
#define MAC_ASK_DECISION(name) MAC_ASK_RELABEL(name)

#define MAC_ASK(name, form, ...) MAC_ASK_##form(name)
USHER_MAC_ENTRY_POINTS(MAC_ASK)

#endif
