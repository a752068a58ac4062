// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells scripts apart, where the kernel runs LSM programs: remembers which script a process
 * executes, if the policy names it.
 *
 * The kernel executes the interpreter of a script, so the process looks like any other process of
 * the interpreter. But the kernel opens the script first, and asks LSM programs about it:
 *
 *     begins      an exec begins: no script is known;
 *     opens       the kernel has opened a file and read its beginning. If it begins with #! and
 *                 the policy names it, it is the script. The interpreter follows, which may be a
 *                 script too: the first one that the policy names counts;
 *     executes    the exec can no longer fail: the process executes that script, or none;
 *     inherits    a new thread or child executes the script that its parent executes;
 *     ends        a thread is gone.
 *
 * An exec ends the former script, with one exception: where the first line of a script names a
 * program `env`, as in #!/usr/bin/env python3, the program that env executes runs the script.
 *
 * A process that executes an interpreter with a script as an argument executes no script. A process
 * that began a script before a policy named it executes none either. Files that binfmt_misc hands
 * to an interpreter are no scripts.
 *
 * Kernel 6.1 or later with LSM programs.
 */
#include "executions.h"

/* The longest path in the first line of a script (BINPRM_BUF_SIZE). */
#define LONGEST_PATH 256

static const char ENV[] = "/env";

/* Forgets what a task executes. */
static __always_inline void forget(struct task_struct *task)
{
	__u64 *count = first_of(&execution_count);
	__u64 thread = thread_of(task);

	if (count && !bpf_map_delete_elem(&executions, &thread))
		__sync_fetch_and_sub(count, 1);
}

/* Remembers an execution. Returns it, or none if there is no room. */
static __always_inline struct usher_execution *remember(struct task_struct *task,
							const struct usher_execution *execution)
{
	__u64 *count = first_of(&execution_count);
	__u64 thread = thread_of(task);

	if (!count)
		return 0;
	if (!bpf_map_update_elem(&executions, &thread, execution, BPF_NOEXIST))
		__sync_fetch_and_add(count, 1);
	return bpf_map_lookup_elem(&executions, &thread);
}

static __always_inline int refuse_script(void)
{
	COUNT(scripts_refused);
	return -ENOMEM;
}

/*
 * Hook: task_free, because from now on another task can have the task's address. Kernel 4.17.
 */
SEC("lsm/task_free")
int BPF_PROG(ends, struct task_struct *task)
{
	if (are_scripts_executed())
		forget(task);
	return 0;
}

/*
 * Hook: task_alloc, because it can refuse, and the new task has not run yet. It also removes an
 * entry that an earlier task at the same address may have left. Kernel 4.17.
 */
SEC("lsm/task_alloc")
int BPF_PROG(inherits, struct task_struct *child, unsigned long flags)
{
	struct usher_execution *execution = execution_of(bpf_get_current_task_btf());
	const volatile __u64 *count = first_of(&execution_count);
	struct usher_execution inherited = {};

	if (count && *count)
		forget(child);
	if (!execution || !execution->now.script)
		return 0;
	inherited.now = execution->now;
	inherited.flags = execution->flags & USHER_EXECUTION_PASSED_ON;
	return remember(child, &inherited) ? 0 : refuse_script();
}

/*
 * Hook: bprm_creds_for_exec, because it runs once in an exec, before the first file is read. Kernel
 * 5.8.
 */
SEC("lsm/bprm_creds_for_exec")
int BPF_PROG(begins, struct linux_binprm *program)
{
	struct usher_execution *execution = execution_of(bpf_get_current_task_btf());
	const struct usher_script none = {};

	if (!execution)
		return 0;
	execution->next = execution->flags & USHER_EXECUTION_PASSED_ON ? execution->now : none;
	execution->flags &= ~USHER_EXECUTION_FRESH;
	return 0;
}

/*
 * Hook: bprm_check_security, because it runs for each file of an exec (the script, then its
 * interpreter), after the kernel has read the file's beginning. Kernel 2.6.
 */
SEC("lsm/bprm_check_security")
int BPF_PROG(opens, struct linux_binprm *program)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_execution *execution, fresh = {};
	struct file *file = program->file;
	struct inode *inode = file->f_inode;
	struct in_force now;
	__u64 place;

	if (program->buf[0] != '#' || program->buf[1] != '!' || !inode || !read_policy(&now))
		return 0;
	place = place_of(file);
	if (!file_entry(&now, USHER_POLICY_PROGRAM, program_of(inode), place))
		return 0;
	execution = execution_of(task);
	if (!execution)
		execution = remember(task, &fresh);
	if (!execution)
		return refuse_script();
	if (execution->next.script)
		return 0;
	execution->next.script = script_of(inode);
	execution->next.place = place;
	execution->flags |= USHER_EXECUTION_FRESH;
	return 0;
}

/* Returns 1 if the first line of the script names a program `env` as its interpreter. */
static __always_inline int is_by_env(struct linux_binprm *program)
{
	char path[LONGEST_PATH];
	long length = bpf_probe_read_kernel_str(path, sizeof(path), program->interp);

	if (length < (long)sizeof(ENV) || length > (long)sizeof(path))
		return 0;
	for (__u32 at = 0; at < sizeof(ENV); at++)
		if (path[length - sizeof(ENV) + at] != ENV[at])
			return 0;
	return 1;
}

/*
 * Hook: bprm_committed_creds, because the exec can no longer fail, the process has one thread, and
 * the new program has not run yet. Kernel 2.6.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(executes, struct linux_binprm *program)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_execution *execution = execution_of(task);

	if (!execution)
		return 0;
	if (!execution->next.script) {
		forget(task);
		return 0;
	}
	execution->now = execution->next;
	if (execution->flags & USHER_EXECUTION_FRESH && is_by_env(program))
		execution->flags |= USHER_EXECUTION_PASSED_ON;
	else
		execution->flags &= ~USHER_EXECUTION_PASSED_ON;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
