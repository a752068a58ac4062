/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about files. */
#ifndef USHER_MAC_FILES_H
#define USHER_MAC_FILES_H

#include "objects.h"

/* Modes of inode_permission that are kinds of access: MAY_EXEC to MAY_APPEND. */
#define ACCESS_KINDS 15

/* Modes of an open file. */
#define FMODE_READ 1
#define FMODE_WRITE 2
/* Of f_flags. No process can pass the second one to open(2) and its kind. */
#define O_APPEND 02000
#define OPENED_TO_EXECUTE (1 << 5)

/* Bits of struct iattr. */
#define ATTR_MODE (1 << 0)
#define ATTR_UID (1 << 1)
#define ATTR_GID (1 << 2)
#define ATTR_SIZE (1 << 3)
#define ATTR_ATIME_SET (1 << 7)
#define ATTR_MTIME_SET (1 << 8)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct file___mac {
	struct inode *f_inode;
	unsigned int f_mode;
	unsigned int f_flags;
};

struct iattr {
	unsigned int ia_valid;
	unsigned short ia_mode;
	kuid_t ia_uid;
	kgid_t ia_gid;
};

#pragma clang attribute pop

/* Hook: inode_permission, because every look-up of a name and every opening passes it. */
SEC("lsm/inode_permission")
int BPF_PROG(dispatch_inode_permission, struct inode *inode, int mask)
{
	__u64 asked = modules_at(MAC_POINT_inode_permission);
	struct usher_mac_file_access wanted = { .access = mask & ACCESS_KINDS };
	struct usher_mac_subject subject;

	/* access(2) with F_OK. */
	if (!asked || !wanted.access || !read_file(&wanted.file, inode))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_permission(asked, &subject, &wanted);
}

/* Hook: file_open, because it sees the open file, whichever way it was found. */
SEC("lsm/file_open")
int BPF_PROG(dispatch_file_open, struct file *file)
{
	__u64 asked = modules_at(MAC_POINT_file_open);
	const struct file___mac *opened = (const void *)file;
	struct usher_mac_file_access wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, opened->f_inode))
		return 0;
	/* The kernel reads a program that a process may execute but not read. */
	if (opened->f_flags & OPENED_TO_EXECUTE)
		wanted.access |= USHER_MAC_EXECUTE;
	else if (opened->f_mode & FMODE_READ)
		wanted.access |= USHER_MAC_READ;
	if (opened->f_mode & FMODE_WRITE)
		wanted.access |= USHER_MAC_WRITE;
	if (opened->f_flags & O_APPEND)
		wanted.access |= USHER_MAC_APPEND;
	read_subject(&subject);
	return mac_ask_file_open(asked, &subject, &wanted);
}

/* Hook: inode_getattr, because stat(2) and its kind pass it. */
SEC("lsm/inode_getattr")
int BPF_PROG(dispatch_inode_getattr, const struct path *path)
{
	__u64 asked = modules_at(MAC_POINT_inode_getattr);
	struct usher_mac_subject subject;
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, BPF_CORE_READ(path, dentry, d_inode)))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_getattr(asked, &subject, &wanted);
}

/* Hook: inode_create, because no file is there yet. */
SEC("lsm/inode_create")
int BPF_PROG(dispatch_inode_create, struct inode *directory, struct dentry *entry,
	     unsigned short mode)
{
	__u64 asked = modules_at(MAC_POINT_inode_create);
	struct usher_mac_creation wanted = { .mode = mode };
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_create(asked, &subject, &wanted);
}

/* Hook: inode_link, because a second name may lie where other rules are. */
SEC("lsm/inode_link")
int BPF_PROG(dispatch_inode_link, struct dentry *former, struct inode *directory,
	     struct dentry *entry)
{
	__u64 asked = modules_at(MAC_POINT_inode_link);
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(former, d_inode)) ||
	    !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_link(asked, &subject, &wanted);
}

/* Hook: inode_unlink, because it knows the file whose name is removed. */
SEC("lsm/inode_unlink")
int BPF_PROG(dispatch_inode_unlink, struct inode *directory, struct dentry *entry)
{
	__u64 asked = modules_at(MAC_POINT_inode_unlink);
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(entry, d_inode)) ||
	    !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_unlink(asked, &subject, &wanted);
}

/*
 * Hook: inode_rename, because it knows the file that is replaced. The kernel calls it a second
 * time, the other way round, for an exchange.
 */
SEC("lsm/inode_rename")
int BPF_PROG(dispatch_inode_rename, struct inode *directory, struct dentry *entry,
	     struct inode *new_directory, struct dentry *new_entry)
{
	__u64 from = modules_at(MAC_POINT_inode_rename), to = modules_at(MAC_POINT_inode_rename_to);
	struct usher_mac_naming former = {};
	struct usher_mac_replacing wanted = {};
	struct usher_mac_subject subject;
	int error;

	if (!(from | to) || !read_file(&former.file, BPF_CORE_READ(entry, d_inode)) ||
	    !read_file(&former.directory, directory) ||
	    !read_file(&wanted.directory, new_directory))
		return 0;
	wanted.replaces = read_file(&wanted.replaced, BPF_CORE_READ(new_entry, d_inode));
	read_subject(&subject);
	error = mac_ask_inode_rename(from, &subject, &former);
	return mac_bounded(mac_compose(error, mac_ask_inode_rename_to(to, &subject, &wanted)));
}

/* The changes, from the kernel's bits. */
static __always_inline __u32 changes(__u32 valid)
{
	__u32 found = 0;

	if (valid & ATTR_MODE)
		found |= USHER_MAC_CHANGES_MODE;
	if (valid & ATTR_UID)
		found |= USHER_MAC_CHANGES_UID;
	if (valid & ATTR_GID)
		found |= USHER_MAC_CHANGES_GID;
	if (valid & ATTR_SIZE)
		found |= USHER_MAC_CHANGES_SIZE;
	if (valid & (ATTR_ATIME_SET | ATTR_MTIME_SET))
		found |= USHER_MAC_CHANGES_TIMES;
	return found;
}

/* All attributes of this hook but the file: its first argument has changed between kernels. */
static __always_inline int dispatch_attributes(struct dentry *entry, struct iattr *change)
{
	__u64 asked = modules_at(MAC_POINT_inode_setattr);
	struct usher_mac_attributes wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(entry, d_inode)))
		return 0;
	wanted.changes = changes(BPF_CORE_READ(change, ia_valid));
	wanted.uid = BPF_CORE_READ(change, ia_uid.val);
	wanted.gid = BPF_CORE_READ(change, ia_gid.val);
	wanted.mode = BPF_CORE_READ(change, ia_mode);
	read_subject(&subject);
	return mac_ask_inode_setattr(asked, &subject, &wanted);
}

struct mnt_idmap;

/* Hook: inode_setattr, because every way of changing attributes ends there. Its arguments are those
 * of kernel 6.5 and later. */
SEC("lsm/inode_setattr")
int BPF_PROG(dispatch_inode_setattr, struct mnt_idmap *map, struct dentry *entry,
	     struct iattr *change)
{
	return dispatch_attributes(entry, change);
}

#endif
