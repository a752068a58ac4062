/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The life of labels of processes: a new process has its parent's, a new program what modules
 * decide, and lsm_set_self_attr(2) sets elements if their modules permit it.
 *
 * A process has one label, in the storage of its main thread. When another thread executes a
 * program, that storage ends with the main thread, and the executing one takes its place. So it
 * copies the label before, and a change of the label reaches all copies. Entries of all threads are
 * written under the lock of the main thread's.
 */
#ifndef USHER_MAC_PROCESS_LABELS_H
#define USHER_MAC_PROCESS_LABELS_H

#include "label_text.h"
#include "usher_prepared.h"

#define CLONE_VM 0x00000100
#define CLONE_VFORK 0x00004000
#define CLONE_PARENT 0x00008000
#define CLONE_THREAD 0x00010000

/* Of a program that is executed, in `unsafe`: another process has the same working directory, root
 * and umask (CLONE_FS); another process traces it. */
#define LSM_UNSAFE_SHARE 1
#define LSM_UNSAFE_PTRACE 2

#define LSM_ATTR_CURRENT 100
#define LSM_ATTR_EXEC 101

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct linux_binprm___mac {
	int unsafe;
};

struct list_head___mac {
	struct list_head___mac *next;
};

struct task_struct___mac_tracees {
	struct list_head___mac ptraced;
};

struct lsm_ctx {
	__u64 flags;
	__u64 ctx_len;
	__u8 ctx[0];
};

#pragma clang attribute pop

/* An iterator over threads. */
struct bpf_iter_task {
	__u64 state[3];
} __attribute__((aligned(8)));

extern struct task_struct *bpf_task_acquire(struct task_struct *task) __ksym;
extern void bpf_task_release(struct task_struct *task) __ksym;
extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task,
			     unsigned int flags) __ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;

/* BPF_TASK_ITER_PROC_THREADS: the threads of a process. */
#define THREADS_OF_PROCESS 2

static __always_inline struct usher_mac_process *entry_of(struct task_struct *thread, __u64 flags)
{
	return bpf_task_storage_get(&processes, thread, NULL, flags);
}

/* Whether a thread traces another process: the kernel asks about that once, when it begins. */
static __always_inline int traces(const struct task_struct *thread)
{
	const struct task_struct___mac_tracees *own =
	    bpf_core_cast(thread, struct task_struct___mac_tracees);

	return own->ptraced.next != &own->ptraced;
}

/* The process that waits in vfork(2) for this thread's, with the same memory; NULL: there is none.
 */
static __always_inline struct task_struct *vfork_parent_of(struct task_struct *thread)
{
	const struct task_struct *own = bpf_core_cast(thread, struct task_struct);
	const struct task_struct *parent = bpf_core_cast(own->real_parent, struct task_struct);

	return own->mm && own->mm == parent->mm ? thread->real_parent->group_leader : NULL;
}

static __always_inline void note_sharing(struct task_struct *leader)
{
	struct usher_mac_process *process = entry_of(leader, 0);

	if (!process)
		return;
	bpf_spin_lock(&process->lock);
	process->shares_memory = 1;
	bpf_spin_unlock(&process->lock);
}

/*
 * Whether a new process must count as one that shares memory which it can write. It has its
 * parent's mappings: also one that another thread of the parent makes right now. A process that has
 * the parent's memory itself (CLONE_VM) is followed where the parent waits for it, as in vfork(2);
 * elsewhere all of them count.
 */
static __always_inline int begins_sharing(struct task_struct *parent, __u64 flags)
{
	struct task_struct *above;

	if (!(flags & CLONE_VM))
		return bpf_core_cast(parent, struct task_struct)->signal->nr_threads > 1;
	above = vfork_parent_of(parent);
	if (flags & CLONE_VFORK && !(flags & CLONE_PARENT) && !above)
		return 0;
	note_sharing(parent->group_leader);
	if (above)
		note_sharing(above);
	return 1;
}

/* Hook: task_alloc, because the new process runs nothing yet. */
SEC("lsm/task_alloc")
int BPF_PROG(dispatch_task_alloc, struct task_struct *task, __u64 flags)
{
	struct task_struct *caller = bpf_get_current_task_btf();
	struct usher_mac_process *parent, *child;
	int is_sharing;

	if (!labelled_of(~0ULL) || flags & CLONE_THREAD)
		return 0;
	is_sharing = begins_sharing(caller, flags);
	parent = entry_of(caller->group_leader, 0);
	if (!parent)
		return 0;
	child = entry_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!child)
		return -ENOMEM;
	bpf_spin_lock(&parent->lock);
	child->label = parent->label;
	child->began = parent->began;
	child->shares_memory = parent->shares_memory | is_sharing;
	bpf_spin_unlock(&parent->lock);
	return 0;
}

/* The element of a new program, for the module in a slot: put into the room. */
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
	__u64 asked;
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
static __always_inline __u64 deciding(void)
{
	return modules_at(MAC_POINT_new_program) & labelled_of(~0ULL);
}

