/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about processes and the programs that they execute. */
#ifndef USHER_MAC_PROCESSES_H
#define USHER_MAC_PROCESSES_H

#include "objects.h"

struct kernel_siginfo;

/* Hook: bprm_check_security, because it sees the script and then each interpreter. */
SEC("lsm/bprm_check_security")
int BPF_PROG(dispatch_bprm_check_security, struct linux_binprm *program)
{
	__u64 asked = modules_at(MAC_POINT_bprm_check_security);
	const struct linux_binprm *begun = bpf_core_cast(program, struct linux_binprm);
	struct usher_mac_execution wanted = {};
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked || !read_file(&wanted.file, begun->file->f_inode))
		return 0;
	wanted.euid = begun->cred->euid.val;
	wanted.egid = begun->cred->egid.val;
	read_subject(&subject);
	if (read_labels(&labels, asked, &subject, program->file->f_inode, wanted.file.device, NULL))
		return -EACCES;
	return mac_ask_bprm_check_security(asked, &subject, &wanted, &labels);
}

/* Hook: mmap_file, because what is mapped is read, written and executed without a further call. */
SEC("lsm/mmap_file")
int BPF_PROG(dispatch_mmap_file, struct file *file, unsigned long asked_protection,
	     unsigned long protection, unsigned long flags)
{
	__u64 asked = modules_at(MAC_POINT_mmap_file);
	struct usher_mac_mapping wanted = { .protection = protection, .flags = flags };
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked || !file || !read_file(&wanted.file, bpf_core_cast(file, struct file)->f_inode))
		return 0;
	read_subject(&subject);
	if (read_open_labels(&labels, asked, &subject, file, &wanted.file))
		return -EACCES;
	return mac_ask_mmap_file(asked, &subject, &wanted, &labels);
}

/*
 * Hook: task_kill, because kill(2) and its kind pass it. The kernel repeats the call for ever after
 * ESRCH.
 */
SEC("lsm/task_kill")
int BPF_PROG(dispatch_task_kill, struct task_struct *target, struct kernel_siginfo *info,
	     int signal, const struct cred *credentials)
{
	__u64 asked = modules_at(MAC_POINT_task_kill);
	struct usher_mac_signal wanted = { .signal = signal };
	const struct task_struct *other = task_of(target);
	struct usher_mac_subject subject;
	struct mac_labels labels;
	int error;

	if (!asked)
		return 0;
	wanted.uid = other->cred->uid.val;
	wanted.suid = other->cred->suid.val;
	wanted.process = other->tgid;
	wanted.gid = other->cred->gid.val;
	read_subject(&subject);
	/* Those under which a device's event was requested; NULL: the calling process's. */
	read_credentials(&subject, credentials);
	if (begin_labels(&labels, asked)) {
		read_process_label(&labels.object, target->group_leader);
		/* In an interrupt the current process has nothing to do with the signal. The
		 * verifier takes the argument for one that is never NULL, and removes a test of it.
		 */
		if (bpf_core_cast(credentials, struct cred___mac)) {
			labels.subject = no_label;
			exempt_subject(&labels);
		}
	}
	error = mac_ask_task_kill(asked, &subject, &wanted, &labels);
	return error == -ESRCH ? -EPERM : error;
}

#endif
