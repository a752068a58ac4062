// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The guard of Usher's objects: only the owning daemon may touch Usher's maps, programs, links and
 * pins. daemons.bpf.c says which processes are daemons.
 *
 * Each object has one owner. The keeper enters its own objects in the tables. Other daemons have
 * these programs enter theirs (USHER_CLAIM_LINK), so no other daemon writes these tables. A claim
 * needs the daemon's mark and uid 0, and never takes an object from its owner. A daemon that
 * replaces an object gives up its claim (USHER_DISCLAIM_LINK). On request (USHER_SWEEP_LINK) the
 * programs forget what the former process of a role had claimed and the present one has not.
 *
 * Objects are known by their ids, which user space enters after loading. While no object is
 * entered, nothing is refused. The kernel hands out descriptors of maps and programs in one place,
 * whether they come from an id, a pin or a load. Links have no such hook: a process gets one by id
 * through bpf(2), or through a pin. Pins are guarded by their folders: looking up, making, linking,
 * removing or renaming a name in a folder first asks inode_permission of the folder. Only removing
 * and renaming the folder itself need hooks of their own.
 *
 * Kernel 6.1 or later (bpf_for_each_map_elem 5.13).
 */
#include <linux/magic.h>

#include "usher_daemons.h"

/* Limits for daemons other than the keeper: half of each table. */
#define MOST_CLAIMED 512
#define MOST_FOLDERS_CLAIMED 32

/*
 * Usher's maps, programs and links. Key: id; value: the owner. Limit of each: 1024. Full: user
 * space gets the error.
 */
HASH_TABLE(own_maps, 1024, __u32, __u32);
HASH_TABLE(own_programs, 1024, __u32, __u32);
HASH_TABLE(own_links, 1024, __u32, __u32);

/*
 * The folders of the pins. Key: struct usher_folder; value: the owner. Limit: 64. Full: user space
 * gets the error.
 */
HASH_TABLE(own_folders, 64, struct usher_folder, __u32);

/*
 * The number of objects that daemons have claimed, which leaves the keeper half of each table. Key:
 * enum usher_object. Full: user space gets the error.
 */
ARRAY_TABLE(claimed, USHER_OBJECT_FOLDER + 1, __u32);

/* `owner`: that of the object; NULL if the object is not Usher's. */
static __always_inline int may_touch(const __u32 *owner)
{
	return !owner || (roles_of(bpf_get_current_task_btf()) & *owner & USHER_OWNER_MASK);
}

/* Hook: bpf_map, because every new map descriptor passes it. Kernel 4.15. */
SEC("lsm/bpf_map")
int BPF_PROG(guard_map, struct bpf_map *map, unsigned int mode)
{
	__u32 id = map->id;

	if (may_touch(bpf_map_lookup_elem(&own_maps, &id)))
		return 0;
	return refuse(USHER_REASON_MAP, -EPERM);
}

/* Hook: bpf_prog, because every new program descriptor passes it. Kernel 4.15. */
SEC("lsm/bpf_prog")
int BPF_PROG(guard_program, struct bpf_prog *program)
{
	__u32 id = program->aux->id;

	if (may_touch(bpf_map_lookup_elem(&own_programs, &id)))
		return 0;
	return refuse(USHER_REASON_PROGRAM, -EPERM);
}

struct claim {
	__u32 claimant;
	__u32 kind;
};

static __always_inline int is_of_role(const __u32 *owner, __u32 claimant)
{
	return (*owner & USHER_OWNER_MASK) == (claimant & USHER_OWNER_MASK);
}

/* Removes a claimed object from its table. */
static __always_inline int forget(void *table, const void *key, __u32 kind)
{
	__u32 *count;

	if (bpf_map_delete_elem(table, key))
		return 0;
	count = bpf_map_lookup_elem(&claimed, &kind);
	if (count)
		__sync_fetch_and_sub(count, 1);
	return 1;
}

/* Enters an object for the claimant, unless it belongs to another role or the limit is reached. */
static __always_inline int claim_in(void *table, const void *key, struct claim claim, __u32 limit)
{
	__u32 *owner = bpf_map_lookup_elem(table, key);
	__u32 *count = bpf_map_lookup_elem(&claimed, &claim.kind);

	if (owner && !is_of_role(owner, claim.claimant))
		return 0;
	if (!count || (!owner && *count >= limit))
		return 0;
	if (bpf_map_update_elem(table, key, &claim.claimant, BPF_ANY))
		return 0;
	if (!owner)
		__sync_fetch_and_add(count, 1);
	return 1;
}

/* Removes an object that the claimant's role has claimed. */
static __always_inline int disclaim_in(void *table, const void *key, struct claim claim)
{
	__u32 *owner = bpf_map_lookup_elem(table, key);

	return owner && is_of_role(owner, claim.claimant) && forget(table, key, claim.kind);
}

static __always_inline int change_in(void *table, const void *key, struct claim claim, __u32 limit,
				     int disclaims)
{
	return disclaims ? disclaim_in(table, key, claim) : claim_in(table, key, claim, limit);
}

/*
 * Claims an object, or gives up the claim. The folder above the keeper's cannot be claimed, because
 * the keeper passes through it.
 */
