/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The scripts that processes execute, if the policy named the script at its exec.
 *
 * Programs of a control group read no storage of tasks before kernel 6.16, so this is a table. The
 * keys are hashes of the addresses of tasks; scripts.bpf.c removes a key before another task can
 * have the address.
 */
#ifndef USHER_IPSEC_EXECUTIONS_H
#define USHER_IPSEC_EXECUTIONS_H

#include "policy.h"

/* Key: a thread. Limit: 131,072. Full: a script that the policy names is not executed, and a
 * process that executes one cannot make threads or children. */
SPARSE_TABLE(executions, 131072, __u64, struct usher_execution);

/* The number of entries in `executions`. Key: 0. While it is 0, programs do without the look-up. */
ARRAY_TABLE(execution_count, 1, __u64);

/* The key of a task; 0: there is none. */
static __always_inline __u64 thread_of(struct task_struct *task)
{
	struct usher_program_key *key = first_of(&program_keys);

	return key ? program_at((char *)task - (char *)key, key) : 0;
}

/* Whether processes execute scripts that the policy names. */
static __always_inline int are_scripts_executed(void)
{
	const volatile __u64 *count = first_of(&execution_count);

	return count && *count;
}

/* The execution of a task; none: it executes no script that the policy named. */
static __always_inline struct usher_execution *execution_of(struct task_struct *task)
{
	__u64 thread;

	if (!are_scripts_executed())
		return 0;
	thread = thread_of(task);
	return bpf_map_lookup_elem(&executions, &thread);
}

#endif
