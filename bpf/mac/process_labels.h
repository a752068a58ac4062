/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The life of labels of processes: a new process has its parent's, a new program what modules
 * decide (executions.h), and lsm_set_self_attr(2) sets elements if their modules permit it.
 *
 * A process has one label, in the storage of its main thread. When another thread executes a
 * program, that storage ends with the main thread, and the executing one takes its place. So it
 * copies the label before, and a change of the label reaches all copies. Entries of all threads are
 * written under the lock of the main thread's.
 *
 * Buffers that are registered with an io_uring are read and written by whoever submits to it, and
 * no hook sees that. So a process that may hold one which another process has made, or has made one
 * that another process may hold, keeps its label until it executes a program: see rings.h.
 */
#ifndef USHER_MAC_PROCESS_LABELS_H
#define USHER_MAC_PROCESS_LABELS_H

#include "label_text.h"
#include "rings.h"
#include "usher_prepared.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head___mac {
	struct list_head___mac *next;
};

struct task_struct___mac_tracees {
	struct list_head___mac ptraced;
};

struct lsm_ctx___mac {
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

/* Whether a thread traces another process: the kernel asks about tracing only when it begins. */
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
 * Whether a new process must count as one that shares memory which it can write. The process has
 * its parent's mappings, with one that another thread of the parent may be making. A process in the
 * parent's memory itself (CLONE_VM) is followed if the parent waits for it, as in vfork(2);
 * otherwise it always counts.
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

/* Copies to the entries of other threads that the process may hold a ring, and the label, if it has
 * changed. A changed label cancels the elements that the threads would have got at exec, because
 * those were permitted to the former label. */
static __always_inline void reach_threads(struct task_struct *main,
					  struct usher_mac_process *leader, int is_relabelled)
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
		entry->may_hold_ring |= leader->may_hold_ring;
		if (is_relabelled) {
			entry->label = leader->label;
			entry->at_exec = no_label;
		}
		bpf_spin_unlock(&leader->lock);
	}
	bpf_iter_task_destroy(&threads);
}

/*
 * Notes that the calling process may hold a ring that another one has as well: in the entries of
 * all threads, because a thread that executes a program goes on with its own entry. Global, so that
 * the verifier goes through it once. Returns an error if there is no room.
 */
__attribute__((noinline)) int mac_note_ring(void)
{
	struct task_struct *main = bpf_task_acquire(bpf_get_current_task_btf()->group_leader);
	struct usher_mac_process *leader;

	if (!main)
		return -ENOMEM;
	leader = entry_of(main, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!leader) {
		bpf_task_release(main);
		return -ENOMEM;
	}
	bpf_spin_lock(&leader->lock);
	leader->may_hold_ring = 1;
	bpf_spin_unlock(&leader->lock);
	reach_threads(main, leader, 0);
	bpf_task_release(main);
	return 0;
}

/* Hook: inode_init_security_anon, because each io_uring passes it, before a process has it. */
SEC("lsm/inode_init_security_anon")
int BPF_PROG(dispatch_inode_init_security_anon, struct inode *inode, const struct qstr *name,
	     const struct inode *context)
{
	char found[sizeof(ring_name)] = {};

	bpf_probe_read_kernel_str(found, sizeof(found), bpf_core_cast(name, struct qstr)->name);
	return is_ring(found) && mac_note_ring() ? -ENOMEM : 0;
}

/*
 * Tracepoint: sched_process_fork, because the new process has its open files and memory, and runs
 * nothing yet. Another thread of its parent may have made or got a ring since task_alloc: the note
 * of that is older than the ring's descriptor. Kernel 5.5.
 */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(dispatch_sched_process_fork, struct task_struct *parent, struct task_struct *task)
{
	struct usher_mac_process *above = entry_of(bpf_get_current_task_btf()->group_leader, 0);
	struct usher_mac_process *child = entry_of(task, 0);

	if (above && child && above->may_hold_ring)
		child->may_hold_ring = 1;
	return 0;
}

