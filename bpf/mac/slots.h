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
#include "events.h"
#include "labels.h"
#include "remembered.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "precedence.h"

_Static_assert(MAC_POINTS <= 64 * USHER_MAC_POINT_WORDS, "entry points");
_Static_assert(MAC_POINTS <= USHER_MAC_MOST_POINTS, "entry points");

/* Refusals, one copy per CPU. Key: entry point * USHER_MAC_MODULES + slot. */
CPU_TABLE(refusals, MAC_POINTS *USHER_MAC_MODULES, __u64);

/* The modules to ask at an entry point, one bit each, by what is in force. */
static __always_inline usher_mac_slots modules_of(const struct usher_mac_in_force *now, __u32 point)
{
	return now ? now->enabled & now->declared[point] : 0;
}

static __always_inline usher_mac_slots modules_at(__u32 point)
{
	return modules_of(first_of(&in_force), point);
}

/* Looks up the label of a process, from its main thread. */
static __always_inline void find_label(struct mac_asker *asker, struct task_struct *leader)
{
	struct usher_mac_process *process = bpf_task_storage_get(&processes, leader, NULL, 0);

	if (process)
		asker->label = &process->label;
}

/* Looks up the label of a process, from its main thread. Of the modules in `exempting`, returns
 * those that exempt the process. */
static __always_inline usher_mac_slots look_up_process(struct mac_asker *asker,
						       usher_mac_slots exempting,
						       struct task_struct *leader)
{
	find_label(asker, leader);
	return exempted(asker->label, exempting);
}

/* As look_up_caller, with what is in force. */
static __always_inline usher_mac_slots look_up_caller_now(const struct usher_mac_in_force *now,
							  usher_mac_slots asked,
							  struct mac_asker *caller)
{
	usher_mac_slots exempting = begin_asker(now, asked, caller);

	if (!caller->slots)
		return 0;
	return look_up_process(caller, exempting, bpf_get_current_task_btf()->group_leader);
}

/* Looks up the calling process, for these modules. Returns those that exempt it. */
static __always_inline usher_mac_slots look_up_caller(usher_mac_slots asked,
						      struct mac_asker *caller)
{
	return look_up_caller_now(first_of(&in_force), asked, caller);
}

/* Returns which modules in `asked` are asked about the calling process. Called first of all,
 * because a process that all of them exempt is to cost no more. */
static __always_inline usher_mac_slots those_about_caller(usher_mac_slots asked,
							  struct mac_asker *caller)
{
	return asked & ~look_up_caller(asked, caller);
}

static __always_inline usher_mac_slots modules_about_caller(__u32 point, struct mac_asker *caller)
{
	const struct usher_mac_in_force *now = first_of(&in_force);
	usher_mac_slots asked = modules_of(now, point);

	return asked & ~look_up_caller_now(now, asked, caller);
}

/* Leaves out the modules in `exempting`, if the asker has no element of any module. If it has one,
 * `those_left` decides later which modules exempt it. */
static __always_inline usher_mac_slots those_near(usher_mac_slots asked, struct mac_asker *asker,
						  usher_mac_slots exempting)
{
	if (!asker->label || is_blank(asker->label))
		return asked & ~exempting;
	asker->exempting = exempting;
	return asked;
}

/* Returns which modules are asked at an entry point about the calling process, for accesses that
 * are remembered. Which modules exempt a process with elements, `those_left` decides later. */
static __always_inline usher_mac_slots modules_near_caller(__u32 point, struct mac_asker *caller)
{
	const struct usher_mac_in_force *now = first_of(&in_force);
	usher_mac_slots asked = modules_of(now, point), exempting = begin_asker(now, asked, caller);

	if (!caller->slots)
		return asked;
	find_label(caller, bpf_get_current_task_btf()->group_leader);
	return those_near(asked, caller, exempting);
}

