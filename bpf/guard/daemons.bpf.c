// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The guard of Usher's daemons: which processes are daemons, and no process may control one by
 * ptrace.
 *
 * A daemon is a task with a mark. The keeper that loads these programs marks itself and presents
 * itself: the programs note where it was executed. From then on exec sets and clears the mark. The
 * file at the keeper's path gets a mark for all roles if all of these conditions hold:
 *
 * - The file lies in the keeper's mount, belongs to root, and only root may write it. So an
 *   upgraded program is a daemon. A program in a mount that covers the path, or one reached through
 *   a descriptor, is not.
 * - The task has the keeper's mount namespace and root (no chroot) and shares its root with no
 *   other task, so that the program finds the loader and the libraries of this host.
 * - The kernel demands secure execution, which these programs request, so that the loader ignores
 *   LD_PRELOAD, LD_AUDIT, LD_LIBRARY_PATH and the like.
 * - Nothing prepared earlier remains inside: no tracer, no seccomp filter except PID 1's, no
 *   performance event.
 * - Its effective uid is 0. If the keeper was a child of PID 1, so is the task.
 *
 * The units of other daemons have their own mount namespaces, where the path may lead to another
 * file. There the file that the present keeper was executed from, known by inode and device, gets a
 * mark for all roles except the keeper's. The same file also gets this mark when a child of the
 * keeper executes it.
 *
 * The program then declares its roles (USHER_ROLES_LINK) before it reads anything. `usherd signer`
 * is only the signer, most daemons have no role here, and `usherd release` has several, because it
 * removes what stopped daemons have left. A program declares its roles once. From then on it may
 * touch only the objects of its roles, and only while its effective uid is 0. So a daemon that is
 * subverted later has none of the other daemons' power, and a process that has given up root
 * touches nothing (objects.bpf.c).
 *
 * Threads have their process's mark. A forked process is kept from tracers until it executes
 * something. It touches nothing, because it still has its parent's descriptors.
 *
 * Root may still read a daemon's status, maps and environment (systemctl, ps).
 *
 * Limits: a root process that makes a mount namespace in which the daemons' program finds another
 * loader or library has every role except the keeper's. A process that may replace the daemons'
 * program, the loader, a library or /etc/ld.so.preload, write systemd units, load kernel modules,
 * trace the kernel, change the mount tree above the pins or reboot has all of Usher's power. Any
 * root process may kill a daemon; pinned objects stay in force.
 *
 * Kernel 6.1 or later (bpf_d_path and bpf_bprm_opts_set in LSM 5.11, bpf_loop 5.17).
 */
#include <linux/sched.h>

#include "usher_daemons.h"
#include "usher_numbers.h"
#include "usher_prepared.h"

#define WRITE_BY_OTHERS (S_IWGRP | S_IWOTH)

/* Marks for executed programs. */
#define ALL_ROLES (USHER_DAEMON | USHER_UNDECLARED | USHER_ROLES)
#define OTHER_ROLES (ALL_ROLES & ~USHER_KEEPER)

/* The place where the present keeper was executed. Key: 0. */
ARRAY_TABLE(keepers_place, 1, struct usher_place);

/* The mount of a path. Computed as a number: the verifier rejects a pointer before the member. */
static __always_inline struct mount *mount_of(const struct path *path)
{
	__u64 inner = (__u64)BPF_CORE_READ(path, mnt);

	return (struct mount *)(inner - bpf_core_field_offset(struct mount, mnt));
}

/* Finds a task's program and root. */
static __always_inline void locate(struct task_struct *task, struct file *program,
				   struct usher_place *place)
{
	struct fs_struct *fs = BPF_CORE_READ(task, fs);
	struct inode *inode = BPF_CORE_READ(program, f_inode);
	struct inode *root = BPF_CORE_READ(fs, root.dentry, d_inode);

