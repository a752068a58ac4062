// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The setuid fence: a service's account may hold CAP_SETUID and CAP_SETGID, but its processes can
 * become only the one user that the keeper named, once, and for good.
 *
 * A process of a fenced account is in one of three states:
 *
 *     (none) --- keeper grants an identity ---> GRANTED --- setuid to exactly that ---> SETTLED
 *        ^                                         |
 *        '------------- keeper withdraws ----------'
 *
 * Nothing leads out of SETTLED: neither fork nor exec nor a thread. The grant belongs to one
 * process: no child has it. Groups come first (setgroups and setgid to exactly the granted ones, in
 * any order), the user last (setuid or setresuid: all four user ids). A refused attempt uses
 * nothing up.
 *
 * The first and the last step also require that no other process can act inside the process
 * afterwards: no second thread (identities are per thread), no process that shares its memory, its
 * descriptors or its working directory (clone with CLONE_VM, CLONE_FILES, CLONE_FS), no tracer.
 * The last step decides; the first one refuses before anything is changed.
 *
 * The kernel's count of a memory's users does not identify them: every reader of /proc/PID/cmdline
 * counts, for as long as it likes. So sharing is not detected but prevented. A process of a fenced
 * account cannot make another one in its own memory, except by vfork, which keeps the parent
 * waiting. Such a child is marked until it executes a program: its setuid is refused, and it can
 * make neither a thread nor a process in that memory, because these would outlive it while the
 * parent continues.
 *
 * The process must not have been prepared either: both steps refuse one with a seccomp listener, a
 * performance event, an io_uring or pinned pages (prepared.h). Access that the kernel would not
 * show later is refused from the start: a process of a fenced account opens no /proc/PID/mem, no
 * userfaultfd and no performance event, and attaches to no process that holds a grant.
 *
 * BPF cannot take capabilities from a process, so a settled one keeps the service's capabilities in
 * its sets; it may use none of them, in no user namespace.
 *
 * User space writes GRANTED, and these programs write SETTLED, each in a map of its own. So no race
 * between the two frees a settled process.
 *
 * This cannot see: pages that were given to a pipe by vmsplice(2), memory that the service itself
 * shares by a file, and files opened before the account was fenced. Against a service that prepares
 * its own subversion before it reads a user's first byte, start each user's process afresh (Usher's
 * other styles).
 *
 * On a kernel before 6.2 with full preemption, a look-up in task storage can fail if it interrupts
 * one of another task on the same CPU. Debian's kernels do not preempt fully.
 *
 * Kernel 6.1 or later (userns_create 6.1, uring_override_creds 5.16, task storage in LSM 5.11,
 * bpf_loop 5.17).
 */
#include <linux/magic.h>
#include <linux/sched.h>

#include "usher_numbers.h"
#include "usher_prepared.h"
#include "usher_read.h"
#include "usher_refusals.h"

/*
 * Accounts under the fence. Key: uid. Entries are only added until the next boot: removing one
 * would free its running processes. Limit: 1024. Full: user space gets the error and starts no
 * service of a further account.
 */
HASH_TABLE(fenced_accounts, 1024, __u32, __u8);

/*
 * Grants. Key: the process (its first thread); value: the identity. Written by user space only.
 * Limit: memory. Full: user space gets the error, and the process's setuid is refused.
 */
TASK_TABLE(grants, struct usher_identity);

/*
 * Settled threads. Key: the thread; value: its identity. Written by these programs only.
 * Limit: memory. Full: the setuid or the clone is refused.
 */
TASK_TABLE(settled, struct usher_settled);

/*
 * Processes in the memory of their parent, which waits (vfork). Key: the process; value: unused.
 * Limit: memory. Full: the vfork is refused.
 */
TASK_TABLE(borrowers, __u8);

/*
 * The number of the present keeper: each one increments it at start. Key: 0. Grants of an earlier
 * keeper, which would never be completed, are ignored.
 */
ARRAY_TABLE(keeper, 1, __u32);

/*
 * The last reason that a process could not become its user, for the keeper's journal. Key: the
 * process (its first thread); value: enum usher_reason. Limit: memory. Full: the journal lacks it.
 */
TASK_TABLE(obstacles, __u32);

static __always_inline struct usher_settled *settled_as(struct task_struct *task)
{
	return bpf_task_storage_get(&settled, task, NULL, 0);
}

static __always_inline struct usher_identity *granted_to(struct task_struct *task)
{
	struct usher_identity *granted = bpf_task_storage_get(&grants, task, NULL, 0);
	__u32 *present = first_of(&keeper);

	return granted && present && granted->keeper == *present ? granted : NULL;
}

/*
 * A root process that takes a fenced account's id temporarily (seteuid, setfsuid: sshd, sudo, file
 * servers) is not the service and may change back. A service's process never has a root id.
 */
