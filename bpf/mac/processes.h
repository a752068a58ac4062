/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about processes and the programs that they execute. */
#ifndef USHER_MAC_PROCESSES_H
#define USHER_MAC_PROCESSES_H

#include "executions.h"
#include "files.h"

struct kernel_siginfo;

/* Hook: bprm_check_security, because it sees the script and then each interpreter. */
SEC("lsm/bprm_check_security")
int BPF_PROG(dispatch_bprm_check_security, struct linux_binprm *program)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_bprm_check_security, &caller);
	const struct linux_binprm *begun = bpf_core_cast(program, struct linux_binprm);
	struct usher_mac_execution wanted = {};
	struct usher_mac_subject subject;
	struct mac_labels labels;
	int error = follow_execution(program), found;

	if (error)
		return error;
	if (!asked || !(found = read_file(&wanted.file, begun->file->f_inode)))
		return 0;
	wanted.euid = begun->cred->euid.val;
	wanted.egid = begun->cred->egid.val;
	read_subject(&subject);
	if (found & KIND_IS_LAYERED)
		error = read_layer_labels(&labels, asked, &caller, &subject, program->file->f_inode,
					  program->file);
	else
		error = read_labels(&labels, asked, &caller, &subject, program->file->f_inode,
				    wanted.file.device, NULL);
	if (error)
		return -EACCES;
	return mac_ask_bprm_check_security(asked, &subject, &wanted, &labels);
}

/* The protections that a mapping of an open file may get later. A private one does not change the
 * file. */
static __always_inline __u32 permitted_of(const struct file *file, unsigned long flags)
{
	__u32 mode = bpf_core_cast(file, struct file___mac)->f_mode;
	__u32 permitted = 0;

	if (mode & FMODE_READ)
		permitted |= PROT_READ;
	if (mode & FMODE_WRITE && flags & MAP_SHARED)
		permitted |= PROT_WRITE;
	return permitted;
}

/* Notes that the calling process makes a shared mapping that it can write: see demotions.h. A
 * parent that waits in vfork(2) has the mapping, too, so both must have one label. Global, so that
 * the verifier goes through it once. */
__attribute__((noinline)) int mac_note_sharing(void)
{
	struct task_struct *caller = bpf_get_current_task_btf();
	struct task_struct *parent = vfork_parent_of(caller);
	struct usher_mac_label own, above;

	note_sharing(caller->group_leader);
	if (!parent)
		return 0;
	note_sharing(parent);
	read_own_label(&own);
	read_process_label(&above, parent);
	return are_equal(&own, &above) ? 0 : -EACCES;
}

/* Hook: mmap_file, because what is mapped is read, written and executed without a further call.
 * About shared memory of System V, modules have been asked at shm_shmat. */
SEC("lsm/mmap_file")
int BPF_PROG(dispatch_mmap_file, struct file *file, unsigned long asked_protection,
	     unsigned long protection, unsigned long flags)
{
	struct usher_mac_mapping wanted = { .protection = protection, .flags = flags };
	const struct inode *inode;
	struct usher_mac_subject subject;
	struct mac_asker caller;
	struct mac_labels labels;
	usher_mac_slots asked;
	int found;

	/* Also noted of processes about which no module is asked: they may get an element later. */
	if (flags & MAP_SHARED && (!file || permitted_of(file, flags) & PROT_WRITE) &&
	    mac_note_sharing())
		return -EACCES;
	asked = modules_near_caller(MAC_POINT_mmap_file, &caller);
	if (!asked || !file)
		return 0;
	inode = bpf_core_cast(file, struct file)->f_inode;
	if (is_kernels(inode) || !(found = read_file(&wanted.file, inode)))
		return 0;
	wanted.permitted = permitted_of(file, flags);
	if (found & KIND_IS_LAYERED)
		asked = begin_layer_labels(&labels, asked, &caller, file->f_inode, file);
	else
		asked = begin_open_labels(
		    &labels, asked, &caller, file, file->f_inode, &wanted.file,
		    access_to_file(MAC_POINT_mmap_file, &wanted.file, wanted.permitted));
	if (!asked)
		return 0;
	read_subject(&subject);
	if (refuses_unknown(&subject, &labels))
		return -EACCES;
	return mac_ask_mmap_file(asked, &subject, &wanted, &labels);
}

/*
 * Hook: task_kill, because kill(2) and its kind pass it. ESRCH becomes EPERM: after ESRCH the
 * kernel would repeat the call for ever.
 */
SEC("lsm/task_kill")
int BPF_PROG(dispatch_task_kill, struct task_struct *target, struct kernel_siginfo *info,
	     int signal, const struct cred *credentials)
{
	/* In an interrupt the current process has nothing to do with the signal. The verifier
	 * assumes that the argument is never NULL, and removes a test of it. */
	int is_of_device = bpf_core_cast(credentials, struct cred___mac) != NULL;
	usher_mac_slots asked = modules_at(MAC_POINT_task_kill);
	struct mac_asker caller;
	struct usher_mac_signal wanted = { .signal = signal };
	struct usher_mac_subject subject;
	const struct cred___mac *other;
	struct mac_labels labels;
	int error;

	asked =
	    is_of_device ? those_about_nobody(asked, &caller) : those_about_caller(asked, &caller);
	if (!asked)
		return 0;
	other = bpf_core_cast(target, struct task_struct___mac)->real_cred;
	wanted.uid = other->uid.val;
	wanted.suid = other->suid.val;
	wanted.process = task_of(target)->tgid;
	wanted.gid = other->gid.val;
	read_subject(&subject);
	/* The credentials under which a device's event was requested; NULL: those of the caller. */
	read_credentials(&subject, credentials);
	if (begin_labels(&labels, asked, &caller))
		read_process_label(&labels.object, target->group_leader);
	error = mac_ask_task_kill(asked, &subject, &wanted, &labels);
	return error == -ESRCH ? -EPERM : error;
}

#endif
