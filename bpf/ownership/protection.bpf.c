// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Self-protection: Usher's maps, programs, links and pins are touched by Usher's daemons only, and
 * nobody controls a daemon by ptrace.
 *
 * A daemon is a task with a mark. The keeper that loads these programs marks itself. From then on
 * exec gives the mark and takes it: to the program whose path is configured, not under a tracer,
 * and, when the keeper was a child of PID 1, to children of PID 1 only; from everything else.
 * Threads have their process's mark. A forked process is kept from tracers until it executes
 * something: it still has the keeper's descriptors.
 *
 * The mark has two grades, because the other daemons' units have mount namespaces of their own,
 * where a path may be another file: there a daemon is kept from tracers and no more. In the
 * keeper's mount namespace it touches Usher's objects, too, while its effective uid is 0: the
 * keeper does, and a process that has given root up does not.
 *
 * Objects are known by their ids, which user space enters after loading; while nothing is entered,
 * nothing is refused. A map's or program's descriptor is asked for at one place in the kernel,
 * whether it comes from an id, a pin or a load. Links have no such hook: they are asked for by id
 * in bpf(2), and by a pin. Pins are guarded by the folders they lie in: whatever is done with a
 * name in a folder, looking it up, making, linking, removing and renaming it, asks inode_permission
 * of the folder first, so only the removal and the renaming of the folder itself need hooks of
 * their own.
 *
 * Reading a daemon's status, maps and environment is left to root (systemctl, ps).
 *
 * What this cannot do: a root process that may replace the daemons' program, write systemd units,
 * load kernel modules, trace the kernel, change the mount tree above the pins or reboot is Usher.
 * And any root process may kill a daemon; what is pinned stays in force.
 *
 * Kernel 6.1 or later (bpf_d_path in LSM 5.11).
 */
#include "refusals.h"

#define BPF_FS_MAGIC 0xcafe4a11
#define CLONE_THREAD 0x00010000
#define PTRACE_MODE_ATTACH 0x02

/* A link by id, the way bpf(2) is asked for it. */
#define LINK_BY_ID 30

/* Ids of Usher's maps. Key: id. Limit: 1024. Full: user space is told. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} own_maps SEC(".maps");

/* Ids of Usher's programs. Key: id. Limit: 1024. Full: user space is told. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} own_programs SEC(".maps");

/* Ids of Usher's links. Key: id. Limit: 1024. Full: user space is told. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} own_links SEC(".maps");

/* The folders of the pins. Key: struct usher_folder. Limit: 64. Full: user space is told. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct usher_folder);
	__type(value, __u8);
} own_folders SEC(".maps");

/* Who is a daemon, and the device of the pins. Key: 0. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct usher_protection);
} protection SEC(".maps");

/*
 * Marks of daemons. Key: the thread; value: enum usher_mark. Limit: memory. Full: an exec gives no
 * mark, and the daemon is refused Usher's objects; no thread or process is made.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} daemons SEC(".maps");

/* enum usher_mark, or 0. */
static __always_inline __u8 mark_of(struct task_struct *task)
{
	__u8 *mark = bpf_task_storage_get(&daemons, task, NULL, 0);

	return mark ? *mark : 0;
}

static __always_inline int may_touch(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return task->cred->euid.val == 0 && mark_of(task) == USHER_KEEPER;
}

static __always_inline struct usher_protection *settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&protection, &zero);
}

/* Hook: bpf_map, because every new descriptor of a map passes it. Kernel 4.15. */
SEC("lsm/bpf_map")
int BPF_PROG(protect_map, struct bpf_map *map, unsigned int mode)
{
	__u32 id = map->id;

	if (!bpf_map_lookup_elem(&own_maps, &id) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_MAP, -EPERM);
}

/* Hook: bpf_prog, because every new descriptor of a program passes it. Kernel 4.15. */
SEC("lsm/bpf_prog")
int BPF_PROG(protect_program, struct bpf_prog *program)
{
	__u32 id = program->aux->id;

	if (!bpf_map_lookup_elem(&own_programs, &id) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PROGRAM, -EPERM);
}

/*
 * Hook: bpf, because descriptors of links have no hook of their own. Updating and detaching take a
 * descriptor. It also answers user space's question whether LSM programs run at all. Kernel 4.15.
 */
SEC("lsm/bpf")
int BPF_PROG(protect_link, int command, union bpf_attr *attributes, unsigned int size)
{
	__u32 id;

	if (command != LINK_BY_ID)
		return 0;
	id = attributes->link_id;
	if (id == USHER_ROLL_CALL_LINK)
		return -USHER_ROLL_CALL_ANSWER;
	if (!bpf_map_lookup_elem(&own_links, &id) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_LINK, -EPERM);
}

