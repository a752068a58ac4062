/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Lowers the process of an access: the process gets the elements that modules demand in return for
 * the access.
 *
 * A lowered process must have lost everything that only its former label permits. Modules are asked
 * at each use of its open files, but not of its mappings, and Linux takes no mapping away. So a
 * process that has mapped a file or memory which it shares, and can write, is not lowered.
 * mmap_file notes such a mapping, under the lock of the label, before it asks modules. So either
 * the mapping is noted before the label is looked at here, or modules are asked about the mapping
 * with the new label. A process that may hold an io_uring together with another one is not lowered
 * either (rings.h).
 */
#ifndef USHER_MAC_DEMOTIONS_H
#define USHER_MAC_DEMOTIONS_H

#include "process_labels.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___mac_execution {
	unsigned in_execve : 1;
};

#pragma clang attribute pop

enum pid_type {
	PIDTYPE_PID,
	PIDTYPE_TGID,
};

extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
extern int bpf_send_signal_task(struct task_struct *task, int signal, enum pid_type of,
				__u64 value) __ksym;

/* Numbers the elements that were kept for modules, in the label that the process is to get. Returns
 * the order of the youngest of these modules: the process's program must not have begun before that
 * module came into force. 0: there is no room. */
static __always_inline __u64 number_wanted(struct mac_demotion *room, usher_mac_slots slots,
					   __u32 limit)
{
	struct usher_mac_module *module;
	__u64 youngest = 0;
	long number;

	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++) {
		__u32 key = slot;

		if (!(slots >> slot & 1))
			continue;
		module = bpf_map_lookup_elem(&modules, &key);
		if (!module || room->wanted[slot].element.kind != module->label)
			return 0;
		room->wanted[slot].order = module->order;
		room->wanted[slot].slot = slot;
		if (module->order > youngest)
			youngest = module->order;
		number = number_of(&room->wanted[slot], limit);
		if (number <= 0)
			return 0;
		room->label.elements[slot] = number;
	}
	return youngest;
}

/* Lowers a process. Returns 0; -EAGAIN if its label is not `former`, which then gets the present
 * label; or a reason (enum usher_mac_reason). */
static __always_inline int lower(struct task_struct *main, struct mac_demotion *room,
				 struct usher_mac_label *former, __u64 youngest)
{
	struct usher_mac_process *process = entry_of(main, 0), *above = NULL;
	struct task_struct *parent = vfork_parent_of(main);
	int answer = 0;

	if (!process)
		return USHER_MAC_IS_OLDER;
	if (is_in_trace(main))
		return USHER_MAC_IS_TRACED;
	/* The process has its parent's memory. */
	if (parent)
		above = entry_of(parent, 0);
	if (above && above->shares_memory)
		return USHER_MAC_SHARES_MEMORY;
	bpf_spin_lock(&process->lock);
	if (!are_equal(&process->label, former)) {
		*former = process->label;
		answer = -EAGAIN;
	} else if (process->began < youngest) {
		answer = USHER_MAC_IS_OLDER;
	} else if (process->shares_memory || process->may_hold_ring) {
		answer = USHER_MAC_SHARES_MEMORY;
	} else {
		process->label = room->label;
	}
	bpf_spin_unlock(&process->lock);
	if (answer)
		return answer;
	reach_threads(main, process, 1);
	/* A tracer or mapping that came meanwhile was permitted by the former label. */
	if (is_in_trace(main) || (above && above->shares_memory))
		bpf_send_signal_task(main, SIGKILL, PIDTYPE_TGID, 0);
	return 0;
}

/* Whether the calling thread executes a program. The kernel then reads the program's file, about
 * which new_program decides. */
static __always_inline int is_executing(void)
{
	const struct task_struct___mac_execution *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac_execution);

	return BPF_CORE_READ_BITFIELD_PROBED(task, in_execve);
}

/*
 * Lowers the process of this number, for the modules in these slots. As `lower`. Global, as the
 * next one is, so that the verifier goes through it once, and because all stacks have little room.
 */
__attribute__((noinline)) int
mac_lower_process(usher_mac_slots slots, const struct usher_mac_subject *subject __arg_nonnull,
		  struct usher_mac_label *former __arg_nonnull)
{
	struct mac_demotion *room =
	    bpf_task_storage_get(&demotions, bpf_get_current_task_btf(), NULL, 0);
	struct task_struct *main;
	__u64 youngest;
	int answer;

	if (!room)
		return USHER_MAC_NO_ROOM;
	room->label = *former;
	youngest = number_wanted(room, slots, limit_of(subject));
	if (!youngest)
		return USHER_MAC_NO_ROOM;
	main = bpf_task_from_pid(subject->process);
	if (!main)
		return USHER_MAC_CHANGES;
	answer = lower(main, room, former, youngest);
	bpf_task_release(main);
	return answer;
}

/* Reports the outcome to user space, for each of these slots. Returns the error. */
__attribute__((noinline)) int mac_tell_lowering(usher_mac_slots slots,
						const struct mac_outcome *outcome __arg_nonnull,
						const struct usher_mac_subject *subject,
						const struct mac_labels *labels,
						const struct usher_mac_file *file)
{
	struct mac_demotion *room =
	    bpf_task_storage_get(&demotions, bpf_get_current_task_btf(), NULL, 0);
	struct mac_outcome of_slot = *outcome;
	int error = 0;

	/* Never NULL here: it was made to hold the elements. */
	if (!room)
		return -EACCES;
	for (__u32 i = 0; i < USHER_MAC_MODULES; i++) {
		__u32 slot = i;

		if (!(slots >> slot & 1))
			continue;
		of_slot.slot = slot;
		if (of_slot.answer) {
			error = mac_add(error, of_slot.answer, of_slot.point, slot);
		} else {
			of_slot.element = room->label.elements[slot];
			count_up(bpf_map_lookup_elem(&lowered, &slot));
		}
		mac_tell(subject, labels, file, &of_slot);
	}
	return error;
}

/* See slots.h. */
__attribute__((noinline)) int mac_lower(usher_mac_slots slots, __u32 point,
					const struct usher_mac_subject *subject,
					struct mac_labels *labels __arg_nonnull,
					const struct usher_mac_file *file)
{
	struct mac_outcome outcome = { .point = point };
	int answer;

	if (!subject)
		return -EACCES;
	if (point == MAC_POINT_file_permission && is_executing())
		return 0;
	answer = mac_lower_process(slots, subject, &labels->subject);
	if (answer == -EAGAIN) {
		if (!(slots & MAC_LAST_LOWERING))
			return slots;
		answer = USHER_MAC_CHANGES;
	}
	if (answer) {
		outcome.answer = -EACCES;
		outcome.reason = answer;
	}
	return mac_tell_lowering(slots, &outcome, subject, labels, file);
}

#endif