static __always_inline int is_fenced_account(const struct cred *cred)
{
	__u32 uid = cred->uid.val, euid = cred->euid.val;
	__u32 suid = cred->suid.val, fsuid = cred->fsuid.val;

	if (uid == 0 || euid == 0 || suid == 0)
		return 0;
	if (bpf_map_lookup_elem(&fenced_accounts, &uid))
		return 1;
	if (euid == uid && suid == uid && fsuid == uid)
		return 0;
	return bpf_map_lookup_elem(&fenced_accounts, &euid) ||
	       bpf_map_lookup_elem(&fenced_accounts, &suid) ||
	       bpf_map_lookup_elem(&fenced_accounts, &fsuid);
}

static __always_inline int is_fenced(struct task_struct *task, const struct cred *cred)
{
	return settled_as(task) || is_fenced_account(cred);
}

static __always_inline int all_gids_are(const struct cred *cred, __u32 gid)
{
	return cred->gid.val == gid && cred->egid.val == gid && cred->sgid.val == gid &&
	       cred->fsgid.val == gid;
}

static __always_inline int same_uids(const struct cred *left, const struct cred *right)
{
	return left->uid.val == right->uid.val && left->euid.val == right->euid.val &&
	       left->suid.val == right->suid.val && left->fsuid.val == right->fsuid.val;
}

static __always_inline int same_gids(const struct cred *left, const struct cred *right)
{
	return left->gid.val == right->gid.val && left->egid.val == right->egid.val &&
	       left->sgid.val == right->sgid.val && left->fsgid.val == right->fsgid.val;
}

/* A comparison of a process's groups with those of a grant. */
struct group_comparison {
	const struct group_info *present;
	const struct usher_identity *granted;
	__u32 differs;
};

/* Compares one group; 1 ends the comparison. For bpf_loop, because the verifier would go through
 * all of them. */
static long compare_group(__u32 index, struct group_comparison *groups)
{
	kgid_t gid;

	if (index >= USHER_GROUPS)
		return 1;
	groups->differs = bpf_probe_read_kernel(&gid, sizeof(gid), &groups->present->gid[index]) ||
			  gid.val != groups->granted->groups[index];
	return groups->differs;
}

/* The kernel keeps supplementary groups in ascending order, and so does a grant. */
static __always_inline int groups_are(const struct cred *cred, const struct usher_identity *granted)
{
	struct group_comparison groups = { .present = cred->group_info, .granted = granted };
	__u32 count = granted->group_count;

	if (count > USHER_GROUPS || groups.present->ngroups != count)
		return 0;
	bpf_loop(count, compare_group, &groups, 0);
	return !groups.differs;
}

/* Refuses to settle, and records the reason. */
static __always_inline int hinder(struct task_struct *task, __u32 reason, int error)
{
	__u32 *noted = bpf_task_storage_get(&obstacles, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (noted)
		*noted = reason;
	return refuse(reason, error);
}

/* Whether only this thread acts inside its process, and no other access is prepared. */
static __always_inline int alone(struct task_struct *task)
{
	const struct task_struct *read = READ_ONLY(task, struct task_struct);

	if (read->signal->nr_threads != 1)
		return hinder(task, USHER_REASON_IDENTITY_THREADS, -EPERM);
	if (bpf_task_storage_get(&borrowers, task, NULL, 0) || read->files->count.counter != 1 ||
	    read->fs->users != 1)
		return hinder(task, USHER_REASON_IDENTITY_SHARED_MEMORY, -EAGAIN);
	if (task->ptrace)
		return hinder(task, USHER_REASON_IDENTITY_TRACED, -EPERM);
	if (has_listener(task))
		return hinder(task, USHER_REASON_IDENTITY_WATCHED_CALLS, -EBUSY);
	if (has_performance_events(task))
		return hinder(task, USHER_REASON_PERFORMANCE_EVENTS, -EBUSY);
	if (has_ring(task) || has_pinned_memory(task))
		return hinder(task, USHER_REASON_IDENTITY_PINNED_MEMORY, -EBUSY);
	return 0;
}

/*
 * Hook: task_fix_setgroups, because it sees the new list before it comes into force. Kernel 5.15.
 */
SEC("lsm/task_fix_setgroups")
int BPF_PROG(fence_setgroups, struct cred *new, const struct cred *old)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_identity *granted;

	if (!is_fenced(task, old))
		return 0;
	granted = granted_to(task);
	if (!granted || settled_as(task))
		return refuse(USHER_REASON_IDENTITY_NOT_GRANTED, -EPERM);
	if (!groups_are(new, granted))
		return refuse(USHER_REASON_IDENTITY_OTHER_GROUPS, -EPERM);
	return alone(task);
}