static __always_inline int is_own_folder(struct inode *inode)
{
	struct usher_folder folder = {};

	if (!inode || inode->i_sb->s_magic != BPF_FS_MAGIC)
		return 0;
	folder.inode = inode->i_ino;
	folder.device = inode->i_sb->s_dev;
	return bpf_map_lookup_elem(&own_folders, &folder) != NULL;
}

/*
 * Hook: inode_permission, because whatever is done with a name in a folder asks it of the folder.
 * Kernel 2.6.
 */
SEC("lsm/inode_permission")
int BPF_PROG(protect_folder, struct inode *inode, int mask)
{
	if (!is_own_folder(inode) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PINS, -EPERM);
}

/* Hook: inode_rmdir, for the folder itself, whose parent is not ours. Kernel 2.6. */
SEC("lsm/inode_rmdir")
int BPF_PROG(protect_removal, struct inode *parent, struct dentry *entry)
{
	if (!is_own_folder(entry->d_inode) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PINS, -EPERM);
}

/* Hook: inode_rename, for the folder itself, whose parent is not ours. Kernel 2.6. */
SEC("lsm/inode_rename")
int BPF_PROG(protect_renaming, struct inode *parent, struct dentry *entry, struct inode *new_parent,
	     struct dentry *new_entry)
{
	struct inode *replaced = new_entry->d_inode;

	if ((!is_own_folder(entry->d_inode) && !is_own_folder(replaced)) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PINS, -EPERM);
}

/* Hook: path_chmod, because the mode of the folder is not the folder's parent's. Kernel 2.6. */
SEC("lsm/path_chmod")
int BPF_PROG(protect_mode, const struct path *path, unsigned short mode)
{
	if (!is_own_folder(path->dentry->d_inode) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PINS, -EPERM);
}

/* Hook: path_chown, because the owner of the folder is not the folder's parent's. Kernel 2.6. */
SEC("lsm/path_chown")
int BPF_PROG(protect_owner, const struct path *path, unsigned long uid, unsigned long gid)
{
	if (!is_own_folder(path->dentry->d_inode) || may_touch())
		return 0;
	return refuse(USHER_REFUSED_PINS, -EPERM);
}

/*
 * Hook: sb_umount, because the pins end with the last mount of their file system. PID 1 unmounts
 * when the machine goes down. Kernel 2.6.
 */
SEC("lsm/sb_umount")
int BPF_PROG(protect_mount, struct vfsmount *mount, int flags)
{
	struct usher_protection *pins = settings();

	if (!pins || !pins->device || mount->mnt_sb->s_dev != pins->device)
		return 0;
	if (may_touch() || bpf_get_current_task_btf()->tgid == 1)
		return 0;
	return refuse(USHER_REFUSED_UNMOUNT, -EPERM);
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
	return refuse(USHER_REFUSED_TRACING, -EPERM);
}

/* Hook: ptrace_traceme, by which a process gives itself to its parent. Kernel 2.6. */
SEC("lsm/ptrace_traceme")
int BPF_PROG(protect_from_parent, struct task_struct *parent)
{
	if (!mark_of(bpf_get_current_task_btf()))
		return 0;
	return refuse(USHER_REFUSED_TRACING, -EPERM);
}

/* What the task is to be marked as that executes this program. */
static __always_inline __u8 mark_for(struct task_struct *task, struct linux_binprm *program,
				     const struct usher_protection *expected)
{
	char path[USHER_PATH_SIZE] = {};
	long length;

	if (!expected->path_length || task->ptrace)
		return 0;
	if (expected->children_of_init && task->real_parent->tgid != 1)
		return 0;
	length = bpf_d_path(&program->file->f_path, path, sizeof(path));
	if (length != expected->path_length)
		return 0;
	for (__u32 i = 0; i < sizeof(path); i++) {
		if (i >= length)
			break;
		if (path[i] != expected->daemon[i])
			return 0;
	}
	if (task->nsproxy->mnt_ns->ns.inum != expected->mount_namespace)
		return USHER_DAEMON;
	return USHER_KEEPER;
}

/*
 * Hook: bprm_committed_creds, because the new program's file is known, and nothing of it has run.
 * Kernel 2.6.
 */
SEC("lsm/bprm_committed_creds")
int BPF_PROG(mark_daemon, struct linux_binprm *program)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_protection *expected = settings();
	__u8 grade = expected ? mark_for(task, program, expected) : 0;
	__u8 *mark;

	if (!grade) {
		bpf_task_storage_delete(&daemons, task);
		return 0;
	}
	mark = bpf_task_storage_get(&daemons, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (mark)
		*mark = grade;
	return 0;
}

/*
 * Hook: task_alloc, because storage is not inherited: threads and forked processes get their mark
 * here. Kernel 4.17.
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