/* Reads a file of an execution into the room, at its place there. Returns 0 where modules are not
 * asked about it: files of BPF file systems, which are no programs. */
static __always_inline int read_program(struct mac_scratch *now, __u32 place, struct inode *inode)
{
	struct mac_labels labels = {};

	asm volatile("" : "+r"(place));
	if (place > MAC_SCRIPTS)
		return -EACCES;
	if (!read_file(&now->programs[place].file, inode))
		return 0;
	labels.slots = asked_about(deciding(), &now->own);
	labels.unknown = read_file_label(&labels.object, inode, now->programs[place].file.device);
	now->of_programs[place] = labels.object;
	return refuses_unknown(&now->subject, &labels) ? -EACCES : 1;
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
	error = read_program(now, now->scripts, script->f_inode);
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
					    struct inode *inode)
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
	bpf_spin_unlock(&leader->lock);
	now->own = own->from;
	now->label = own->from;
	overlay(&now->label, &own->at_exec);
	read_subject(&now->subject);
	reading.asked = deciding();
	if (reading.asked) {
		answer = read_program(now, now->scripts, inode);
		if (answer < 0)
			return answer;
		for (int i = 0; i <= MAC_SCRIPTS; i++) {
			now->programs[i].euid = begun->cred->euid.val;
			now->programs[i].egid = begun->cred->egid.val;
		}
		bpf_loop((now->scripts + answer) * USHER_MAC_MODULES, decide_program_slot, &reading,
			 0);
	}
	/* Others control it that were permitted to control its former label, and no other one; it
	 * controls others that its former label was permitted to control. Its filter of system
	 * calls may have somebody answer them. */
	if (!reading.error && !are_equal(&now->label, &now->own) &&
	    (bpf_core_cast(program, struct linux_binprm___mac)->unsafe &
		 (LSM_UNSAFE_SHARE | LSM_UNSAFE_PTRACE) ||
	     traces(task) || has_listener(task)))
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

	if (!labelled_of(~0ULL)) {
		/* Of an execution that has failed, perhaps. */
		own = entry_of(bpf_get_current_task_btf(), 0);
		if (own)
			own->is_decided = 0;
		return 0;
	}
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	error = decide_execution(program, now, file->f_inode);
	return mac_bounded(error);
}

/*
 * Hook: bprm_committed_creds, because the process has one thread again, and runs nothing of the new
 * program yet. If another thread has changed the label since, no module has decided about that
 * one: the process is killed.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(dispatch_bprm_committed_creds, const struct linux_binprm *program)
{
	struct usher_mac_labelled *in_force = first_of(&labelled);
	struct usher_mac_process *own;
	int is_stale;
	__u64 order;

	if (!in_force || !in_force->slots)
		return 0;
	order = in_force->order;
	own = entry_of(bpf_get_current_task_btf(), 0);
	/* The modules came into force after they would have decided. */
	if (!own || !own->is_decided)
		return 0;
	own->is_decided = 0;
	bpf_spin_lock(&own->lock);
	is_stale = !are_equal(&own->label, &own->from);
	if (!is_stale)
		own->label = own->to;
	own->at_exec = no_label;
	/* It has no mappings yet. */
	own->began = order;
	own->shares_memory = 0;
	bpf_spin_unlock(&own->lock);
	if (is_stale)
		bpf_send_signal(SIGKILL);
	return 0;
}

/* Whether a process traces a thread of this one, or is traced by one, or may answer its system
 * calls. With a stack of its own, because that of setselfattr has little room. */
static __noinline int is_in_trace(struct task_struct *main)
{
	struct bpf_iter_task threads;
	struct task_struct *thread;
	int found = 0;

	bpf_iter_task_new(&threads, main, THREADS_OF_PROCESS);
	while ((thread = bpf_iter_task_next(&threads)))
		found |= thread->ptrace != 0 || traces(thread) || has_listener(thread);
	bpf_iter_task_destroy(&threads);
	return found;
}

/* Copies a changed label to other threads that have an entry, and takes back what they would have
 * got at exec: it was permitted to the former label. */
static __always_inline void reach_threads(struct task_struct *main,
					  struct usher_mac_process *leader)
{
	struct usher_mac_process *entry;
	struct bpf_iter_task threads;
	struct task_struct *thread;

	bpf_iter_task_new(&threads, main, THREADS_OF_PROCESS);
	while ((thread = bpf_iter_task_next(&threads))) {
		entry = entry_of(thread, 0);
		if (!entry)
			continue;
		bpf_spin_lock(&leader->lock);
		entry->label = leader->label;
		entry->at_exec = no_label;
		bpf_spin_unlock(&leader->lock);
	}
	bpf_iter_task_destroy(&threads);
}

/* As set_now, for this process. */
static __always_inline int set_all(struct mac_scratch *now, struct usher_mac_process *leader,
				   struct task_struct *main)
{
	struct usher_mac_label former = now->former, label = now->label;
	int is_same;

