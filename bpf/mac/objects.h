/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the calling process and the objects of hooks into plain numbers. */
#ifndef USHER_MAC_OBJECTS_H
#define USHER_MAC_OBJECTS_H

#include "slots.h"
#include "usher_numbers.h"

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

struct task_struct___mac {
	const struct cred___mac *real_cred;
};

struct pid___mac {
	struct hlist_head tasks[4];
};

struct task_struct___mac_ids {
	struct hlist_node pid_links[4];
};

struct inode___mac_of_proc {
	unsigned short i_mode;
};

struct proc_inode___mac {
	struct pid___mac *pid;
	struct inode___mac_of_proc vfs_inode;
};

struct inode___mac {
	unsigned short i_mode;
	kuid_t i_uid;
	kgid_t i_gid;
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_rdev;
	unsigned int i_flags;
};

#pragma clang attribute pop

/* The effective capabilities in the initial user namespace. */
static __always_inline __u64 capabilities_of(const struct cred___mac *cred)
{
	return cred->user_ns->level == 0 ? *(const __u64 *)&cred->cap_effective : 0;
}

static __always_inline void copy_credentials(struct usher_mac_subject *subject,
					     const struct cred___mac *cred)
{
	subject->uid = cred->uid.val;
	subject->euid = cred->euid.val;
	subject->suid = cred->suid.val;
	subject->fsuid = cred->fsuid.val;
	subject->gid = cred->gid.val;
	subject->egid = cred->egid.val;
	subject->sgid = cred->sgid.val;
	subject->fsgid = cred->fsgid.val;
	subject->capabilities = capabilities_of(cred);
}

/* Reads credentials. Leaves the subject as it is if there are none: NULL. */
static __always_inline void read_credentials(struct usher_mac_subject *subject,
					     const struct cred *credentials)
{
	const struct cred___mac *cred = bpf_core_cast(credentials, struct cred___mac);

	if (cred)
		copy_credentials(subject, cred);
}

/* A pointer by which the structure of a process is read. */
static __always_inline const struct task_struct *task_of(const struct task_struct *task)
{
	return bpf_core_cast(task, struct task_struct);
}

/* The calling process. */
static __always_inline void read_subject(struct usher_mac_subject *subject)
{
	const struct task_struct *task = bpf_get_current_task_btf();

	/*
	 * Credentials always exist, so nothing compares them with NULL: for a subject that was left
	 * without values, clang 19 would take what a register holds, which the verifier refuses.
	 */
	copy_credentials(subject, bpf_core_cast(task_of(task)->cred, struct cred___mac));
	subject->process = task->tgid;
	subject->reserved = 0;
}

/* The subject where no process acts. */
static __always_inline void be_nobody(struct usher_mac_subject *subject)
{
	*subject = (struct usher_mac_subject){
		.uid = USHER_MAC_NOBODY,
		.euid = USHER_MAC_NOBODY,
		.suid = USHER_MAC_NOBODY,
		.fsuid = USHER_MAC_NOBODY,
		.gid = USHER_MAC_NOBODY,
		.egid = USHER_MAC_NOBODY,
		.sgid = USHER_MAC_NOBODY,
		.fsgid = USHER_MAC_NOBODY,
	};
}

/* The results of mac_kind_of, beside the bits of `flags` of a file. */
#define KIND_HAS_NO_TYPE 4
#define KIND_IS_LAYERED 8

/* Whether an inode of /proc is the file `comm`, the name, of a thread of the calling process. No
 * other file of a process is called so. Nothing holds what is read here: each step may fail. */
static __always_inline int is_own_name(__u64 inode)
{
	const struct proc_inode___mac *of_proc = bpf_core_cast(
	    (void *)(inode - bpf_core_field_offset(struct proc_inode___mac, vfs_inode)),
	    struct proc_inode___mac);
	const struct pid___mac *pid = bpf_core_cast(of_proc->pid, struct pid___mac);
	/* With room for one more, so that a longer name differs. */
	char name[sizeof("comm") + 1] = {};
	const struct task_struct *thread;
	__u64 first;

	first = (__u64)pid->tasks[0].first;
	if (!of_proc->pid || !first)
		return 0;
	first -= bpf_core_field_offset(struct task_struct___mac_ids, pid_links);
	thread = bpf_core_cast((void *)first, struct task_struct);
	if (thread->tgid != (int)(bpf_get_current_pid_tgid() >> 32))
		return 0;
	read_a_name(name, sizeof(name), inode);
	return name[0] == 'c' && name[1] == 'o' && name[2] == 'm' && name[3] == 'm' && !name[4];
}

/*
 * Properties that a file has by its file system: bits of `flags`, KIND_HAS_NO_TYPE and
 * KIND_IS_LAYERED. Global, so that the verifier goes through it once. `at`: the address of an
 * inode, which has a superblock.
 */
