/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the calling process and the objects of hooks into plain numbers. */
#ifndef USHER_MAC_OBJECTS_H
#define USHER_MAC_OBJECTS_H

#include "layers.h"
#include "slots.h"

#include <linux/magic.h>

#ifndef CAP_SYS_ADMIN
#define CAP_SYS_ADMIN 21
#endif
#ifndef SIGKILL
#define SIGKILL 9
#endif

/* Types of files, in their mode. */
#ifndef S_IFSOCK
#define S_IFSOCK 0140000
#endif
#ifndef S_IFDIR
#define S_IFDIR 0040000
#endif
#ifndef S_IFCHR
#define S_IFCHR 0020000
#endif

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

/* A process, which is read. */
static __always_inline const struct task_struct *task_of(const struct task_struct *task)
{
	return bpf_core_cast(task, struct task_struct);
}

/* The calling process. */
static __always_inline void read_subject(struct usher_mac_subject *subject)
{
	const struct task_struct *task = bpf_get_current_task_btf();

	/*
	 * A process always has some, so nothing compares them with NULL: of a subject that was left
	 * without values clang 19 takes what a register holds, which the verifier refuses.
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

/* Begins the labels of an access about which these modules are asked, with that of the asker.
 * Returns whether a module has labels: only then are the others of the access looked up. */
static __always_inline int begin_labels(struct mac_labels *labels, __u64 asked,
					const struct mac_asker *asker)
{
	/* Nothing reads what stays unwritten here, but clang does not know that: the asm has it
	 * take all for written. */
	asm volatile("" : : "r"(labels) : "memory");
	labels->slots = asker->slots & asked;
	labels->told = 0;
	labels->access = 0;
	labels->unknown = 0;
	labels->remembered = 0;
	if (!labels->slots)
		return 0;
	labels->subject = asker->label ? *asker->label : no_label;
	labels->object = no_label;
	labels->directory = no_label;
	return 1;
}

/* Of magic.h: file systems of what has a descriptor only, and of POSIX message queues
 * (ipc/mqueue.c). */
#ifndef MQUEUE_MAGIC
#define MQUEUE_MAGIC 0x19800202
#endif
#ifndef PIDFS_MAGIC
#define PIDFS_MAGIC 0x50494446
#endif

/* The results of mac_kind_of, beside the bits of `flags` of a file. */
#define KIND_HAS_NO_TYPE 4
#define KIND_IS_LAYERED 8

/* Whether an inode of /proc is the name of a thread of the calling process: any other file there
 * with this name is not of a process. Nothing holds what is read here, so each step may fail. */
static __always_inline int is_own_name(__u64 inode)
{
	const struct proc_inode___mac *of_proc = bpf_core_cast(
	    (void *)(inode - bpf_core_field_offset(struct proc_inode___mac, vfs_inode)),
	    struct proc_inode___mac);
	const struct pid___mac *pid = bpf_core_cast(of_proc->pid, struct pid___mac);
	/* With room for one more, so that a longer name is another one. */
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
 * What is to be known of a file by its file system: bits of `flags`, KIND_HAS_NO_TYPE and
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
		/* The kernel has them be regular files, and hides that from stat(2). */
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
__attribute__((noinline)) __u64 mac_about_file(__u64 asked, const struct usher_mac_file *file,
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

/* The same of any file that may be NULL. */
static __always_inline int read_file(struct usher_mac_file *file, const void *of)
{
	return read_inode(file, bpf_core_cast(of, struct inode___mac));
}

/* The same of the file of a hook's own pointer, which is never NULL. */
static __always_inline int read_own_file(struct usher_mac_file *file, const struct inode *inode)
{
	return read_inode(file, (const struct inode___mac *)inode);
}

/* The device of a file's file system. */
static __always_inline __u32 device_of(const struct inode *inode)
{
	return bpf_core_cast(inode, struct inode___mac)->i_sb->s_dev;
}

/* In i_flags: a file of the kernel's own, such as shared memory of System V. */
#ifndef S_PRIVATE
#define S_PRIVATE (1 << 9)
#endif

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
 * A process with CAP_SYS_ADMIN in the initial user namespace, which labels files. By its own
 * credentials as well: the kernel acts with others for it on the files of an overlay.
 */
static __always_inline int may_label(const struct usher_mac_subject *subject)
{
	const struct task_struct___mac *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac);

	return (subject->capabilities & capabilities_of(task->real_cred)) >> CAP_SYS_ADMIN & 1;
}

#ifndef CAP_SETUID
#define CAP_SETUID 7
#endif

/* How many elements a module may have before this process makes another one. Users leave half to
 * those who label files, and to those who begin users' processes. */
static __always_inline __u32 limit_of(const struct usher_mac_subject *subject)
{
	if (may_label(subject) || subject->capabilities >> CAP_SETUID & 1)
		return USHER_MAC_ELEMENTS;
	return USHER_MAC_ELEMENTS_OF_USERS;
}

/* Whether a module is asked about an element that is not known. */
static __always_inline int is_unknown(const struct mac_labels *labels)
{
	return (labels->unknown & labels->slots) != 0;
}

/*
 * Whether an access must be refused because the elements of modules that are asked are not known. A
 * process that may label files is let through to the modules, which decide.
 */
static __always_inline int refuses_elements(const struct usher_mac_subject *subject, __u64 unknown)
{
	if (!unknown || may_label(subject))
		return 0;
	count_up(first_of(&unknown_refusals));
	return 1;
}

/* The same by the labels of the access. */
static __always_inline int refuses_unknown(const struct usher_mac_subject *subject,
					   const struct mac_labels *labels)
{
	return refuses_elements(subject, is_unknown(labels));
}

/* An access to a file as it is remembered: by its type and what is wanted of it, at most seven
 * bits. 0, which is not remembered, for a character device: which one it is has no room; and for
 * what is everybody's, because others with these labels are not. */
static __always_inline __u64 access_to_file(__u32 point, const struct usher_mac_file *file,
					    __u32 wanted)
{
	__u32 type = file->mode & S_IFMT;

	if (type == S_IFCHR || file->flags & USHER_MAC_FOR_EVERYBODY)
		return 0;
	return access_at(point, wanted << 4 | type >> 12);
}

/*
 * The modules that are still asked about an access which is remembered, when the label of the
 * object is known (else NULL): not those that have permitted it before, nor those that exempt the
 * asker. `remembered` gets the slots of the former.
 */
static __always_inline __u64 those_left(__u64 asked, const struct mac_asker *asker,
					const struct usher_mac_label *object, __u64 access,
					__u64 *remembered)
{
	__u64 by_labels = asker->by_labels & asked, exempting;

	*remembered = 0;
	if (!asker->label)
		return asked;
	if (access && by_labels && object) {
		*remembered = mac_remembered(asker->label, object, by_labels, access);
		asked &= ~*remembered;
	}
	exempting = asker->exempting & asked;
	return exempting ? asked & ~mac_lacking(asker->label, exempting) : asked;
}

/*
 * Ends the labels of such an access, about which a module with labels is asked. The remembered
 * permissions were looked up by labels that may have changed since. They are looked up again by
 * the labels that the asked modules see, because all modules decide by the same ones. Returns the
 * modules that are asked.
 */
static __always_inline __u64 end_labels(struct mac_labels *labels, __u64 asked,
					const struct mac_asker *asker, __u64 access,
					__u64 remembered)
{
	__u64 again;

	if (remembered) {
		again = remembered &
			~mac_remembered(&labels->subject, &labels->object, remembered, access);
		asked |= again;
		labels->slots |= again;
	}
	labels->access = access;
	labels->by_labels = asker->by_labels & labels->slots;
	labels->remembered = remembered & ~labels->slots;
	return asked;
}

/* Begins the labels of an access to a file that is remembered. Returns the modules that are asked.
 */
static __always_inline __u64 begin_file_labels(struct mac_labels *labels, __u64 asked,
					       const struct mac_asker *caller, struct inode *inode,
					       __u32 device, __u64 access)
{
	const struct usher_mac_label *known = NULL;
	__u64 remembered;

	if (caller->by_labels & asked)
		known = known_file_label(inode, device);
	asked = those_left(asked, caller, known, access, &remembered);
	if (!asked)
		return 0;
	if (begin_labels(labels, asked, caller)) {
		labels->unknown = read_file_label(&labels->object, inode, device);
		asked = end_labels(labels, asked, caller, access, remembered);
	}
	labels->told = (__u64)inode;
	return asked;
}

/* The same where the label of the object is there. */
static __always_inline __u64 begin_known_labels(struct mac_labels *labels, __u64 asked,
						const struct mac_asker *asker,
						const struct usher_mac_label *object, __u64 access)
{
	__u64 remembered;

	asked = those_left(asked, asker, object, access, &remembered);
	if (!asked || !begin_labels(labels, asked, asker))
		return asked;
	labels->object = *object;
	return end_labels(labels, asked, asker, access, remembered);
}

/* The same of a file on an overlay: see layers.h. `file`: the open one, or NULL. What modules
 * permit is not remembered. */
static __always_inline __u64 begin_layer_labels(struct mac_labels *labels, __u64 asked,
						const struct mac_asker *caller, struct inode *inode,
						const struct file *file)
{
	__u64 remembered;

	asked = those_left(asked, caller, NULL, 0, &remembered);
	if (!asked)
		return 0;
	if (begin_labels(labels, asked, caller))
		labels->unknown = read_layer_label(&labels->object, inode, file);
	labels->told = (__u64)inode;
	return asked;
}

/* The same of a socket, which may be NULL. */
static __always_inline __u64 begin_socket_labels(struct mac_labels *labels, __u64 asked,
						 const struct mac_asker *caller,
						 struct sock *socket, __u64 access)
{
	const struct usher_mac_label *stored = NULL;

	if (caller->slots & asked && socket)
		stored = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	return begin_known_labels(labels, asked, caller, stored ? stored : &blank_label, access);
}

/* The same of an open file. A socket has its own label, not that of its inode. */
static __always_inline __u64 begin_open_labels(struct mac_labels *labels, __u64 asked,
					       const struct mac_asker *caller, struct file *file,
					       struct inode *inode, const struct usher_mac_file *of,
					       __u64 access)
{
	struct socket *socket = NULL;

	if ((of->mode & S_IFMT) == S_IFSOCK)
		socket = bpf_sock_from_file(file);
	if (socket)
		return begin_socket_labels(labels, asked, caller, socket->sk, access);
	return begin_file_labels(labels, asked, caller, inode, of->device, access);
}

/* Begins the labels of an access to a file, and to a directory beside it or NULL. Returns 0, or an
 * error if one of their labels is not known. */
static __always_inline int read_labels(struct mac_labels *labels, __u64 asked,
				       const struct mac_asker *caller,
				       const struct usher_mac_subject *subject, struct inode *inode,
				       __u32 device, struct inode *directory)
{
	int has_labels = begin_labels(labels, asked, caller);

	labels->told = (__u64)inode;
	if (!has_labels)
		return 0;
	labels->unknown |= read_file_label(&labels->object, inode, device);
	if (directory)
		labels->unknown |= read_file_label(&labels->directory, directory, device);
	return refuses_unknown(subject, labels) ? -EACCES : 0;
}

/* The same for a file on an overlay: see layers.h. `file`: the open one. */
static __always_inline int read_layer_labels(struct mac_labels *labels, __u64 asked,
					     const struct mac_asker *caller,
					     const struct usher_mac_subject *subject,
					     struct inode *inode, const struct file *file)
{
	int has_labels = begin_labels(labels, asked, caller);

	labels->told = (__u64)inode;
	if (!has_labels)
		return 0;
	labels->unknown = read_layer_label(&labels->object, inode, file);
	return refuses_unknown(subject, labels) ? -EACCES : 0;
}

/* The same for an open file, as read_file has found it. A socket has its own label, not that of its
 * inode. */
static __always_inline int read_open_labels(struct mac_labels *labels, __u64 asked,
					    const struct mac_asker *caller,
					    const struct usher_mac_subject *subject,
					    struct file *file, struct inode *inode,
					    const struct usher_mac_file *of, int found)
{
	struct socket *socket = NULL;

	if (found & KIND_IS_LAYERED)
		return read_layer_labels(labels, asked, caller, subject, inode, file);

	if ((of->mode & S_IFMT) == S_IFSOCK)
		socket = bpf_sock_from_file(file);
	if (!socket)
		return read_labels(labels, asked, caller, subject, inode, of->device, NULL);
	if (begin_labels(labels, asked, caller))
		read_socket_label(&labels->object, socket->sk);
	return 0;
}

/* Asks about the calling process, whose label is the only one of the access. */
#define MAC_ASK_CALLER(name, asked, caller, wanted)                                                \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		begin_labels(&labels, asked, caller);                                              \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* The same about another process. */
#define MAC_ASK_ABOUT_PROCESS(name, asked, caller, wanted, task)                                   \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		if (begin_labels(&labels, asked, caller))                                          \
			read_process_label(&labels.object, (task)->group_leader);                  \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* The same about a socket. */
#define MAC_ASK_ABOUT_SOCKET(name, asked, caller, wanted, socket)                                  \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		/* The socket first: the verifier has fewer cases behind it. */                    \
		if (begin_labels(&labels, asked, caller))                                          \
			read_socket_label(&labels.object, socket);                                 \
		read_subject(&subject);                                                            \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* The same about an open file, as read_file has found it. Its label is known, unless a module with
 * labels has come into force since it was opened. */
#define MAC_ASK_ABOUT_FILE(name, asked, caller, wanted, file, inode, of, found)                    \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		read_open_labels(&labels, asked, caller, &subject, file, inode, of, found)         \
		    ? -EACCES                                                                      \
		    : mac_ask_##name(asked, &subject, wanted, &labels);                            \
	})

/* The same about a new name in a directory. */
#define MAC_ASK_ABOUT_NAME(name, asked, caller, wanted, directory_inode)                           \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
		int has_labels, answer = 0;                                                        \
                                                                                                   \
		read_subject(&subject);                                                            \
		has_labels = begin_labels(&labels, asked, caller);                                 \
		labels.told = (__u64)(directory_inode);                                            \
		if (has_labels) {                                                                  \
			labels.unknown |= read_file_label(&labels.directory, directory_inode,      \
							  (wanted)->directory.device);             \
			if (refuses_unknown(&subject, &labels))                                    \
				answer = -EACCES;                                                  \
		}                                                                                  \
		answer ? answer : mac_ask_##name(asked, &subject, wanted, &labels);                \
	})

#endif
