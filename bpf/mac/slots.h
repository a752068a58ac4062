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

/* Asks the module in a slot of a check, if it is one of those to ask. Labels are looked up only for
 * a module that has some. */
#define MAC_ASK_SLOT(name, number)                                                                 \
	if (asked & (1 << number)) {                                                               \
		const struct usher_mac_element *own = &nothing, *object = &nothing,                \
					       *directory = &nothing;                              \
                                                                                                   \
		if (labels->slots & (1 << number)) {                                               \
			own = element_at(labels->subject.elements[number], number);                \
			object = element_at(labels->object.elements[number], number);              \
			directory = element_at(labels->directory.elements[number], number);        \
		}                                                                                  \
		error = mac_add(                                                                   \
		    error, mac_slot_##name##_##number(subject, wanted, own, object, directory),    \
		    MAC_POINT_##name, number);                                                     \
	}

/* Asks the modules in `asked`, and composes their answers. */
#define MAC_ASK_CHECK(name)                                                                        \
	static __always_inline int mac_ask_##name(                                                 \
	    __u64 asked, const struct usher_mac_subject *subject, mac_##name##_request *wanted,    \
	    const struct mac_labels *labels)                                                       \
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

#define MAC_ASK_ONLY(name, number)                                                                 \
	if (slot == number)                                                                        \
		answer = mac_slot_##name##_##number(subject, wanted, own, fourth, last);

/* Asks the module in one slot about its element: relabels and decisions. */
#define MAC_ASK_RELABEL(name)                                                                      \
	static __always_inline int mac_ask_##name(                                                 \
	    __u32 slot, const struct usher_mac_subject *subject, mac_##name##_request *wanted,     \
	    const struct usher_mac_element *own, const struct usher_mac_element *fourth,           \
	    mac_##name##_last *last)                                                               \
	{                                                                                          \
		int answer = -EACCES;                                                              \
                                                                                                   \
		MAC_ASK_ONLY(name, 0)                                                              \
		MAC_ASK_ONLY(name, 1)                                                              \
		MAC_ASK_ONLY(name, 2)                                                              \
		MAC_ASK_ONLY(name, 3)                                                              \
		MAC_ASK_ONLY(name, 4)                                                              \
		MAC_ASK_ONLY(name, 5)                                                              \
		MAC_ASK_ONLY(name, 6)                                                              \
		MAC_ASK_ONLY(name, 7)                                                              \
		return mac_add(0, answer, MAC_POINT_##name, slot);                                 \
	}
#define MAC_ASK_DECISION(name) MAC_ASK_RELABEL(name)

#define MAC_ASK(name, form, ...) MAC_ASK_##form(name)
USHER_MAC_ENTRY_POINTS(MAC_ASK)

#endif