	place->program_inode = BPF_CORE_READ(inode, i_ino);
	place->program_device = BPF_CORE_READ(inode, i_sb, s_dev);
	place->program_mount = BPF_CORE_READ(mount_of(&program->f_path), mnt_id);
	place->root_inode = BPF_CORE_READ(root, i_ino);
	place->root_device = BPF_CORE_READ(root, i_sb, s_dev);
	place->root_mount = BPF_CORE_READ(mount_of(&fs->root), mnt_id);
	place->mount_namespace = BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum);
}

/* Limits the task to these roles, which must be among those that it may have. */
static __always_inline int declare(struct task_struct *task, __u8 roles)
{
	__u8 *mark = bpf_task_storage_get(&daemons, task, NULL, 0);

	if (!mark || !(*mark & USHER_UNDECLARED) || (roles & ~*mark))
		return 0;
	*mark = USHER_DAEMON | roles;
	return 1;
}

/*
 * Answers a question that user space asks in place of a link's id. Returns 0 for no, and for an id
 * that is not a question about daemons.
 */
static __always_inline int answers(__u32 question)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_place *place;

	if ((question & ~USHER_ROLES) == USHER_ROLES_LINK)
		return declare(task, question & USHER_ROLES);
	switch (question) {
	case USHER_ROLL_CALL_LINK:
		return 1;
	case USHER_PINNED_LINK:
		return has_pinned_memory(task);
	case USHER_PRESENTATION_LINK:
		place = first_of(&keepers_place);
		if (!place || !(roles_of(task) & USHER_KEEPER))
			return 0;
		locate(task, BPF_CORE_READ(task, mm, exe_file), place);
		return 1;
	}
	return 0;
}

/*
 * Hook: bpf, whose caller gets the answer: an error that the kernel itself never returns. Kernel
 * 4.15.
 */
SEC("lsm/bpf")
int BPF_PROG(answer_daemon, int command, union bpf_attr *attributes, unsigned int size)
{
	if (command == BPF_LINK_GET_FD_BY_ID && answers(attributes->link_id))
		return -USHER_ROLL_CALL_ANSWER;
	return 0;
}

/*
 * Hook: ptrace_access_check, because PTRACE_ATTACH, /proc/PID/mem, process_vm_writev and
 * pidfd_getfd all pass it in an "attach" mode. Kernel 2.6.
 */
SEC("lsm/ptrace_access_check")
int BPF_PROG(guard_daemon, struct task_struct *task, unsigned int mode)
{
	if (!(mode & PTRACE_MODE_ATTACH) || !mark_of(task) ||
	    task->tgid == bpf_get_current_task_btf()->tgid)
		return 0;
	return refuse(USHER_REASON_TRACING, -EPERM);
}

/* Hook: ptrace_traceme, by which a process makes its parent its tracer. Kernel 2.6. */
SEC("lsm/ptrace_traceme")
int BPF_PROG(guard_from_parent, struct task_struct *parent)
{
	if (!mark_of(bpf_get_current_task_btf()))
		return 0;
	return refuse(USHER_REASON_TRACING, -EPERM);
}

/* A comparison of a path with the keeper's. */
struct path_comparison {
	char path[USHER_PATH_SIZE];
	const struct usher_guard_settings *expected;
	__u32 differs;
};

/* Compares one character; 1 ends the comparison. For bpf_loop, because the verifier would go
 * through all of them. */
static long compare_at(__u32 index, struct path_comparison *paths)
{
	if (index >= sizeof(paths->path))
		return 1;
	paths->differs = paths->path[index] != paths->expected->daemon[index];
	return paths->differs;
}

/* Whether the file has the keeper's path, and only root may write it. */
static __always_inline int is_at_keepers_path(struct file *file,
					      const struct usher_guard_settings *expected)
{
	struct path_comparison paths = { .expected = expected };
	const struct inode *inode = READ_ONLY(file, struct file)->f_inode;
	long length;

	if ((inode->i_mode & S_IFMT) != S_IFREG || (inode->i_mode & WRITE_BY_OTHERS) ||
	    inode->i_uid.val != 0)
		return 0;
	length = bpf_d_path(&file->f_path, paths.path, sizeof(paths.path));
	if (length != expected->path_length)
		return 0;
	bpf_loop(length, compare_at, &paths, 0);
	return !paths.differs;
}

