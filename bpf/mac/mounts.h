/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about file systems and their places. */
#ifndef USHER_MAC_MOUNTS_H
#define USHER_MAC_MOUNTS_H

#include "objects.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block___mac {
	struct dentry *s_root;
};

struct vfsmount___mac {
	struct dentry *mnt_root;
};

#pragma clang attribute pop

/* Hook: sb_mount, because mount(2) passes it for all that it does. */
SEC("lsm/sb_mount")
int BPF_PROG(dispatch_sb_mount, const char *source, const struct path *place, const char *type,
	     unsigned long flags, void *data)
{
	__u64 asked = modules_at(MAC_POINT_sb_mount);
	struct usher_mac_mount wanted = { .flags = flags };

	if (!asked || !read_file(&wanted.place, inode_at(place)))
		return 0;
	return MAC_ASK_CALLER(sb_mount, asked, &wanted);
}

/* Hook: sb_umount, because umount2(2) passes it. */
SEC("lsm/sb_umount")
int BPF_PROG(dispatch_sb_umount, struct vfsmount *mount, int flags)
{
	__u64 asked = modules_at(MAC_POINT_sb_umount);
	const struct vfsmount___mac *mounted = bpf_core_cast(mount, struct vfsmount___mac);
	struct usher_mac_mount wanted = { .flags = flags };

	if (!asked || !read_file(&wanted.place, mounted->mnt_root->d_inode))
		return 0;
	return MAC_ASK_CALLER(sb_umount, asked, &wanted);
}

/* Hook: sb_remount, because options of a file system change there, by mount(2) and fsconfig(2). */
SEC("lsm/sb_remount")
int BPF_PROG(dispatch_sb_remount, struct super_block *system, void *options)
{
	__u64 asked = modules_at(MAC_POINT_sb_remount);
	const struct super_block___mac *mounted = bpf_core_cast(system, struct super_block___mac);
	struct usher_mac_mount wanted = {};

	if (!asked || !read_file(&wanted.place, mounted->s_root->d_inode))
		return 0;
	return MAC_ASK_CALLER(sb_remount, asked, &wanted);
}

/* Hook: move_mount, because move_mount(2) does not pass sb_mount. */
SEC("lsm/move_mount")
int BPF_PROG(dispatch_move_mount, const struct path *former, const struct path *place)
{
	__u64 asked = modules_at(MAC_POINT_move_mount);
	struct usher_mac_mount wanted = {};

	if (!asked || !read_file(&wanted.moved, inode_at(former)) ||
	    !read_file(&wanted.place, inode_at(place)))
		return 0;
	return MAC_ASK_CALLER(move_mount, asked, &wanted);
}

/* Hook: sb_statfs, because statfs(2) and its kind pass it. */
SEC("lsm/sb_statfs")
int BPF_PROG(dispatch_sb_statfs, struct dentry *entry)
{
	__u64 asked = modules_at(MAC_POINT_sb_statfs);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_of(entry)))
		return 0;
	return MAC_ASK_CALLER(sb_statfs, asked, &wanted);
}

/* Hook: path_chroot, because chroot(2) passes it. */
SEC("lsm/path_chroot")
int BPF_PROG(dispatch_path_chroot, const struct path *path)
{
	__u64 asked = modules_at(MAC_POINT_path_chroot);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_at(path)))
		return 0;
	return MAC_ASK_CALLER(path_chroot, asked, &wanted);
}

#endif
