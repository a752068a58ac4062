/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The labels of programs that are executed: modules decide about each script, and then about its
 * interpreter (docs/adr/0087-modules-decide-about-scripts.md), or about the program.
 */
#ifndef USHER_MAC_EXECUTIONS_H
#define USHER_MAC_EXECUTIONS_H

#include "process_labels.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct linux_binprm___mac {
	int unsafe;
};

#pragma clang attribute pop

/* Has the module in a slot decide the element of a new program, and puts the element's number into
 * the label in the scratch memory. */
static __always_inline int decide_program(__u32 slot, struct mac_scratch *now,
					  const struct usher_mac_execution *wanted,
					  struct usher_mac_label *file)
{
	const struct usher_mac_element *own, *before, *of_file;
	struct usher_mac_module *module;
	long number;
	int error;

	module = bpf_map_lookup_elem(&modules, &slot);
	if (!module)
		return -EACCES;
	__builtin_memset(&now->wanted, 0, sizeof(now->wanted));
	before = element_at(*place_of(&now->label, slot), slot);
	own = element_at(*place_of(&now->own, slot), slot);
	of_file = element_at(*place_of(file, slot), slot);
	now->wanted.element = *before;
	error =
	    mac_ask_new_program(slot, &now->subject, wanted, own, of_file, &now->wanted.element);
	if (error)
		return error;
	number = number_decided(now, module, slot);
	if (number < 0)
		return number;
	*place_of(&now->label, slot) = number;
	return 0;
}

struct program_reading {
	struct mac_scratch *scratch;
	usher_mac_slots asked;
	int error;
};

/* Each module is asked about a script before it is asked about the interpreter. */
static long decide_program_slot(__u64 step, struct program_reading *reading)
{
	__u64 slot = step % USHER_MAC_MODULES, file = step / USHER_MAC_MODULES;
	struct mac_scratch *now = reading->scratch;

	if (file > MAC_SCRIPTS)
		return 1;
	if (reading->asked >> slot & 1)
		reading->error =
		    decide_program(slot, now, &now->programs[file], &now->of_programs[file]);
	return reading->error != 0;
}

/* The modules that decide about new programs. */
static __always_inline usher_mac_slots deciding(void)
{
	return modules_at(MAC_POINT_new_program) & labelled_of(USHER_MAC_ALL_SLOTS);
}

/* Reads a file of an execution into its place in the scratch memory. Returns 1 if modules are asked
 * about the file, 0 if they are not, or -EACCES. */
static __always_inline int read_program(struct mac_scratch *now, __u32 place, struct file *file)
{
	struct inode *inode = file->f_inode;
	usher_mac_slots unknown;
	int found;

	asm volatile("" : "+r"(place));
	if (place > MAC_SCRIPTS)
		return -EACCES;
	found = read_file(&now->programs[place].file, inode);
	if (!found)
		return 0;
	if (found & KIND_IS_LAYERED)
		unknown = read_layer_label(&now->of_programs[place], inode, file);
	else
		unknown = read_file_label(&now->of_programs[place], inode,
					  now->programs[place].file.device);
	unknown &= asked_about(deciding(), &now->own);
	return refuses_elements(&now->subject, unknown) ? -EACCES : 1;
}

/* Notes a script, because it says what its interpreter does: the modules are asked about both when
 * the program is known. With a stack of its own. */
static __noinline int note_script(struct file *script)
{
	struct mac_scratch *now = take_scratch();
	int error;

	if (!now)
		return -ENOMEM;
	read_subject(&now->subject);
	read_own_label(&now->own);
	error = read_program(now, now->scripts, script);
	if (error > 0)
		now->scripts++;
	return error < 0 ? error : 0;
}

/* Whether a file is one that says by its first line which program interprets it. */
static __always_inline int is_script(const struct linux_binprm *program)
{
	return program->buf[0] == '#' && program->buf[1] == '!';
}

/* For bprm_check_security, which comes for each file of an execution. */
static __always_inline int follow_execution(struct linux_binprm *program)
{
	const struct linux_binprm *begun = bpf_core_cast(program, struct linux_binprm);
	struct mac_scratch *now;

	if (!deciding())
		return 0;
	/* The first file: forget the scripts of an execution that has failed. */
	if (begun->interp == begun->filename) {
		now = bpf_task_storage_get(&scratch, bpf_get_current_task_btf(), NULL, 0);
		if (now)
			now->scripts = 0;
	}
	return is_script(begun) ? note_script(program->file) : 0;
}

