// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Self-protection by owner: only the owning daemon may touch Usher's maps, programs, links and
 * pins, and no process may control a daemon by ptrace.
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
 * file. There the file that the present keeper was executed from, by inode and device, gets a mark
 * for all roles except the keeper's. So does that file when a child of the keeper executes it.
 *
 * The program then declares its roles (USHER_ROLES_LINK) before it reads anything. `usherd signer`
 * is only the signer, most daemons have no role here, and `usherd release` has several, because it
 * removes what stopped daemons have left. A program declares its roles once. From then on it may
 * touch only the objects of its roles, and only while its effective uid is 0. So a daemon that is
 * subverted later has none of the other daemons' power, and a process that has given up root
 * touches nothing.
 *
 * Threads have their process's mark. A forked process is kept from tracers until it executes
 * something. It touches nothing, because it still has its parent's descriptors.
 *
 * Each object has one owner. The keeper enters its own objects in the tables. Other daemons have
 * these programs enter theirs (USHER_CLAIM_LINK), so no other daemon writes these tables. A claim
 * needs the daemon's mark and uid 0, and never takes an object from its owner. On request
 * (USHER_SWEEP_LINK) the programs forget what the former process of a role had claimed and the
 * present one has not.
 *
 * Objects are known by their ids, which user space enters after loading. While no object is
 * entered, nothing is refused. The kernel hands out descriptors of maps and programs in one place,
 * whether they come from an id, a pin or a load. Links have no such hook: a process gets one by id
 * through bpf(2), or through a pin. Pins are guarded by their folders: looking up, making, linking,
 * removing or renaming a name in a folder first asks inode_permission of the folder. Only removing
 * and renaming the folder itself need hooks of their own.
 *
 * Root may still read a daemon's status, maps and environment (systemctl, ps).
 *
 * Limits: a root process that makes a mount namespace in which the daemons' program finds another
 * loader or library has every role except the keeper's. A process that may replace the daemons'
 * program, the loader, a library or /etc/ld.so.preload, write systemd units, load kernel modules,
 * trace the kernel, change the mount tree above the pins or reboot has all of Usher's power. Any
 * root process may kill a daemon; pinned objects stay in force.
 *
 * Kernel 6.1 or later (bpf_d_path and bpf_bprm_opts_set in LSM 5.11).
 */
#include "usher_daemons.h"
#include "usher_prepared.h"

#define BPF_FS_MAGIC 0xcafe4a11
#define CLONE_THREAD 0x00010000
#define PTRACE_MODE_ATTACH 0x02
#define S_IFMT 00170000
#define S_IFREG 0100000
#define WRITE_BY_OTHERS 00022

/* Marks for executed programs. */
#define ALL_ROLES (USHER_DAEMON | USHER_UNDECLARED | USHER_ROLES)
#define OTHER_ROLES (ALL_ROLES & ~USHER_KEEPER)

/* Limits for daemons other than the keeper: half of each table. */
#define MOST_CLAIMED 512
#define MOST_FOLDERS_CLAIMED 32

/* BPF_LINK_GET_FD_BY_ID, a command of bpf(2). */
#define LINK_BY_ID 30

/* Usher's maps. Key: id; value: the owner. Limit: 1024. Full: user space gets the error. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} own_maps SEC(".maps");

/* Usher's programs. Key: id; value: the owner. Limit: 1024. Full: user space gets the error. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} own_programs SEC(".maps");

/* Usher's links. Key: id; value: the owner. Limit: 1024. Full: user space gets the error. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} own_links SEC(".maps");

/*
 * The folders of the pins. Key: struct usher_folder; value: the owner. Limit: 64. Full: user space
 * gets the error.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct usher_folder);
	__type(value, __u32);
} own_folders SEC(".maps");

/*
 * The number of objects that daemons have claimed, which leaves the keeper half of each table. Key:
 * enum usher_object. Full: user space gets the error.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, USHER_OBJECT_FOLDER + 1);
	__type(key, __u32);
	__type(value, __u32);
} claimed SEC(".maps");

/* The place where the present keeper was executed. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct usher_place);
} keepers_place SEC(".maps");

/* The task's roles; none until it declares them. */
static __always_inline __u8 roles_of(struct task_struct *task)
{
	__u8 mark = mark_of(task);

	return task->cred->euid.val == 0 && !(mark & USHER_UNDECLARED) ? mark & USHER_ROLES : 0;
}