/* As those_about_caller, about the process of another thread. */
static __always_inline usher_mac_slots those_about(usher_mac_slots asked,
						   struct task_struct *thread,
						   struct mac_asker *process)
{
	usher_mac_slots exempting = begin_asker(first_of(&in_force), asked, process);

	if (!process->slots)
		return asked;
	return asked & ~look_up_process(process, exempting, thread->group_leader);
}

/* As those_about_caller, where no process acts. */
static __always_inline usher_mac_slots those_about_nobody(usher_mac_slots asked,
							  struct mac_asker *nobody)
{
	return asked & ~begin_asker(first_of(&in_force), asked, nobody);
}

/* As modules_near_caller, about the owner of a socket, which may be NULL. */
static __always_inline usher_mac_slots modules_near_socket(__u32 point, struct sock *socket,
							   struct mac_asker *owner)
{
	const struct usher_mac_in_force *now = first_of(&in_force);
	usher_mac_slots asked = modules_of(now, point), exempting = begin_asker(now, asked, owner);

	if (owner->slots && socket)
		owner->label = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	return those_near(asked, owner, exempting);
}

/*
 * Adds a module's answer to those before, and counts a refusal. Where modules lower processes, the
 * answer so far may be the slots of those that do, a number above 0: an error takes its place.
 * Global, so that the verifier goes through it once and not on every path.
 */
__attribute__((noinline)) int mac_add(int before, int answer, __u32 point, __u32 slot)
{
	__u32 place = point * USHER_MAC_MODULES + slot;
	int error = mac_error_of(answer);

	if (error)
		count_up(bpf_map_lookup_elem(&refusals, &place));
	return mac_compose(before > 0 ? 0 : before, error);
}

/* Composes two answers into one. Global, as mac_add is. */
__attribute__((noinline)) int mac_both(int one, int other)
{
	return mac_compose(one, other);
}

/* Keeps the element that a check in a slot wants the process to get. Returns MAC_DEMOTES, or an
 * error. Global, as mac_add is. */
__attribute__((noinline)) int mac_keep_wanted(const struct usher_mac_element *element __arg_nonnull,
					      __u32 slot)
{
	struct mac_demotion *room = bpf_task_storage_get(&demotions, bpf_get_current_task_btf(),
							 NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!room)
		return -EACCES;
	room->wanted[slot & (USHER_MAC_MODULES - 1)].element = *element;
	return MAC_DEMOTES;
}

/*
 * Gives the process of an access the elements that were kept for it, for the modules in these
 * slots. Returns 0, or an error. If its label has changed since, `labels` gets the present one, and
 * the slots are returned: modules are to be asked again. See demotions.h.
 */
int mac_lower(usher_mac_slots slots, __u32 point, const struct usher_mac_subject *subject,
	      struct mac_labels *labels, const struct usher_mac_file *file);

/*
 * Makes the verifier forget which bits of a number are set. Otherwise it would follow each set of
 * modules separately where they are asked a second time. Global, because the verifier cannot assume
 * that such a function changes nothing.
 */