/* Hook: task_alloc, because the new process runs nothing yet. */
SEC("lsm/task_alloc")
int BPF_PROG(dispatch_task_alloc, struct task_struct *task, __u64 flags)
{
	struct task_struct *caller = bpf_get_current_task_btf();
	struct usher_mac_process *parent, *child;
	int is_sharing, has_threads;

	if (!labelled_of(USHER_MAC_ALL_SLOTS) || flags & CLONE_THREAD)
		return 0;
	is_sharing = begins_sharing(caller, flags);
	/* Descriptors are shared: a ring that one process makes from now on is the other's, too. */
	if (flags & CLONE_FILES && mac_note_ring())
		return -ENOMEM;
	/* Another thread may make a ring meanwhile: see sched_process_fork. */
	has_threads = bpf_core_cast(caller, struct task_struct)->signal->nr_threads > 1;
	parent = entry_of(caller->group_leader, has_threads ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (!parent)
		return has_threads ? -ENOMEM : 0;
	child = entry_of(task, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!child)
		return -ENOMEM;
	bpf_spin_lock(&parent->lock);
	child->label = parent->label;
	child->began = parent->began;
	child->shares_memory = parent->shares_memory | is_sharing;
	child->may_hold_ring = parent->may_hold_ring;
	bpf_spin_unlock(&parent->lock);
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

/* The work of set_now, which holds a reference to `main`. */
static __always_inline int set_all(struct mac_scratch *now, struct usher_mac_process *leader,
				   struct task_struct *main)
{
	struct usher_mac_label former = now->former, label = now->label;
	int is_same;

	if (are_equal(&former, &label))
		return 0;
	/* A ring that is older than the modules is found only among the descriptors. */
	if (leader->may_hold_ring || mac_holds_ring(0))
		return -EPERM;
	/* Modules have permitted tracing for the former label only: by a tracer of this process,
	 * and by this process as a tracer. */
	if (is_in_trace(main))
		return -EPERM;
	bpf_spin_lock(&leader->lock);
	/* A ring that comes later is asked about under the new label. */
	is_same = are_equal(&leader->label, &former) && !leader->may_hold_ring;
	if (is_same)
		leader->label = label;
	bpf_spin_unlock(&leader->lock);
	if (!is_same)
		return -EAGAIN;
	reach_threads(main, leader, 1);
	/* The tracing began meanwhile. */
	if (is_in_trace(main))
		bpf_send_signal(SIGKILL);
	return 0;
}

/* Gives the process the label in the scratch memory, if its present label is still the one about
 * which modules were asked. */
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

/* Sets the elements that the calling thread gets when it executes a program. */
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

static __always_inline int set_own(struct lsm_ctx___mac *context, struct mac_scratch *now,
				   int at_exec)
{
	struct label_reading reading = { .scratch = now, .at_exec = at_exec };
	__u64 length = bpf_core_cast(context, struct lsm_ctx___mac)->ctx_len;
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
	reading.slots = labelled_of(USHER_MAC_ALL_SLOTS);
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

/* Reads a call of a module. Returns its slot, or an error. On its own, so that the name is off the
 * stack before a module is asked. */
static __always_inline int read_call(struct usher_mac_module_call *wanted,
				     struct lsm_ctx___mac *context, usher_mac_slots asked)
{
	struct usher_mac_call call;
	__u32 slot;

	if (bpf_core_cast(context, struct lsm_ctx___mac)->ctx_len != sizeof(call) ||
	    bpf_probe_read_kernel(&call, sizeof(call), context->ctx) || call.reserved)
		return -EINVAL;
	wanted->call = call.call;
	wanted->argument = call.argument;
	slot = mac_slot_of((const void *)call.module, asked);
	return slot < USHER_MAC_MODULES ? (int)slot : -ENOSYS;
}

/* A call of a module. */
static __always_inline int call_module(struct lsm_ctx___mac *context)
{
	struct usher_mac_module_call wanted = {};
	usher_mac_slots asked = modules_at(MAC_POINT_syscall);
	int slot = read_call(&wanted, context, asked);
	struct usher_mac_subject subject;
	struct mac_asker caller;
	struct mac_labels labels;

	if (slot < 0)
		return slot;
	asked &= 1U << slot;
	look_up_caller(asked, &caller);
	read_subject(&subject);
	begin_labels(&labels, asked, &caller);
	return mac_ask_syscall(asked, &subject, &wanted, &labels);
}

/* The result of lsm_set_self_attr(2), where USHER_MAC_DONE is success. A module that returns this
 * number as its error refuses with EACCES. */
static __always_inline int answer_of(int error)
{
	if (error == -USHER_MAC_DONE)
		return -EACCES;
	return mac_bounded(error ? error : -USHER_MAC_DONE);
}

/* Hook: setselfattr, because lsm_set_self_attr(2) needs no privilege. 0: the attribute is not
 * known. Another number ends the call, so of two frameworks at once (in tests) one is asked. */
SEC("lsm/setselfattr")
int BPF_PROG(dispatch_setselfattr, unsigned int attribute, struct lsm_ctx___mac *context,
	     __u32 size, __u32 flags)
{
	struct mac_scratch *now;

	if (attribute != USHER_MAC_ATTR_CALL && attribute != LSM_ATTR_CURRENT &&
	    attribute != LSM_ATTR_EXEC)
		return 0;
	if (flags || bpf_core_cast(context, struct lsm_ctx___mac)->flags)
		return -EINVAL;
	if (attribute == USHER_MAC_ATTR_CALL)
		return answer_of(call_module(context));
	if (!labelled_of(USHER_MAC_ALL_SLOTS))
		return 0;
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	return answer_of(set_own(context, now, attribute == LSM_ATTR_EXEC));
}

#endif