/* Whether the task has a filter that PID 1 does not have, which could void the keeper's calls. */
static __always_inline int has_own_filter(struct task_struct *task, __u32 child_of_init)
{
	struct seccomp_filter *filter;

	if (!bpf_core_type_exists(struct seccomp_filter))
		return 0;
	filter = BPF_CORE_READ(task, seccomp.filter);
	return filter &&
	       (!child_of_init || filter != BPF_CORE_READ(task, real_parent, seccomp.filter));
}

/*
 * The mark of a task that executes this program with these credentials: the roles that it may have.
 */
static __always_inline __u8 mark_for(struct task_struct *task, struct linux_binprm *program,
				     const struct cred *cred)
{
	struct usher_guard_settings *expected = settings();
	struct usher_place *keepers = first_of(&keepers_place);
	struct usher_place place = {};
	__u32 child_of_init, child_of_keeper;
	int same_file;

	if (!expected || !keepers || !expected->path_length || !keepers->program_inode)
		return 0;
	if (cred->euid.val != 0 || task->ptrace || has_listener(task) ||
	    has_performance_events(task))
		return 0;
	child_of_init = READ_ONLY(task, struct task_struct)->real_parent->tgid == 1;
	child_of_keeper = mark_of(task) != 0;
	if (expected->children_of_init && !child_of_init && !child_of_keeper)
		return 0;
	locate(task, program->file, &place);
	same_file = place.program_inode == keepers->program_inode &&
		    place.program_device == keepers->program_device;
	if ((expected->children_of_init && !child_of_init) ||
	    READ_ONLY(task, struct task_struct)->fs->users != 1 ||
	    has_own_filter(task, expected->children_of_init) ||
	    place.mount_namespace != keepers->mount_namespace ||
	    place.root_mount != keepers->root_mount || place.root_inode != keepers->root_inode ||
	    place.root_device != keepers->root_device ||
	    place.program_mount != keepers->program_mount ||
	    !is_at_keepers_path(program->file, expected))
		return same_file ? OTHER_ROLES : 0;
	return ALL_ROLES;
}

/*
 * Hook: bprm_creds_from_file, because the new credentials are final here, and an option set here
 * reaches the program as AT_SECURE. Kernel 5.8.
 */
SEC("lsm/bprm_creds_from_file")
int BPF_PROG(secure_execution, struct linux_binprm *program, struct file *file)
{
	if (mark_for(bpf_get_current_task_btf(), program,
		     READ_ONLY(program, struct linux_binprm)->cred))
		bpf_bprm_opts_set(program, BPF_F_BPRM_SECUREEXEC);
	return 0;
}

/*
 * Hook: bprm_committed_creds, because the new program's file is known, no tracer can attach any
 * more, and the program has not run yet. Kernel 2.6.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(mark_daemon, struct linux_binprm *program)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u8 grade = mark_for(task, program, cred_of(task));
	__u8 *mark;

	if (!grade || !BPF_CORE_READ_BITFIELD(program, secureexec)) {
		bpf_task_storage_delete(&daemons, task);
		return 0;
	}
	mark = bpf_task_storage_get(&daemons, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (mark)
		*mark = grade;
	return 0;
}

/*
 * Hook: task_alloc, because storage is not inherited: it marks new threads and forked processes.
 * Kernel 4.17.
 */
SEC("lsm/task_alloc")
int BPF_PROG(mark_thread, struct task_struct *child, unsigned long flags)
{
	__u8 grade = mark_of(bpf_get_current_task_btf());
	__u8 *mark;

	if (!grade)
		return 0;
	mark = bpf_task_storage_get(&daemons, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!mark)
		return -ENOMEM;
	*mark = flags & CLONE_THREAD ? grade : USHER_DAEMON;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