__attribute__((noinline)) int mac_unsee(usher_mac_slots *slots __arg_nonnull)
{
	asm volatile("" : : "r"(slots) : "memory");
	return 0;
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

/* Asks the module in a slot. The bits of `asked` begin with it. */
#define MAC_ASK_SLOT(name, number)                                                                 \
	if (asked & 1)                                                                             \
		error = mac_one_##name(error, number, subject, wanted, labels);                    \
	asked >>= 1;                                                                               \
	if (!asked)                                                                                \
		break;

/* A module without labels writes its element here. Nobody reads it. */
static struct usher_mac_element ignored;

/* Tells user space what the module in a slot has refused. */
#define MAC_TELL(name, slot, given, subject, labels, wanted)                                       \
	({                                                                                         \
		struct mac_outcome refused = {                                                     \
			.point = MAC_POINT_##name,                                                 \
			.slot = slot,                                                              \
			.answer = given,                                                           \
		};                                                                                 \
                                                                                                   \
		mac_tell(subject, labels, MAC_FILE_OF(wanted), &refused);                          \
	})

/*
 * Asks the modules in `asked`, and composes their answers. Global functions do the work, because
 * the verifier goes through each of them once, and not for each slot on every path: mac_one_NAME
 * asks the module in a slot and adds its answer to those before. Labels are looked up only for a
 * module that has some: mac_answer_NAME calls that.
 */
#define MAC_ANSWER_CHECK(name)                                                                     \
	__attribute__((noinline)) int mac_answer_##name(                                           \
	    const struct usher_mac_subject *subject, mac_##name##_request *wanted,                 \
	    const struct usher_mac_element *own, const struct usher_mac_element *object,           \
	    const struct mac_labels *labels __arg_nonnull)                                         \
	{                                                                                          \
		const struct usher_mac_element *directory;                                         \
		__u32 slot = labels->slot;                                                         \
                                                                                                   \
		directory = element_at(element_of(&labels->directory, slot), slot);                \
		return MAC_ANSWER_IN(name, slot, subject, wanted, own, object, directory);         \
	}

/* As MAC_ANSWER_CHECK, where a module may lower the process. The module writes the element only
 * with MAC_DEMOTES. */
#define MAC_ANSWER_DEMOTING(name)                                                                  \
	__attribute__((noinline)) int mac_answer_##name(                                           \
	    const struct usher_mac_subject *subject, mac_##name##_request *wanted,                 \
	    const struct usher_mac_element *own, const struct usher_mac_element *object,           \
	    const struct mac_labels *labels __arg_nonnull)                                         \
	{                                                                                          \
		struct usher_mac_element element;                                                  \
		__u32 slot = labels->slot;                                                         \
		int given;                                                                         \
                                                                                                   \
		/* See begin_labels. */                                                            \
		asm volatile("" : : "r"(&element) : "memory");                                     \
		element.kind = USHER_MAC_NONE;                                                     \
		given = MAC_ANSWER_IN(name, slot, subject, wanted, own, object, &element);         \
		return given == MAC_DEMOTES ? mac_keep_wanted(&element, slot) : given;             \
	}