static __always_inline int change(__u32 claimant, __u32 kind, __u32 id, int disclaims)
{
	struct claim claim = {
		.claimant = claimant,
		.kind = kind,
	};
	struct usher_guard_settings *pins = settings();
	struct usher_folder folder = {
		.inode = id,
	};

	switch (kind) {
	case USHER_OBJECT_MAP:
		return change_in(&own_maps, &id, claim, MOST_CLAIMED, disclaims);
	case USHER_OBJECT_PROGRAM:
		return change_in(&own_programs, &id, claim, MOST_CLAIMED, disclaims);
	case USHER_OBJECT_LINK:
		return change_in(&own_links, &id, claim, MOST_CLAIMED, disclaims);
	case USHER_OBJECT_FOLDER:
		if (!pins || id == pins->parent)
			return 0;
		folder.device = pins->device;
		return change_in(&own_folders, &folder, claim, MOST_FOLDERS_CLAIMED, disclaims);
	}
	return 0;
}

static long sweep_entry(void *table, const void *key, __u32 *owner, struct claim *claim)
{
	if (is_of_role(owner, claim->claimant) && *owner != claim->claimant)
		forget(table, key, claim->kind);
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
 * Answers a claim, its end, or a sweep, which a daemon asks for in place of a link's id. The keeper
 * enters its objects itself. A task with several roles has no objects of its own.
 */
static __always_inline int answers(__u32 question, __u32 id, __u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_guard_settings *pins = settings();
	__u8 roles = roles_of(task);
	__u32 claimant = roles | (task->tgid << USHER_CLAIMANT_SHIFT);

	if (!pins || !pins->device || !roles || (roles & (roles - 1)) || (roles & USHER_KEEPER))
		return 0;
	switch (question) {
	case USHER_CLAIM_LINK:
		return change(claimant, kind, id, 0);
	case USHER_DISCLAIM_LINK:
		return change(claimant, kind, id, 1);
	case USHER_SWEEP_LINK:
		sweep(claimant);
		return 1;
	}
	return 0;
}

/*
 * Hook: bpf, because link descriptors have no hook of their own. Updating and detaching need a
 * descriptor. The hook also answers claims, by an error that the kernel itself never returns.
 * Kernel 4.15.
 */
SEC("lsm/bpf")
int BPF_PROG(guard_link, int command, union bpf_attr *attributes, unsigned int size)
{
	__u32 id;

	if (command != BPF_LINK_GET_FD_BY_ID)
		return 0;
	id = attributes->link_id;
	if (answers(id, attributes->next_id, attributes->open_flags))
		return -USHER_ROLL_CALL_ANSWER;
	if (may_touch(bpf_map_lookup_elem(&own_links, &id)))
		return 0;
	return refuse(USHER_REASON_LINK, -EPERM);
}

/* Refuses a folder that holds pins, unless the caller owns it. */
static __always_inline int use(const struct inode *inode)
{
	const struct super_block *system;
	struct usher_folder folder = {};

	if (!inode)
		return 0;
	system = inode->i_sb;
	if (system->s_magic != BPF_FS_MAGIC)
		return 0;
	folder.inode = inode->i_ino;
	folder.device = system->s_dev;
	if (may_touch(bpf_map_lookup_elem(&own_folders, &folder)))
		return 0;
	return refuse(USHER_REASON_PINS, -EPERM);
}

/*
 * Hook: inode_permission, because every operation on a name in a folder checks the folder here.
 * Kernel 2.6.
 */
SEC("lsm/inode_permission")
int BPF_PROG(guard_folder, struct inode *inode, int mask)
{
	return use(inode);
}

/* Hook: inode_rmdir, because guard_folder sees the parent, which is not Usher's. Kernel 2.6. */
SEC("lsm/inode_rmdir")
int BPF_PROG(guard_removal, struct inode *parent, struct dentry *entry)
{
	return use(READ_ONLY(entry, struct dentry)->d_inode);
}

/* Hook: inode_rename, because guard_folder sees the parent, which is not Usher's. Kernel 2.6. */
SEC("lsm/inode_rename")
int BPF_PROG(guard_renaming, struct inode *parent, struct dentry *entry, struct inode *new_parent,
	     struct dentry *new_entry)
{
	const struct inode *replaced = READ_ONLY(new_entry, struct dentry)->d_inode;
	int refused = use(READ_ONLY(entry, struct dentry)->d_inode);

	return refused ? refused : use(replaced);
}

/* Hook: path_chmod, because the folder's mode is not checked at its parent. Kernel 2.6. */
SEC("lsm/path_chmod")
int BPF_PROG(guard_mode, const struct path *path, unsigned short mode)
{
	return use(READ_ONLY(path, struct path)->dentry->d_inode);
}

/* Hook: path_chown, because the folder's owner is not checked at its parent. Kernel 2.6. */
SEC("lsm/path_chown")
int BPF_PROG(guard_owner, const struct path *path, unsigned long uid, unsigned long gid)
{
	return use(READ_ONLY(path, struct path)->dentry->d_inode);
}

/*
 * Hook: sb_umount, because the pins vanish with the last mount of their file system. PID 1 unmounts
 * it at shutdown. Kernel 2.6.
 */
SEC("lsm/sb_umount")
int BPF_PROG(guard_mount, struct vfsmount *mount, int flags)
{
	struct usher_guard_settings *pins = settings();
	struct task_struct *task;

	if (!pins || !pins->device || mount->mnt_sb->s_dev != pins->device)
		return 0;
	task = bpf_get_current_task_btf();
	if ((roles_of(task) & USHER_KEEPER) || task->tgid == 1)
		return 0;
	return refuse(USHER_REASON_UNMOUNT, -EPERM);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