/*
 * Hook: task_fix_setgid, because setgid, setregid, setresgid and setfsgid all pass it. Kernel 5.9.
 */
SEC("lsm/task_fix_setgid")
int BPF_PROG(fence_setgid, struct cred *new, const struct cred *old, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_identity *granted;

	if (!is_fenced(task, old) || same_gids(new, old))
		return 0;
	granted = granted_to(task);
	if (!granted || settled_as(task))
		return refuse(USHER_REASON_IDENTITY_NOT_GRANTED, -EPERM);
	if (!all_gids_are(new, granted->gid))
		return refuse(USHER_REASON_IDENTITY_OTHER_GROUP, -EPERM);
	return 0;
}

/*
 * Settles the task. A task that is already settled passes if it changes to its settled identity:
 * two generations of these programs are on the hook while a keeper replaces them.
 */
static __always_inline int settle(struct task_struct *task, const struct usher_identity *granted)
{
	struct usher_settled *identity = settled_as(task);

	if (identity) {
		if (identity->uid == granted->uid && identity->gid == granted->gid)
			return 0;
		return refuse(USHER_REASON_IDENTITY_NOT_GRANTED, -EPERM);
	}
	identity = bpf_task_storage_get(&settled, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!identity)
		return refuse(USHER_REASON_NO_MEMORY, -ENOMEM);
	identity->uid = granted->uid;
	identity->gid = granted->gid;
	return 0;
}

/*
 * Hook: task_fix_setuid, because setuid, setreuid, setresuid and setfsuid all pass it, and it sees
 * the new ids before they come into force. If the kernel runs out of memory after this hook, the
 * process is settled but still has the account's ids: it can do nothing more. Kernel 2.6.
 */
SEC("lsm/task_fix_setuid")
int BPF_PROG(fence_setuid, struct cred *new, const struct cred *old, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_identity *granted;
	int refused;

	if (!is_fenced(task, old) || same_uids(new, old))
		return 0;
	granted = granted_to(task);
	if (!granted)
		return refuse(USHER_REASON_IDENTITY_NOT_GRANTED, -EPERM);
	if (!all_uids_are(new, granted->uid))
		return refuse(USHER_REASON_IDENTITY_OTHER_USER, -EPERM);
	if (!all_gids_are(new, granted->gid) || !groups_are(new, granted))
		return refuse(USHER_REASON_IDENTITY_ORDER, -EPERM);
	refused = alone(task);
	return refused ? refused : settle(task, granted);
}

/*
 * Hook: capable, because every check of a capability passes it, including those of CAP_SETUID and
 * CAP_SETGID by the calls above. Only calls of the set*id family may use the two: CAP_SETUID also
 * lets a process send another's SCM_CREDENTIALS and write uid_map. Kernel 2.6; CAP_OPT_INSETID 5.1.
 */
SEC("lsm/capable")
int BPF_PROG(fence_capable, const struct cred *cred, struct user_namespace *namespace,
	     int capability, unsigned int options)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (settled_as(task))
		return refuse(USHER_REASON_CAPABILITY, -EPERM);
	if (!is_fenced_account(cred) || capability == CAP_NET_BIND_SERVICE)
		return 0;
	if ((capability == CAP_SETUID || capability == CAP_SETGID) && (options & CAP_OPT_INSETID) &&
	    granted_to(task))
		return 0;
	return refuse(USHER_REASON_CAPABILITY, -EPERM);
}

/*
 * Hook: userns_create, because in its own user namespace a process has every capability and maps
 * ids. Kernel 6.1.
 */
SEC("lsm/userns_create")
int BPF_PROG(fence_user_namespace, const struct cred *cred)
{
	if (!is_fenced(bpf_get_current_task_btf(), cred))
		return 0;
	return refuse(USHER_REASON_USER_NAMESPACE, -EPERM);
}

/*
 * Hook: uring_override_creds, because a ring keeps registered credentials (personalities): a
 * settled process would act as the service again, or the service as a user. Kernel 5.16.
 */
SEC("lsm/uring_override_creds")
int BPF_PROG(fence_ring_credentials, const struct cred *new)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct cred *own = cred_of(task);

	if (new == own || !is_fenced(task, own))
		return 0;
	return refuse(USHER_REASON_IO_URING_CREDENTIALS, -EPERM);
}

/* Hook: uring_sqpoll, because its new thread keeps the present credentials. Kernel 5.16. */
SEC("lsm/uring_sqpoll")
int BPF_PROG(fence_ring_thread)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!is_fenced_account(cred_of(task)))
		return 0;
	return refuse(USHER_REASON_IO_URING_CREDENTIALS, -EPERM);
}

/*
 * Hook: perf_event_open, because a performance event continues in a process that settles, and one
 * on another process could come between the last check of that process and its change. Kernel 5.4.
 */
