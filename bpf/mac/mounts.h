/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about file systems and their places. */
#ifndef USHER_MAC_MOUNTS_H
#define USHER_MAC_MOUNTS_H

#include "accesses.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block___mac {
	struct dentry *s_root;
};

struct vfsmount___mac {
	struct dentry *mnt_root;
	struct super_block *mnt_sb;
};

struct dentry___mac {
	struct super_block *d_sb;
};

#pragma clang attribute pop

/* The file system of a name, and of a place. */
static __always_inline const struct super_block *system_of(const struct dentry *entry)
{
	return bpf_core_cast(entry, struct dentry___mac)->d_sb;
}

static __always_inline const struct super_block *system_at(const struct path *path)
{
	return system_of(bpf_core_cast(path, struct path)->dentry);
}

/* Asks about a mounted file system, and the one that has the place; either may be NULL. */
#define MAC_ASK_ABOUT_SYSTEM(name, asked, caller, wanted, system, around)                          \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		if (begin_labels(&labels, asked, caller)) {                                        \
			read_system_label(&labels.object, system);                                 \
			read_system_label(&labels.directory, around);                              \
		}                                                                                  \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* Hook: sb_mount, because mount(2) passes it for all that it does. */
SEC("lsm/sb_mount")
int BPF_PROG(dispatch_sb_mount, const char *source, const struct path *place, const char *type,
	     unsigned long flags, void *data)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sb_mount, &caller);
	struct usher_mac_mount wanted = { .flags = flags };

	if (!asked || !read_file(&wanted.place, inode_at(place)))
		return 0;
	return MAC_ASK_ABOUT_SYSTEM(sb_mount, asked, &caller, &wanted, NULL, system_at(place));
}

/* Hook: sb_umount, because umount2(2) passes it. */
SEC("lsm/sb_umount")
int BPF_PROG(dispatch_sb_umount, struct vfsmount *mount, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sb_umount, &caller);
	const struct vfsmount___mac *mounted = bpf_core_cast(mount, struct vfsmount___mac);
	struct usher_mac_mount wanted = { .flags = flags };

	if (!asked || !read_file(&wanted.place, mounted->mnt_root->d_inode))
		return 0;
	return MAC_ASK_ABOUT_SYSTEM(sb_umount, asked, &caller, &wanted, mounted->mnt_sb, NULL);
}

/* Hook: sb_remount, because options of a file system change there, by mount(2) and fsconfig(2). */
SEC("lsm/sb_remount")
int BPF_PROG(dispatch_sb_remount, struct super_block *system, void *options)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sb_remount, &caller);
	const struct super_block___mac *mounted = bpf_core_cast(system, struct super_block___mac);
	struct usher_mac_mount wanted = {};

	if (!asked || !read_file(&wanted.place, mounted->s_root->d_inode))
		return 0;
	return MAC_ASK_ABOUT_SYSTEM(sb_remount, asked, &caller, &wanted, system, NULL);
}

/* Hook: move_mount, because move_mount(2) does not pass sb_mount. */
SEC("lsm/move_mount")
int BPF_PROG(dispatch_move_mount, const struct path *former, const struct path *place)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_move_mount, &caller);
	struct usher_mac_mount wanted = {};

	if (!asked || !read_file(&wanted.moved, inode_at(former)) ||
	    !read_file(&wanted.place, inode_at(place)))
		return 0;
	return MAC_ASK_ABOUT_SYSTEM(move_mount, asked, &caller, &wanted, system_at(former),
				    system_at(place));
}

/* Hook: sb_statfs, because statfs(2) and its kind pass it. */
SEC("lsm/sb_statfs")
int BPF_PROG(dispatch_sb_statfs, struct dentry *entry)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sb_statfs, &caller);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_of(entry)))
		return 0;
	return MAC_ASK_ABOUT_SYSTEM(sb_statfs, asked, &caller, &wanted, system_of(entry), NULL);
}

/* Hook: path_chroot, because chroot(2) passes it. */
SEC("lsm/path_chroot")
int BPF_PROG(dispatch_path_chroot, const struct path *path)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_path_chroot, &caller);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_at(path)))
		return 0;
	return MAC_ASK_CALLER(path_chroot, asked, &caller, &wanted);
}

/*
 * File systems that rules and labels follow by their paths. Key: a number that user space has made
 * of the path. Value: the device of the file system that was mounted there last; no entry if that
 * has ended. Full: user space says so, and the rule ends with the mount.
 */
HASH_TABLE(followed, USHER_MAC_FOLLOWED, __u64, __u32);

static long forget_followed(struct bpf_map *table, const __u64 *path, const __u32 *device,
			    const __u32 *ended)
{
	if (*device == *ended)
		bpf_map_delete_elem(table, path);
	return 0;
}

/* Hook: sb_delete, because a file system ends there, wherever it was mounted, and its device is not
 * another one's yet. Kernel 5.13. */
SEC("lsm/sb_delete")
int BPF_PROG(dispatch_sb_delete, struct super_block *system)
{
	__u32 ended = system->s_dev;

	bpf_for_each_map_elem(&followed, forget_followed, &ended, 0);
	return 0;
}

#endif
