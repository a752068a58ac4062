/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks that make and remove names, and follow links. */
#ifndef USHER_MAC_NAMES_H
#define USHER_MAC_NAMES_H

#include "accesses.h"

/* Types of files, in their mode. */
#define TYPE_LINK 0120000
#define TYPE_DIRECTORY 0040000

/* Hook: inode_mkdir, because inode_create is about regular files only. */
SEC("lsm/inode_mkdir")
int BPF_PROG(dispatch_inode_mkdir, struct inode *directory, struct dentry *entry,
	     unsigned short mode)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_mkdir, &caller);
	struct usher_mac_creation wanted = { .mode = mode | TYPE_DIRECTORY };

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	return MAC_ASK_ABOUT_NAME(inode_mkdir, asked, &caller, &wanted, directory);
}

/* Hook: inode_symlink, because a link leads where its maker may not write. */
SEC("lsm/inode_symlink")
int BPF_PROG(dispatch_inode_symlink, struct inode *directory, struct dentry *entry,
	     const char *target)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_symlink, &caller);
	struct usher_mac_creation wanted = { .mode = TYPE_LINK | 0777 };

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	return MAC_ASK_ABOUT_NAME(inode_symlink, asked, &caller, &wanted, directory);
}

/* Hook: inode_mknod, because devices, pipes and names of sockets are made there. */
SEC("lsm/inode_mknod")
int BPF_PROG(dispatch_inode_mknod, struct inode *directory, struct dentry *entry,
	     unsigned short mode, unsigned int device)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_mknod, &caller);
	struct usher_mac_node wanted = { .mode = mode, .device = device };

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	return MAC_ASK_ABOUT_NAME(inode_mknod, asked, &caller, &wanted, directory);
}

/* Hook: inode_readlink, because readlink(2) passes it. */
SEC("lsm/inode_readlink")
int BPF_PROG(dispatch_inode_readlink, struct dentry *entry)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_readlink, &caller);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_of(entry)))
		return 0;
	return MAC_ASK_CALLER(inode_readlink, asked, &caller, &wanted);
}

/* Hook: inode_follow_link, because a look-up through a link does not read it by readlink(2). */
SEC("lsm/inode_follow_link")
int BPF_PROG(dispatch_inode_follow_link, struct dentry *entry, struct inode *inode, int is_fast)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_follow_link, &caller);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode))
		return 0;
	return MAC_ASK_CALLER(inode_follow_link, asked, &caller, &wanted);
}

#endif