__attribute__((noinline)) __u32 mac_kind_of(const __u64 *at __arg_nonnull)
{
	__u64 address = *at;
	const struct inode___mac *inode = bpf_core_cast((void *)address, struct inode___mac);
	unsigned long magic = inode->i_sb->s_magic;

	switch (magic) {
	case BPF_FS_MAGIC:
		return USHER_MAC_ON_BPF_FS;
	case ANON_INODE_FS_MAGIC:
	case PIDFS_MAGIC:
		/* In the kernel these are regular files, but stat(2) shows no type. */
		return KIND_HAS_NO_TYPE;
	case MQUEUE_MAGIC:
		return (inode->i_mode & S_IFMT) == S_IFDIR ? USHER_MAC_FOR_EVERYBODY : 0;
	case PROC_SUPER_MAGIC:
		return is_own_name(address) ? USHER_MAC_FOR_EVERYBODY : 0;
	case OVERLAYFS_SUPER_MAGIC:
		return KIND_IS_LAYERED;
	}
	return 0;
}

/*
 * The modules that are asked about a file, of those in `asked`. A module that asks about processes
 * without an element must not keep its own daemon from the pins, which bpf/guard guards: it is not
 * asked about them where the process has CAP_SYS_ADMIN. Global, so that the verifier goes through
 * it once.
 */
__attribute__((noinline)) usher_mac_slots mac_about_file(usher_mac_slots asked,
							 const struct usher_mac_file *file,
							 const struct usher_mac_subject *subject)
{
	const struct usher_mac_labelled *now;

	if (!file || !subject || !(file->flags & USHER_MAC_ON_BPF_FS) ||
	    !(subject->capabilities >> CAP_SYS_ADMIN & 1))
		return asked;
	now = labelled_now();
	return now ? asked & now->exempting : 0;
}

/* Reads a file by a pointer of a hook's own, which is never NULL, or by one of bpf_core_cast, which
 * may be. Returns 0 for none: no module is asked about it. Otherwise 1, and KIND_IS_LAYERED where
 * the label is that of another file: layers.h. */
static __always_inline int read_inode(struct usher_mac_file *file, const struct inode___mac *inode)
{
	const struct super_block *system = bpf_core_cast(inode, struct inode___mac)->i_sb;
	__u64 address = (__u64)inode;
	__u32 kind;

	if (!system)
		return 0;
	kind = mac_kind_of(&address);
	file->inode = inode->i_ino;
	file->device = system->s_dev;
	file->uid = inode->i_uid.val;
	file->gid = inode->i_gid.val;
	/* Without a branch, which the verifier would follow on every path. */
	file->mode = inode->i_mode & ~((kind / KIND_HAS_NO_TYPE & 1) * S_IFMT);
	file->special = inode->i_rdev;
	file->flags = kind & (USHER_MAC_FOR_EVERYBODY | USHER_MAC_ON_BPF_FS);
	return 1 | (kind & KIND_IS_LAYERED);
}

/* As read_inode, for any file. `of` may be NULL. */
static __always_inline int read_file(struct usher_mac_file *file, const void *of)
{
	return read_inode(file, bpf_core_cast(of, struct inode___mac));
}

/* As read_inode, for the file of a hook's own pointer, which is never NULL. */
static __always_inline int read_own_file(struct usher_mac_file *file, const struct inode *inode)
{
	return read_inode(file, (const struct inode___mac *)inode);
}

/* The device of a file's file system. */
static __always_inline __u32 device_of(const struct inode *inode)
{
	return bpf_core_cast(inode, struct inode___mac)->i_sb->s_dev;
}

static __always_inline int is_kernels(const void *of)
{
	return bpf_core_cast(of, struct inode___mac)->i_flags & S_PRIVATE;
}

/* The inode of a name, which may have none. */
static __always_inline const struct inode *inode_of(const struct dentry *entry)
{
	return bpf_core_cast(entry, struct dentry)->d_inode;
}

static __always_inline const struct inode *inode_at(const struct path *path)
{
	return bpf_core_cast(path, struct path)->dentry->d_inode;
}

/*
 * Whether a process has CAP_SYS_ADMIN in the initial user namespace, and so may label files. Its
 * own credentials must have the capability, too: on the files of an overlay the kernel acts for the
 * process with other credentials.
 */
static __always_inline int may_label(const struct usher_mac_subject *subject)
{
	const struct task_struct___mac *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac);

	return (subject->capabilities & capabilities_of(task->real_cred)) >> CAP_SYS_ADMIN & 1;
}

/* The limit of a module's elements for this process, which is about to make another one. Processes
 * of users may fill half of the table; the rest is left to processes that label files or begin
 * users' processes. */
static __always_inline __u32 limit_of(const struct usher_mac_subject *subject)
{
	if (may_label(subject) || subject->capabilities >> CAP_SETUID & 1)
		return USHER_MAC_ELEMENTS;
	return USHER_MAC_ELEMENTS_OF_USERS;
}

#endif
