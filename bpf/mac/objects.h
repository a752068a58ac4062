/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the calling process and the objects of hooks into plain numbers. */
#ifndef USHER_MAC_OBJECTS_H
#define USHER_MAC_OBJECTS_H

#include "slots.h"

#include <linux/magic.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct user_namespace___mac {
	int level;
};

struct cred___mac {
	kuid_t uid, suid, euid, fsuid;
	kgid_t gid, sgid, egid, fsgid;
	struct capability_set cap_effective;
	struct user_namespace___mac *user_ns;
};

struct inode___mac {
	unsigned short i_mode;
	kuid_t i_uid;
	kgid_t i_gid;
	struct super_block *i_sb;
	unsigned long i_ino;
};

#pragma clang attribute pop

/* Reads credentials. Leaves the subject as it is if there are none: NULL. */
static __always_inline void read_credentials(struct usher_mac_subject *subject,
					     const struct cred *credentials)
{
	const struct cred___mac *cred = (const void *)credentials;
	__u32 uid;

	/* A read that fails clears what it should fill. */
	if (bpf_core_read(&uid, sizeof(uid), &cred->uid))
		return;
	subject->uid = uid;
	subject->euid = BPF_CORE_READ(cred, euid.val);
	subject->suid = BPF_CORE_READ(cred, suid.val);
	subject->fsuid = BPF_CORE_READ(cred, fsuid.val);
	subject->gid = BPF_CORE_READ(cred, gid.val);
	subject->egid = BPF_CORE_READ(cred, egid.val);
	subject->sgid = BPF_CORE_READ(cred, sgid.val);
	subject->fsgid = BPF_CORE_READ(cred, fsgid.val);
	subject->capabilities = 0;
	if (BPF_CORE_READ(cred, user_ns, level) == 0)
		bpf_core_read(&subject->capabilities, sizeof(subject->capabilities),
			      &cred->cap_effective);
}

/* The calling process. */
static __always_inline void read_subject(struct usher_mac_subject *subject)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct cred___mac *cred = (const void *)task->cred;

	subject->uid = cred->uid.val;
	subject->euid = cred->euid.val;
	subject->suid = cred->suid.val;
	subject->fsuid = cred->fsuid.val;
	subject->gid = cred->gid.val;
	subject->egid = cred->egid.val;
	subject->sgid = cred->sgid.val;
	subject->fsgid = cred->fsgid.val;
	subject->capabilities = 0;
	if (cred->user_ns->level == 0)
		bpf_core_read(&subject->capabilities, sizeof(subject->capabilities),
			      &cred->cap_effective);
	subject->process = task->tgid;
	subject->reserved = 0;
}

/*
 * Reads a file that may be NULL. Returns 0 for none, and for one of a BPF file system: no module is
 * asked about either.
 */
static __always_inline int read_file(struct usher_mac_file *file, const void *of)
{
	const struct inode___mac *inode = of;
	struct super_block *system;

	if (bpf_core_read(&system, sizeof(system), &inode->i_sb) ||
	    BPF_CORE_READ(system, s_magic) == BPF_FS_MAGIC)
		return 0;
	file->inode = BPF_CORE_READ(inode, i_ino);
	file->device = BPF_CORE_READ(system, s_dev);
	file->uid = BPF_CORE_READ(inode, i_uid.val);
	file->gid = BPF_CORE_READ(inode, i_gid.val);
	file->mode = BPF_CORE_READ(inode, i_mode);
	return 1;
}

/* Asks about the calling process. */
#define MAC_ASK_CALLER(name, asked, wanted)                                                        \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
                                                                                                   \
		read_subject(&subject);                                                            \
		mac_ask_##name(asked, &subject, wanted);                                           \
	})

#endif
