/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about files. */
#ifndef USHER_MAC_FILES_H
#define USHER_MAC_FILES_H

#include "file_labels.h"

/* Modes of inode_permission that are kinds of access: MAY_EXEC to MAY_APPEND. */
#define ACCESS_KINDS 15

/* A bit of f_flags that no process can pass to open(2) and its kind. */
#define OPENED_TO_EXECUTE (1 << 5)

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

/*
 * Hook: inode_permission, because every look-up of a name and every opening passes it. It cannot
 * read a label. If a file's label is not known, modules with labels are not asked in three cases:
 * where file_open follows, which reads the label; where the kernel then reads the attribute with
 * the label; and at access(2). Everything else is refused then: truncate(2), connect(2) to the name
 * of a socket, attributes of the kind `user.`.
 */
SEC("lsm/inode_permission")
int BPF_PROG(dispatch_inode_permission, struct inode *inode, int mask)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_inode_permission, &caller);
	struct usher_mac_file_access wanted = { .access = mask & ACCESS_KINDS };
	struct usher_mac_subject subject;
	struct mac_labels labels;

	/* access(2) with F_OK. */
	if (!asked || !wanted.access || !read_own_file(&wanted.file, inode))
		return 0;
	asked = begin_file_labels(
	    &labels, asked, &caller, inode, wanted.file.device,
	    access_to_file(MAC_POINT_inode_permission, &wanted.file, wanted.access));
	if (!asked)
		return 0;
	read_subject(&subject);
	if (is_unknown(&labels) && (mask & (MAY_OPEN | MAY_ACCESS) ||
				    (wanted.access == USHER_MAC_READ && reads_attribute()))) {
		asked &= ~labels.slots;
		labels.slots = 0;
	} else if (refuses_unknown(&subject, &labels)) {
		return -EACCES;
	}
	return mac_ask_inode_permission(asked, &subject, &wanted, &labels);
}

/* Asks the modules that are in force now, because the caller may have slept. */
static __always_inline int ask_file_open(struct inode *inode,
					 const struct usher_mac_file_access *wanted)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_file_open, &caller);
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked)
		return 0;
	asked =
	    begin_file_labels(&labels, asked, &caller, inode, wanted->file.device,
			      access_to_file(MAC_POINT_file_open, &wanted->file, wanted->access));
	if (!asked)
		return 0;
	read_subject(&subject);
	if (refuses_unknown(&subject, &labels))
		return -EACCES;
	return mac_ask_file_open(asked, &subject, wanted, &labels);
}

/* Hook: file_open, because it sees the open file, whichever way it was found. It reads labels. */
SEC("lsm.s/file_open")
int BPF_PROG(dispatch_file_open, struct file *file)
{
	const struct file___mac *opened = (const struct file___mac *)file;
	struct usher_mac_file_access wanted = {};
	usher_mac_slots asked = modules_at(MAC_POINT_file_open);
	struct inode *inode = file->f_inode;
	int error;

	if (!(asked | labelled_of(USHER_MAC_ALL_SLOTS)) || !read_own_file(&wanted.file, inode))
		return 0;
	read_label(file, NULL, wanted.file.device);
	if (!asked)
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
	bpf_rcu_read_lock();
	error = ask_file_open(inode, &wanted);
	bpf_rcu_read_unlock();
	return mac_bounded(error);
}

/* Hook: inode_getattr, because stat(2) and its kind pass it. It cannot read a label. */
SEC("lsm/inode_getattr")
int BPF_PROG(dispatch_inode_getattr, const struct path *path)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_inode_getattr, &caller);
	struct usher_mac_subject subject;
	struct usher_mac_file wanted = {};
	struct mac_labels labels;
	int found;

	if (!asked || !(found = read_file(&wanted, inode_at(path))))
		return 0;
	if (found & KIND_IS_LAYERED)
		asked = begin_layer_labels(&labels, asked, &caller, path->dentry->d_inode, NULL);
	else
		asked =
		    begin_file_labels(&labels, asked, &caller, path->dentry->d_inode, wanted.device,
				      access_to_file(MAC_POINT_inode_getattr, &wanted, 0));
	if (!asked)
		return 0;
	read_subject(&subject);
	if (refuses_unknown(&subject, &labels))
		return -EACCES;
	return mac_ask_inode_getattr(asked, &subject, &wanted, &labels);
}

/* Hook: inode_create, because no file is there yet. */
SEC("lsm/inode_create")
int BPF_PROG(dispatch_inode_create, struct inode *directory, struct dentry *entry,
	     unsigned short mode)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_create, &caller);
	struct usher_mac_creation wanted = { .mode = mode };

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	return MAC_ASK_ABOUT_NAME(inode_create, asked, &caller, &wanted, directory);
}

/* Hook: inode_link, because a second name may lie where other rules are. Before it, path_link has
 * read the label. */
SEC("lsm/inode_link")
int BPF_PROG(dispatch_inode_link, struct dentry *former, struct inode *directory,
	     struct dentry *entry)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_link, &caller);
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked || !read_file(&wanted.file, inode_of(former)) ||
	    !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	if (read_labels(&labels, asked, &caller, &subject, former->d_inode, wanted.file.device,
			directory))
		return -EACCES;
	return mac_ask_inode_link(asked, &subject, &wanted, &labels);
}