#define MAC_ONE(name, can_lower, last)                                                             \
	__attribute__((noinline)) int mac_one_##name(                                              \
	    int before, __u32 slot, const struct usher_mac_subject *subject,                       \
	    mac_##name##_request *wanted, struct mac_labels *labels __arg_nonnull)                 \
	{                                                                                          \
		const struct usher_mac_element *own, *object;                                      \
		int answer;                                                                        \
                                                                                                   \
		labels->slot = slot;                                                               \
		if (labels->slots >> slot & 1) {                                                   \
			own = element_at(element_of(&labels->subject, slot), slot);                \
			object = element_at(element_of(&labels->object, slot), slot);              \
			answer = mac_answer_##name(subject, wanted, own, object, labels);          \
		} else {                                                                           \
			/* Without a further call. */                                              \
			answer =                                                                   \
			    MAC_ANSWER_IN(name, slot, subject, wanted, &nothing, &nothing, last);  \
		}                                                                                  \
		if (!answer) {                                                                     \
			if (has_remembered(MAC_POINT_##name) && labels->access)                    \
				mac_remember(labels);                                              \
			return before;                                                             \
		}                                                                                  \
		slot = labels->slot;                                                               \
		if (can_lower && answer == MAC_DEMOTES && labels->slots >> slot & 1)               \
			return before < 0 ? before : before | 1 << (slot & 7);                     \
		MAC_TELL(name, slot, answer, subject, labels, wanted);                             \
		return mac_add(before, answer, MAC_POINT_##name, slot);                            \
	}                                                                                          \
                                                                                                   \
	static __always_inline int mac_all_##name(                                                 \
	    usher_mac_slots asked, const struct usher_mac_subject *subject,                        \
	    mac_##name##_request *wanted, struct mac_labels *labels)                               \
	{                                                                                          \
		int error = 0;                                                                     \
                                                                                                   \
		do {                                                                               \
			MAC_ASK_SLOT(name, 0)                                                      \
			MAC_ASK_SLOT(name, 1)                                                      \
			MAC_ASK_SLOT(name, 2)                                                      \
			MAC_ASK_SLOT(name, 3)                                                      \
			MAC_ASK_SLOT(name, 4)                                                      \
			MAC_ASK_SLOT(name, 5)                                                      \
			MAC_ASK_SLOT(name, 6)                                                      \
			MAC_ASK_SLOT(name, 7)                                                      \
		} while (0);                                                                       \
		asm volatile("" : "+r"(error));                                                    \
		return error;                                                                      \
	}

/* Defined in objects.h. */
usher_mac_slots mac_about_file(usher_mac_slots asked, const struct usher_mac_file *file,
			       const struct usher_mac_subject *subject);

/* Those modules in `asked` that are asked about the wanted object. */
#define MAC_ABOUT(asked, wanted, subject)                                                          \
	(MAC_FILE_OF(wanted) ? mac_about_file(asked, MAC_FILE_OF(wanted), subject) : (asked))

#define MAC_ASK_CHECK(name)                                                                        \
	MAC_ANSWER_CHECK(name)                                                                     \
	MAC_ONE(name, 0, &nothing)                                                                 \
                                                                                                   \
	static __always_inline int mac_ask_##name(                                                 \
	    usher_mac_slots asked, const struct usher_mac_subject *subject,                        \
	    mac_##name##_request *wanted, struct mac_labels *labels)                               \
	{                                                                                          \
		asked = MAC_ABOUT(asked, wanted, subject);                                         \
		return mac_bounded(mac_all_##name(asked, subject, wanted, labels));                \
	}

/* Limit of the attempts to lower a process whose label another thread changes at the same time. */
#define MAC_LOWERINGS 4
/* Beside the slots: this is the last attempt. */
#define MAC_LAST_LOWERING (1 << USHER_MAC_MODULES)

#define MAC_ASK_DEMOTING(name)                                                                     \
	MAC_ANSWER_DEMOTING(name)                                                                  \
	MAC_ONE(name, 1, &ignored)                                                                 \
                                                                                                   \
	static __always_inline int mac_ask_##name(                                                 \
	    usher_mac_slots asked, const struct usher_mac_subject *subject,                        \
	    mac_##name##_request *wanted, struct mac_labels *labels)                               \
	{                                                                                          \
		int answer = 0;                                                                    \
                                                                                                   \
		asked = MAC_ABOUT(asked, wanted, subject);                                         \
		for (int i = 0; i < MAC_LOWERINGS; i++) {                                          \
			answer = mac_all_##name(asked, subject, wanted, labels);                   \
			if (answer <= 0)                                                           \
				break;                                                             \
			if (i == MAC_LOWERINGS - 1)                                                \
				answer |= MAC_LAST_LOWERING;                                       \
			answer = mac_lower(answer, MAC_POINT_##name, subject, labels,              \
					   MAC_FILE_OF(wanted));                                   \
			if (answer <= 0)                                                           \
				break;                                                             \
			/* About the label that it has now, all of them. */                        \
			asked |= labels->remembered;                                               \
			labels->slots |= labels->remembered;                                       \
			labels->remembered = 0;                                                    \
			mac_unsee(&asked);                                                         \
		}                                                                                  \
		return mac_bounded(answer);                                                        \
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
		if (answer)                                                                        \
			MAC_TELL(name, slot, answer, subject, NULL, wanted);                       \
		return mac_add(0, answer, MAC_POINT_##name, slot);                                 \
	}
#define MAC_ASK_DECISION(name) MAC_ASK_RELABEL(name)

#define MAC_ASK(name, form, ...) MAC_ASK_##form(name)
USHER_MAC_ENTRY_POINTS(MAC_ASK)

#endif