/* `owner`: the object's; NULL if the object is not Usher's. */
static __always_inline int may_touch(const __u32 *owner)
{
	return !owner || (roles_of(bpf_get_current_task_btf()) & *owner & USHER_OWNER_MASK);
}

static __always_inline struct usher_place *presented(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&keepers_place, &zero);
}

/* The mount of a path. Read as a number: the verifier rejects an address before the member. */
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

/* Hook: bpf_map, because every new map descriptor passes it. Kernel 4.15. */
SEC("lsm/bpf_map")
int BPF_PROG(protect_map, struct bpf_map *map, unsigned int mode)
{
	__u32 id = map->id;

	if (may_touch(bpf_map_lookup_elem(&own_maps, &id)))
		return 0;
	return refuse(USHER_REASON_MAP, -EPERM);
}

/* Hook: bpf_prog, because every new program descriptor passes it. Kernel 4.15. */
SEC("lsm/bpf_prog")
int BPF_PROG(protect_program, struct bpf_prog *program)
{
	__u32 id = program->aux->id;

	if (may_touch(bpf_map_lookup_elem(&own_programs, &id)))
		return 0;
	return refuse(USHER_REASON_PROGRAM, -EPERM);
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

struct claim {
	__u32 claimant;
	__u32 kind;
};

/* Enters an object for the claimant, unless it belongs to another role or the limit is reached. */
static __always_inline int claim_in(void *table, const void *key, struct claim claim, __u32 limit)
{
	__u32 *owner = bpf_map_lookup_elem(table, key);
	__u32 *count = bpf_map_lookup_elem(&claimed, &claim.kind);

	if (owner && (*owner & USHER_OWNER_MASK) != (claim.claimant & USHER_OWNER_MASK))
		return 0;
	if (!count || (!owner && *count >= limit))
		return 0;
	if (bpf_map_update_elem(table, key, &claim.claimant, BPF_ANY))
		return 0;
	if (!owner)
		__sync_fetch_and_add(count, 1);
	return 1;
}

/* The folder above the keeper's cannot be claimed, because the keeper passes through it. */
static __always_inline int claim(__u32 claimant, __u32 kind, __u32 id)
{
	struct claim claim = {
		.claimant = claimant,
		.kind = kind,
	};
	struct usher_protection *pins = settings();
	struct usher_folder folder = {
		.inode = id,
	};

	switch (kind) {
	case USHER_OBJECT_MAP:
		return claim_in(&own_maps, &id, claim, MOST_CLAIMED);
	case USHER_OBJECT_PROGRAM:
		return claim_in(&own_programs, &id, claim, MOST_CLAIMED);
	case USHER_OBJECT_LINK:
		return claim_in(&own_links, &id, claim, MOST_CLAIMED);
	case USHER_OBJECT_FOLDER:
		if (!pins || id == pins->parent)
			return 0;
		folder.device = pins->device;
		return claim_in(&own_folders, &folder, claim, MOST_FOLDERS_CLAIMED);
	}
	return 0;
}

static long sweep_entry(void *table, const void *key, __u32 *owner, struct claim *claim)
{
	__u32 kind = claim->kind;
	__u32 *count;

	if ((*owner & USHER_OWNER_MASK) != (claim->claimant & USHER_OWNER_MASK) ||
	    *owner == claim->claimant || bpf_map_delete_elem(table, key))
		return 0;
	count = bpf_map_lookup_elem(&claimed, &kind);
	if (count)
		__sync_fetch_and_sub(count, 1);
	return 0;
}

static __always_inline void sweep(__u32 claimant)
{
	struct claim claim = {
		.claimant = claimant,
		.kind = USHER_OBJECT_MAP,
	};

	bpf_for_each_map_elem(&own_maps, sweep_entry, &claim, 0);
	claim.kind = USHER_OBJECT_PROGRAM;
	bpf_for_each_map_elem(&own_programs, sweep_entry, &claim, 0);
	claim.kind = USHER_OBJECT_LINK;
	bpf_for_each_map_elem(&own_links, sweep_entry, &claim, 0);
	claim.kind = USHER_OBJECT_FOLDER;
	bpf_for_each_map_elem(&own_folders, sweep_entry, &claim, 0);
}

/*
 * Answers a question that user space asks in place of a link's id. Returns 0 for no, and for an id
 * that is not a question.
 */
static __always_inline int answers(__u32 question, __u32 id, __u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_protection *pins = settings();
	__u8 roles = roles_of(task);
	__u32 claimant = roles | (task->tgid << USHER_CLAIMANT_SHIFT);
	struct usher_place *place;

	if ((question & ~USHER_ROLES) == USHER_ROLES_LINK)
		return declare(task, question & USHER_ROLES);
	switch (question) {
	case USHER_ROLL_CALL_LINK:
		return 1;
	case USHER_PINNED_LINK:
		return has_pinned_memory(task);
	case USHER_PRESENTATION_LINK:
		place = presented();
		if (!place || !(roles & USHER_KEEPER))
			return 0;
		locate(task, BPF_CORE_READ(task, mm, exe_file), place);
		return 1;
	}
	/*
	 * The keeper enters its objects itself. A task with several roles has no objects of its
	 * own.
	 */
	if (!pins || !pins->device || !roles || (roles & (roles - 1)) || (roles & USHER_KEEPER))
		return 0;
	switch (question) {
	case USHER_CLAIM_LINK:
		return claim(claimant, kind, id);
	case USHER_SWEEP_LINK:
		sweep(claimant);
		return 1;
	}
	return 0;
}

/*
 * Hook: bpf, because link descriptors have no hook of their own. Updating and detaching need a
 * descriptor. The hook also answers user space's questions, by an error that the kernel never
 * returns. Kernel 4.15.
 */
SEC("lsm/bpf")
int BPF_PROG(protect_link, int command, union bpf_attr *attributes, unsigned int size)
{
	__u32 id;

	if (command != LINK_BY_ID)
		return 0;
	id = attributes->link_id;
	if (answers(id, attributes->next_id, attributes->open_flags))
		return -USHER_ROLL_CALL_ANSWER;
	if (may_touch(bpf_map_lookup_elem(&own_links, &id)))
		return 0;
	return refuse(USHER_REASON_LINK, -EPERM);
}

/* Whether the caller may touch a folder: it owns the folder, or the folder holds no pins. */
static __always_inline int may_use(struct inode *inode)
{
	struct usher_folder folder = {};

	if (!inode || inode->i_sb->s_magic != BPF_FS_MAGIC)
		return 1;
	folder.inode = inode->i_ino;
	folder.device = inode->i_sb->s_dev;
	return may_touch(bpf_map_lookup_elem(&own_folders, &folder));
}

/*
 * Hook: inode_permission, because every operation on a name in a folder checks the folder here.
 * Kernel 2.6.
 */
SEC("lsm/inode_permission")
int BPF_PROG(protect_folder, struct inode *inode, int mask)
{
	if (may_use(inode))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/* Hook: inode_rmdir, for the folder itself, whose parent is not Usher's. Kernel 2.6. */
SEC("lsm/inode_rmdir")
int BPF_PROG(protect_removal, struct inode *parent, struct dentry *entry)
{
	if (may_use(entry->d_inode))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/* Hook: inode_rename, for the folder itself, whose parent is not Usher's. Kernel 2.6. */
SEC("lsm/inode_rename")
int BPF_PROG(protect_renaming, struct inode *parent, struct dentry *entry, struct inode *new_parent,
	     struct dentry *new_entry)
{
	struct inode *replaced = new_entry->d_inode;

	if (may_use(entry->d_inode) && may_use(replaced))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/* Hook: path_chmod, because the folder's mode is not checked at its parent. Kernel 2.6. */
SEC("lsm/path_chmod")
int BPF_PROG(protect_mode, const struct path *path, unsigned short mode)
{
	if (may_use(path->dentry->d_inode))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/* Hook: path_chown, because the folder's owner is not checked at its parent. Kernel 2.6. */
SEC("lsm/path_chown")
int BPF_PROG(protect_owner, const struct path *path, unsigned long uid, unsigned long gid)
{
	if (may_use(path->dentry->d_inode))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/*
 * Hook: sb_umount, because the pins vanish with the last mount of their file system. PID 1 unmounts
 * it at shutdown. Kernel 2.6.
 */
SEC("lsm/sb_umount")
int BPF_PROG(protect_mount, struct vfsmount *mount, int flags)
{
	struct usher_protection *pins = settings();
	struct task_struct *task;

	if (!pins || !pins->device || mount->mnt_sb->s_dev != pins->device)
		return 0;
	task = bpf_get_current_task_btf();
	if ((roles_of(task) & USHER_KEEPER) || task->tgid == 1)
		return 0;
	return refuse(USHER_REASON_UNMOUNT, -EPERM);
}

/*
 * Hook: ptrace_access_check, because PTRACE_ATTACH, /proc/PID/mem, process_vm_writev and
 * pidfd_getfd all pass it in an "attach" mode. Kernel 2.6.
 */
SEC("lsm/ptrace_access_check")
int BPF_PROG(protect_daemon, struct task_struct *task, unsigned int mode)
{
	if (!(mode & PTRACE_MODE_ATTACH) || !mark_of(task) ||
	    task->tgid == bpf_get_current_task_btf()->tgid)
		return 0;
	return refuse(USHER_REASON_TRACING, -EPERM);
}

/* Hook: ptrace_traceme, by which a process makes its parent its tracer. Kernel 2.6. */
SEC("lsm/ptrace_traceme")
int BPF_PROG(protect_from_parent, struct task_struct *parent)
{
	if (!mark_of(bpf_get_current_task_btf()))
		return 0;
	return refuse(USHER_REASON_TRACING, -EPERM);
}

/* Whether the file has the keeper's path, and only root may write it. */
static __always_inline int is_at_keepers_path(struct file *file,
					      const struct usher_protection *expected)
{
	struct inode *inode = file->f_inode;
	char path[USHER_PATH_SIZE] = {};
	long length;

	if ((inode->i_mode & S_IFMT) != S_IFREG || (inode->i_mode & WRITE_BY_OTHERS) ||
	    inode->i_uid.val != 0)
		return 0;
	length = bpf_d_path(&file->f_path, path, sizeof(path));
	if (length != expected->path_length)
		return 0;
	for (__u32 i = 0; i < sizeof(path); i++) {
		if (i >= length)
			break;
		if (path[i] != expected->daemon[i])
			return 0;
	}
	return 1;
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
	struct usher_protection *expected = settings();
	struct usher_place *keepers = presented();
	struct usher_place place = {};
	__u32 child_of_init, child_of_keeper;
	int same_file;

	if (!expected || !keepers || !expected->path_length || !keepers->program_inode)
		return 0;
	if (cred->euid.val != 0 || task->ptrace || has_listener(task) ||
	    has_performance_events(task))
		return 0;
	child_of_init = task->real_parent->tgid == 1;
	child_of_keeper = mark_of(task) != 0;
	if (expected->children_of_init && !child_of_init && !child_of_keeper)
		return 0;
	locate(task, program->file, &place);
	same_file = place.program_inode == keepers->program_inode &&
		    place.program_device == keepers->program_device;
	if ((expected->children_of_init && !child_of_init) || task->fs->users != 1 ||
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
	if (mark_for(bpf_get_current_task_btf(), program, program->cred))
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
	__u8 grade = mark_for(task, program, task->cred);
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