#define DISPATCH_REMOVAL(hook)                                                                     \
	static __always_inline int ask_##hook(                                                     \
	    usher_mac_slots asked, const struct mac_asker *caller, struct inode *directory,        \
	    struct inode *inode, const struct usher_mac_naming *wanted)                            \
	{                                                                                          \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		if (read_labels(&labels, asked, caller, &subject, inode, wanted->file.device,      \
				directory))                                                        \
			return -EACCES;                                                            \
		return mac_ask_##hook(asked, &subject, wanted, &labels);                           \
	}                                                                                          \
                                                                                                   \
	SEC("lsm.s/" #hook)                                                                        \
	int BPF_PROG(dispatch_##hook, struct inode *directory, struct dentry *entry)               \
	{                                                                                          \
		struct mac_asker caller;                                                           \
		usher_mac_slots asked = modules_about_sleeper(MAC_POINT_##hook, &caller);          \
		struct usher_mac_naming wanted = {};                                               \
		int error;                                                                         \
                                                                                                   \
		if (!asked || !read_file(&wanted.file, inode_of(entry)) ||                         \
		    !read_file(&wanted.directory, directory))                                      \
			return 0;                                                                  \
		read_label(NULL, entry, wanted.file.device);                                       \
		bpf_rcu_read_lock();                                                               \
		error = ask_##hook(asked, &caller, directory, entry->d_inode, &wanted);            \
		bpf_rcu_read_unlock();                                                             \
		return mac_bounded(error);                                                         \
	}

/* Hook: inode_unlink, because it knows the file whose name is removed. It reads labels. */
DISPATCH_REMOVAL(inode_unlink)
/* Hook: inode_rmdir, because inode_unlink is not called for directories. It reads labels. */
DISPATCH_REMOVAL(inode_rmdir)

/* This and ask_inode_rename_to each read their request, so that only one is on the stack. */
static __always_inline int ask_inode_rename(usher_mac_slots asked, const struct mac_asker *caller,
					    struct inode *directory, struct inode *inode)
{
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!read_file(&wanted.file, inode) || !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	if (read_labels(&labels, asked, caller, &subject, inode, wanted.file.device, directory))
		return -EACCES;
	return mac_ask_inode_rename(asked, &subject, &wanted, &labels);
}

/* `inode` is NULL where nothing is replaced. */
static __always_inline int ask_inode_rename_to(usher_mac_slots asked,
					       const struct mac_asker *caller,
					       struct inode *directory, struct inode *inode)
{
	struct usher_mac_replacing wanted = {};
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!read_file(&wanted.directory, directory))
		return 0;
	wanted.replaces = read_file(&wanted.replaced, inode) != 0;
	read_subject(&subject);
	if (begin_labels(&labels, asked, caller)) {
		labels.unknown |=
		    read_file_label(&labels.directory, directory, wanted.directory.device);
		if (wanted.replaces)
			labels.unknown |=
			    read_file_label(&labels.object, inode, wanted.replaced.device);
		if (refuses_unknown(&subject, &labels))
			return -EACCES;
	}
	return mac_ask_inode_rename_to(asked, &subject, &wanted, &labels);
}

/*
 * Hook: inode_rename, because it knows the file that is replaced. The kernel calls it a second
 * time, the other way round, for an exchange. It reads labels.
 */
SEC("lsm.s/inode_rename")
int BPF_PROG(dispatch_inode_rename, struct inode *directory, struct dentry *entry,
	     struct inode *new_directory, struct dentry *new_entry)
{
	__u64 from = modules_at(MAC_POINT_inode_rename), to = modules_at(MAC_POINT_inode_rename_to),
	      asked;
	const struct inode *replaced = inode_of(new_entry);
	struct mac_asker caller;
	int error;

	asked = those_about_sleeper(from | to, &caller);
	from &= asked;
	to &= asked;
	if (!(from | to))
		return 0;
	read_label(NULL, entry, device_of(inode_of(entry)));
	if (replaced)
		read_label(NULL, new_entry, device_of(replaced));
	bpf_rcu_read_lock();
	/* Looks the caller up again, because there is no room to keep it meanwhile. */
	look_up_caller(from | to, &caller);
	error = ask_inode_rename(from, &caller, directory, entry->d_inode);
	error =
	    mac_both(error, ask_inode_rename_to(to, &caller, new_directory, new_entry->d_inode));
	bpf_rcu_read_unlock();
	return mac_bounded(error);
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

static __always_inline int ask_inode_setattr(usher_mac_slots asked, const struct mac_asker *caller,
					     struct inode *inode,
					     const struct usher_mac_attributes *wanted)
{
	struct usher_mac_subject subject;
	struct mac_labels labels;

	read_subject(&subject);
	if (read_labels(&labels, asked, caller, &subject, inode, wanted->file.device, NULL))
		return -EACCES;
	return mac_ask_inode_setattr(asked, &subject, wanted, &labels);
}

/* Hook: inode_setattr, because every way of changing attributes ends there. Its arguments are those
 * of kernel 6.5 and later. It reads labels. */
SEC("lsm.s/inode_setattr")
int BPF_PROG(dispatch_inode_setattr, struct mnt_idmap *map, struct dentry *entry,
	     struct iattr *change)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_sleeper(MAC_POINT_inode_setattr, &caller);
	struct usher_mac_attributes wanted = {};
	const struct iattr *asked_for;
	int error;

	if (!asked || !read_file(&wanted.file, inode_of(entry)))
		return 0;
	asked_for = bpf_core_cast(change, struct iattr);
	wanted.changes = changes(asked_for->ia_valid);
	wanted.uid = asked_for->ia_uid.val;
	wanted.gid = asked_for->ia_gid.val;
	wanted.mode = asked_for->ia_mode;
	read_label(NULL, entry, wanted.file.device);
	bpf_rcu_read_lock();
	error = ask_inode_setattr(asked, &caller, entry->d_inode, &wanted);
	bpf_rcu_read_unlock();
	return mac_bounded(error);
}

#endif
