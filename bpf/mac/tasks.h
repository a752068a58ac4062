/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about what processes do to others, and about their own ids. */
#ifndef USHER_MAC_TASKS_H
#define USHER_MAC_TASKS_H

#include "accesses.h"

/* Reads another process. */
static __always_inline void read_process(struct usher_mac_process_access *wanted,
					 struct task_struct *task)
{
	/* The process's own credentials: on files of an overlay the kernel acts with others. */
	const struct cred___mac *cred = bpf_core_cast(task, struct task_struct___mac)->real_cred;

	wanted->uid = cred->uid.val;
	wanted->euid = cred->euid.val;
	wanted->suid = cred->suid.val;
	wanted->gid = cred->gid.val;
	wanted->process = task_of(task)->tgid;
}

/* Hook: ptrace_access_check, because ptrace(2), /proc and process_vm_readv(2) pass it. */
SEC("lsm/ptrace_access_check")
int BPF_PROG(dispatch_ptrace_access_check, struct task_struct *task, unsigned int mode)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_ptrace_access_check, &caller);
	struct usher_mac_process_access wanted = { .argument = mode };
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked)
		return 0;
	read_process(&wanted, task);
	read_subject(&subject);
	if (begin_labels(&labels, asked, &caller))
		read_process_label(&labels.object, task->group_leader);
	if (mode & PTRACE_MODE_NOAUDIT)
		labels.told = UNTOLD;
	return mac_ask_ptrace_access_check(asked, &subject, &wanted, &labels);
}

/* Hook: ptrace_traceme, because a process makes its parent trace it that way. */
SEC("lsm/ptrace_traceme")
int BPF_PROG(dispatch_ptrace_traceme, struct task_struct *parent)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_ptrace_traceme, &caller);
	struct usher_mac_process_access wanted = {};

	if (!asked)
		return 0;
	read_process(&wanted, parent);
	return MAC_ASK_ABOUT_PROCESS(ptrace_traceme, asked, &caller, &wanted, parent);
}

/* Hook: task_setpgid, because it decides who gets a terminal's signals. */
SEC("lsm/task_setpgid")
int BPF_PROG(dispatch_task_setpgid, struct task_struct *task, int group)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_setpgid, &caller);
	struct usher_mac_process_access wanted = { .argument = group };

	if (!asked)
		return 0;
	read_process(&wanted, task);
	return MAC_ASK_ABOUT_PROCESS(task_setpgid, asked, &caller, &wanted, task);
}

/* Hook: task_setscheduler, because policy, priority and processors of a process are set there. */
SEC("lsm/task_setscheduler")
int BPF_PROG(dispatch_task_setscheduler, struct task_struct *task)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_setscheduler, &caller);
	struct usher_mac_process_access wanted = {};

	if (!asked)
		return 0;
	read_process(&wanted, task);
	return MAC_ASK_ABOUT_PROCESS(task_setscheduler, asked, &caller, &wanted, task);
}

/* Hook: task_setnice, because setpriority(2) and nice(2) pass it. */
SEC("lsm/task_setnice")
int BPF_PROG(dispatch_task_setnice, struct task_struct *task, int nice)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_setnice, &caller);
	struct usher_mac_process_access wanted = { .argument = nice };

	if (!asked)
		return 0;
	read_process(&wanted, task);
	return MAC_ASK_ABOUT_PROCESS(task_setnice, asked, &caller, &wanted, task);
}

/* Hook: task_prlimit, because it sees the limits of another process read and set. It gets the
 * credentials of that process, and not the process. */
SEC("lsm/task_prlimit")
int BPF_PROG(dispatch_task_prlimit, const struct cred *own, const struct cred *other,
	     unsigned int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_prlimit, &caller);
	const struct cred *cred = bpf_core_cast(other, struct cred);
	struct usher_mac_process_access wanted = { .argument = flags };

	if (!asked)
		return 0;
	wanted.uid = cred->uid.val;
	wanted.euid = cred->euid.val;
	wanted.suid = cred->suid.val;
	wanted.gid = cred->gid.val;
	return MAC_ASK_CALLER(task_prlimit, asked, &caller, &wanted);
}

/* Reads the ids that a process gets. */
static __always_inline void read_identity(struct usher_mac_identity *wanted,
					  const struct cred *credentials)
{
	const struct cred___mac *cred = bpf_core_cast(credentials, struct cred___mac);

	wanted->uid = cred->uid.val;
	wanted->euid = cred->euid.val;
	wanted->suid = cred->suid.val;
	wanted->fsuid = cred->fsuid.val;
	wanted->gid = cred->gid.val;
	wanted->egid = cred->egid.val;
	wanted->sgid = cred->sgid.val;
	wanted->fsgid = cred->fsgid.val;
}

/* Hook: task_fix_setuid, because setuid(2) and its kind pass it; execution is bprm_check_security.
 */
SEC("lsm/task_fix_setuid")
int BPF_PROG(dispatch_task_fix_setuid, struct cred *fresh, const struct cred *former, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_fix_setuid, &caller);
	struct usher_mac_identity wanted = { .call = flags };

	if (!asked)
		return 0;
	read_identity(&wanted, fresh);
	return MAC_ASK_CALLER(task_fix_setuid, asked, &caller, &wanted);
}

/* Hook: task_fix_setgid, because setgid(2) and its kind pass it. */
SEC("lsm/task_fix_setgid")
int BPF_PROG(dispatch_task_fix_setgid, struct cred *fresh, const struct cred *former, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_task_fix_setgid, &caller);
	struct usher_mac_identity wanted = { .call = flags };

	if (!asked)
		return 0;
	read_identity(&wanted, fresh);
	return MAC_ASK_CALLER(task_fix_setgid, asked, &caller, &wanted);
}

#endif