	if (are_equal(&former, &label))
		return 0;
	/* A tracer was permitted to control the former label, and no other one; so was this process
	 * to control what it traces. */
	if (is_in_trace(main))
		return -EPERM;
	bpf_spin_lock(&leader->lock);
	is_same = are_equal(&leader->label, &former);
	if (is_same)
		leader->label = label;
	bpf_spin_unlock(&leader->lock);
	if (!is_same)
		return -EAGAIN;
	reach_threads(main, leader);
	/* It came meanwhile. */
	if (is_in_trace(main))
		bpf_send_signal(SIGKILL);
	return 0;
}

/* Makes the label in the room that of the process, if its label is still the one about which
 * modules were asked. */
static __always_inline int set_now(struct mac_scratch *now, struct usher_mac_process *leader)
{
	struct task_struct *main = bpf_task_acquire(bpf_get_current_task_btf()->group_leader);
	int error;

	if (!main)
		return -EAGAIN;
	error = set_all(now, leader, main);
	bpf_task_release(main);
	return error;
}

/* Has the calling thread get these elements when it executes a program. */
static __always_inline int set_at_exec(struct mac_scratch *now, struct usher_mac_process *leader)
{
	struct usher_mac_label former = now->former, label = now->label;
	struct usher_mac_process *own;
	int is_same;

	own = entry_of(bpf_get_current_task_btf(), BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!own)
		return -ENOMEM;
	bpf_spin_lock(&leader->lock);
	is_same = are_equal(&leader->label, &former);
	if (is_same) {
		own->label = former;
		own->at_exec = label;
	}
	bpf_spin_unlock(&leader->lock);
	return is_same ? 0 : -EAGAIN;
}

static __always_inline int set_own(struct lsm_ctx *context, struct mac_scratch *now, int at_exec)
{
	struct label_reading reading = { .scratch = now, .at_exec = at_exec };
	__u64 length = bpf_core_cast(context, struct lsm_ctx)->ctx_len;
	struct usher_mac_process *leader;
	int error;

	leader = entry_of(bpf_get_current_task_btf()->group_leader, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!leader)
		return -ENOMEM;
	read_subject(&now->subject);
	bpf_spin_lock(&leader->lock);
	now->former = leader->label;
	bpf_spin_unlock(&leader->lock);
	now->own = now->former;
	now->label = at_exec ? no_label : now->former;
	reading.slots = labelled_of(~0ULL);
	if (length || !at_exec) {
		error = copy_text(now, context->ctx, length);
		if (error)
			return error;
		error = READ_TEXT(reading, read_process_element);
		if (error)
			return error;
	}
	return at_exec ? set_at_exec(now, leader) : set_now(now, leader);
}

/* A call of a module. */
static __always_inline int call_module(struct lsm_ctx *context)
{
	struct usher_mac_module_call wanted = {};
	struct usher_mac_subject subject;
	struct usher_mac_call call;
	struct mac_asker caller;
	struct mac_labels labels;
	__u64 asked;
	__u32 slot;

	if (bpf_core_cast(context, struct lsm_ctx)->ctx_len != sizeof(call) ||
	    bpf_probe_read_kernel(&call, sizeof(call), context->ctx) || call.reserved)
		return -EINVAL;
	asked = modules_at(MAC_POINT_syscall);
	slot = mac_slot_of((const void *)call.module, asked);
	if (slot >= USHER_MAC_MODULES)
		return -ENOSYS;
	asked &= 1ULL << slot;
	look_up_caller(asked, &caller);
	wanted.call = call.call;
	wanted.argument = call.argument;
	read_subject(&subject);
	begin_labels(&labels, asked, &caller);
	return mac_ask_syscall(asked, &subject, &wanted, &labels);
}

/* The answer of lsm_set_self_attr(2). A module cannot say that the framework has done something. */
static __always_inline int answer_of(int error)
{
	if (error == -USHER_MAC_DONE)
		return -EACCES;
	return mac_bounded(error ? error : -USHER_MAC_DONE);
}

/* Hook: setselfattr, because lsm_set_self_attr(2) needs no privilege. 0: the attribute is not
 * known. */
SEC("lsm/setselfattr")
int BPF_PROG(dispatch_setselfattr, unsigned int attribute, struct lsm_ctx *context, __u32 size,
	     __u32 flags)
{
	struct mac_scratch *now;

	if (attribute != USHER_MAC_ATTR_CALL && attribute != LSM_ATTR_CURRENT &&
	    attribute != LSM_ATTR_EXEC)
		return 0;
	if (flags || bpf_core_cast(context, struct lsm_ctx)->flags)
		return -EINVAL;
	if (attribute == USHER_MAC_ATTR_CALL)
		return answer_of(call_module(context));
	if (!labelled_of(~0ULL))
		return 0;
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	return answer_of(set_own(context, now, attribute == LSM_ATTR_EXEC));
}

#endif