static __always_inline void overlay(struct usher_mac_label *label,
				    const struct usher_mac_label *elements)
{
#pragma unroll
	for (int i = 0; i < USHER_MAC_MODULES; i++)
		if (elements->elements[i])
			label->elements[i] = elements->elements[i];
}

static __always_inline int decide_execution(struct linux_binprm *program, struct mac_scratch *now,
					    struct file *file)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct program_reading reading = { .scratch = now };
	const struct linux_binprm *begun = bpf_core_cast(program, struct linux_binprm);
	struct usher_mac_process *own, *leader;
	int answer;

	own = entry_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	leader = entry_of(task->group_leader, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!own || !leader)
		return -ENOMEM;
	bpf_spin_lock(&leader->lock);
	own->label = leader->label;
	own->from = own->label;
	own->may_hold_ring |= leader->may_hold_ring;
	bpf_spin_unlock(&leader->lock);
	now->own = own->from;
	now->label = own->from;
	overlay(&now->label, &own->at_exec);
	read_subject(&now->subject);
	reading.asked = deciding();
	if (reading.asked) {
		answer = read_program(now, now->scripts, file);
		if (answer < 0)
			return answer;
		for (int i = 0; i <= MAC_SCRIPTS; i++) {
			now->programs[i].euid = begun->cred->euid.val;
			now->programs[i].egid = begun->cred->egid.val;
		}
		bpf_loop((now->scripts + answer) * USHER_MAC_MODULES, decide_program_slot, &reading,
			 0);
	}
	/* The former label permitted other processes to share this process's state and trace it,
	 * and permitted this one to trace others; nothing has permitted that to the new label. The
	 * same holds for a process that answers this one's system calls (seccomp), and for a ring
	 * that stays open. */
	if (!reading.error && !are_equal(&now->label, &now->own) &&
	    (bpf_core_cast(program, struct linux_binprm___mac)->unsafe &
		 (LSM_UNSAFE_SHARE | LSM_UNSAFE_PTRACE) ||
	     traces(task) || has_listener(task) || mac_holds_ring(1)))
		reading.error = -EPERM;
	own->to = now->label;
	own->is_decided = !reading.error;
	return reading.error;
}

/*
 * Hook: bprm_creds_from_file, because it comes once for each execution, with the file that runs, as
 * the last one that can refuse.
 */
SEC("lsm/bprm_creds_from_file")
int BPF_PROG(dispatch_bprm_creds_from_file, struct linux_binprm *program, struct file *file)
{
	struct usher_mac_process *own;
	struct mac_scratch *now;
	int error;

	if (!labelled_of(USHER_MAC_ALL_SLOTS)) {
		/* An execution that has failed may have set is_decided. */
		own = entry_of(bpf_get_current_task_btf(), 0);
		if (own)
			own->is_decided = 0;
		return 0;
	}
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	error = decide_execution(program, now, file);
	return mac_bounded(error);
}

/*
 * Hook: bprm_committed_creds, because the process has one thread again, and runs nothing of the new
 * program yet. The process is killed if another thread has changed the label since, because no
 * module has decided about that label, or if a thread has made a ring that stays open.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(dispatch_bprm_committed_creds, const struct linux_binprm *program)
{
	const struct usher_mac_labelled *with_labels = labelled_now();
	struct usher_mac_process *own;
	int is_changed, is_stale, keeps_ring;
	__u64 order;

	if (!with_labels || !with_labels->slots)
		return 0;
	order = with_labels->order;
	own = entry_of(bpf_get_current_task_btf(), 0);
	/* The modules came into force after they would have decided. */
	if (!own || !own->is_decided)
		return 0;
	own->is_decided = 0;
	/* Rings that end with the former program are closed by now. */
	is_changed = !are_equal(&own->from, &own->to);
	keeps_ring = (is_changed || own->may_hold_ring) && mac_holds_ring(1);
	bpf_spin_lock(&own->lock);
	is_stale = !are_equal(&own->label, &own->from) || (keeps_ring && is_changed);
	if (!is_stale)
		own->label = own->to;
	own->at_exec = no_label;
	/* The new program has no mappings yet. */
	own->began = order;
	own->shares_memory = 0;
	own->may_hold_ring = keeps_ring;
	bpf_spin_unlock(&own->lock);
	if (is_stale)
		bpf_send_signal(SIGKILL);
	return 0;
}

#endif
