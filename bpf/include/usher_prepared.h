/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Access that others can prepare inside a process, and that remains when it becomes a user or a
 * daemon. All of it is read from the kernel's own structures. A kernel built without one of these
 * features lacks the structure too.
 */
#ifndef USHER_PREPARED_H
#define USHER_PREPARED_H

#include "usher_kernel.h"

/* The number of filters examined. A process with more counts as having a listener. */
#define FILTERS 256

/*
 * The bit of struct mm_struct that says that pages were pinned. Once set, it stays for the life of
 * the memory. It is the same in 6.1 to 6.18 (linux/mm_types.h, MMF_HAS_PINNED). Before the keeper
 * relies on it, it pins one of its own pages and asks (USHER_PINNED_LINK).
 */
#define HAS_PINNED (1UL << 27)

/* The walk along a process's filters. */
struct filters {
	struct seccomp_filter *filter;
	__u32 listens;
};

/* Looks at one filter; 1 ends the walk. For bpf_loop, because the verifier would go through all of
 * them. */
static long next_filter(__u32 index, struct filters *walk)
{
	struct seccomp_filter *filter = walk->filter;

	if (!filter) {
		walk->listens = 0;
		return 1;
	}
	if (BPF_CORE_READ(filter, notif))
		return 1;
	walk->filter = BPF_CORE_READ(filter, prev);
	return 0;
}

/*
 * A seccomp filter with a listener: the listener's holder answers the process's system calls, even
 * after execve, and may substitute its own descriptors. The kernel forgets the listener when its
 * last descriptor is closed.
 */
static __always_inline int has_listener(struct task_struct *task)
{
	struct filters walk;

	if (!bpf_core_type_exists(struct seccomp_filter))
		return 0;
	/* Set here and not as an initial value, of which clang would make a table. */
	walk.listens = 1;
	walk.filter = BPF_CORE_READ(task, seccomp.filter);
	bpf_loop(FILTERS, next_filter, &walk, 0);
	return walk.listens;
}

/* Performance events of the process: their samples contain its registers and stack. */
static __always_inline int has_performance_events(struct task_struct *task)
{
	struct perf_event_context *contexts[2] = {};

	if (!bpf_core_type_exists(struct perf_event_context))
		return 0;
	if (bpf_core_field_exists(struct task_struct___two_contexts, perf_event_ctxp)) {
		struct task_struct___two_contexts *two = (void *)task;

		bpf_core_read(contexts, sizeof(contexts), &two->perf_event_ctxp);
	} else {
		struct task_struct___one_context *one = (void *)task;

		bpf_core_read(contexts, sizeof(contexts[0]), &one->perf_event_ctxp);
	}
	return (contexts[0] && BPF_CORE_READ(contexts[0], nr_events)) ||
	       (contexts[1] && BPF_CORE_READ(contexts[1], nr_events));
}

/*
 * Pages of the process may be held elsewhere: it has an io_uring, or its pages were pinned, like
 * buffers registered with any io_uring. Both end at execve, and a forked process has neither.
 */
static __always_inline int has_pinned_memory(struct task_struct *task)
{
	struct mm_struct *mm = BPF_CORE_READ(task, mm);
	unsigned long flags = 0;

	if (bpf_core_field_exists(struct mm_struct, flags)) {
		bpf_core_read(&flags, sizeof(flags), &mm->flags);
	} else {
		struct mm_struct___bitmap *bitmap = (void *)mm;

		bpf_core_read(&flags, sizeof(flags), &bitmap->flags);
	}
	return (flags & HAS_PINNED) != 0;
}

static __always_inline int has_ring(struct task_struct *task)
{
	return bpf_core_field_exists(struct task_struct, io_uring) && BPF_CORE_READ(task, io_uring);
}

#endif