SEC("lsm/perf_event_open")
int BPF_PROG(fence_sampling)
{
	if (!is_fenced_account(cred_of(bpf_get_current_task_btf())))
		return 0;
	return refuse(USHER_REASON_PERFORMANCE_EVENTS, -EPERM);
}

/*
 * Hook: ptrace_access_check, because a tracer could come between the last check of a process and
 * its change. Tracers from before the grant are detected. Kernel 2.6.
 */
SEC("lsm/ptrace_access_check")
int BPF_PROG(fence_granted, struct task_struct *child, unsigned int mode)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!(mode & PTRACE_MODE_ATTACH) || !is_fenced_account(cred_of(task)) ||
	    child->tgid == task->tgid || !granted_to(child))
		return 0;
	return refuse(USHER_REASON_IDENTITY_TRACED, -EPERM);
}

/*
 * Hook: inode_init_security_anon, because a userfaultfd fills the pages of the process that made
 * it, whichever process later holds its descriptor. Kernel 5.12.
 */
SEC("lsm/inode_init_security_anon")
int BPF_PROG(fence_userfaultfd, struct inode *inode, const struct qstr *name)
{
	static const char userfaultfd[] = "[userfaultfd]";
	char found[sizeof(userfaultfd)] = {};

	if (!is_fenced_account(cred_of(bpf_get_current_task_btf())))
		return 0;
	bpf_probe_read_kernel_str(found, sizeof(found), BPF_CORE_READ(name, name));
	for (int i = 0; i < sizeof(found); i++)
		if (found[i] != userfaultfd[i])
			return 0;
	return refuse(USHER_REASON_MEMORY_ACCESS, -EPERM);
}

/*
 * Hook: file_open, because an open /proc/PID/mem keeps access to the memory that it was opened for.
 * Kernel 2.6.
 */
SEC("lsm/file_open")
int BPF_PROG(fence_memory, struct file *file)
{
	char name[4] = {};

	if (READ_ONLY(file, struct file)->f_inode->i_sb->s_magic != PROC_SUPER_MAGIC ||
	    !is_fenced_account(cred_of(bpf_get_current_task_btf())))
		return 0;
	/* Four bytes, with the final zero, so that no longer name matches. */
	bpf_probe_read_kernel(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	if (name[0] != 'm' || name[1] != 'e' || name[2] != 'm' || name[3] != 0)
		return 0;
	return refuse(USHER_REASON_MEMORY_ACCESS, -EPERM);
}

/*
 * Hook: bprm_creds_from_file, because it runs after commoncap has put the privileges of a setuid,
 * setgid or file capability program into the new credentials, and execve can still fail.
 * Kernel 5.8.
 */
SEC("lsm/bprm_creds_from_file")
int BPF_PROG(fence_execution, struct linux_binprm *program, struct file *file)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct cred *own = cred_of(task);
	const struct cred *new = READ_ONLY(program, struct linux_binprm)->cred;
	__u64 had, has;

	if (!is_fenced(task, own))
		return 0;
	if (bpf_core_read(&had, sizeof(had), &own->cap_permitted) ||
	    bpf_core_read(&has, sizeof(has), &new->cap_permitted) || (has & ~had) ||
	    new->euid.val != own->euid.val || new->egid.val != own->egid.val)
		return refuse(USHER_REASON_EXECUTION, -EPERM);
	return 0;
}

/*
 * Hook: bprm_committed_creds, because the process has its own memory from here on. Kernel 2.6.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(fence_own_memory, struct linux_binprm *program)
{
	bpf_task_storage_delete(&borrowers, bpf_get_current_task_btf());
	return 0;
}

/*
 * Hook: task_alloc, because storage is not inherited: it settles every new thread and process of a
 * settled one. It also sees what a new process shares. Grants are not inherited. Kernel 4.17.
 */
SEC("lsm/task_alloc")
int BPF_PROG(fence_clone, struct task_struct *child, unsigned long flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_settled *own = settled_as(task), *inherited;

	if (own) {
		inherited =
		    bpf_task_storage_get(&settled, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!inherited)
			return refuse(USHER_REASON_NO_MEMORY, -ENOMEM);
		*inherited = *own;
		return 0;
	}
	if (!(flags & CLONE_VM) || !is_fenced_account(cred_of(task)))
		return 0;
	if (bpf_task_storage_get(&borrowers, task, NULL, 0))
		return refuse(USHER_REASON_IDENTITY_SHARED_MEMORY, -EPERM);
	if (flags & CLONE_THREAD)
		return 0;
	if (!(flags & CLONE_VFORK))
		return refuse(USHER_REASON_IDENTITY_SHARED_MEMORY, -EPERM);
	if (!bpf_task_storage_get(&borrowers, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE))
		return refuse(USHER_REASON_NO_MEMORY, -ENOMEM);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
