/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about extended attributes. */
#ifndef USHER_MAC_ATTRIBUTES_H
#define USHER_MAC_ATTRIBUTES_H

#include "file_labels.h"

struct mnt_idmap;

/* Reads a file and the name of an attribute. Returns 0 if no module is asked about it. */
static __always_inline int read_attribute(struct usher_mac_attribute *wanted, struct dentry *entry,
					  const char *name)
{
	if (!read_file(&wanted->file, inode_of(entry)))
		return 0;
	/* A longer name is cut off. */
	bpf_probe_read_kernel_str(wanted->name, sizeof(wanted->name), name);
	return 1;
}

/* Hook: inode_getxattr, because getxattr(2) and its kind pass it. */
SEC("lsm/inode_getxattr")
int BPF_PROG(dispatch_inode_getxattr, struct dentry *entry, const char *name)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_getxattr, &caller);
	struct usher_mac_attribute wanted = {};

	if (!asked || !read_attribute(&wanted, entry, name))
		return 0;
	return MAC_ASK_CALLER(inode_getxattr, asked, &caller, &wanted);
}

/* Hook: inode_setxattr, because setxattr(2) and its kind pass it. Access control lists have hooks
 * of their own. About the attribute of labels, modules are asked as about any other, and then as
 * about a label. */
SEC("lsm.s/inode_setxattr")
int BPF_PROG(dispatch_inode_setxattr, struct mnt_idmap *map, struct dentry *entry, const char *name,
	     const void *value, __u64 size, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_sleeper(MAC_POINT_inode_setxattr, &caller);
	struct usher_mac_attribute wanted = { .size = size, .flags = flags };
	int error = 0;

	if (asked && read_attribute(&wanted, entry, name)) {
		bpf_rcu_read_lock();
		error = MAC_ASK_CALLER(inode_setxattr, asked, &caller, &wanted);
		bpf_rcu_read_unlock();
	}
	return mac_bounded(mac_both(error, set_file_label(entry, name, value, size)));
}

/* Hook: inode_removexattr, because removexattr(2) and its kind pass it. */
SEC("lsm.s/inode_removexattr")
int BPF_PROG(dispatch_inode_removexattr, struct mnt_idmap *map, struct dentry *entry,
	     const char *name)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_sleeper(MAC_POINT_inode_removexattr, &caller);
	struct usher_mac_attribute wanted = {};
	int error = 0;

	if (asked && read_attribute(&wanted, entry, name)) {
		bpf_rcu_read_lock();
		error = MAC_ASK_CALLER(inode_removexattr, asked, &caller, &wanted);
		bpf_rcu_read_unlock();
	}
	return mac_bounded(mac_both(error, remove_file_label(entry, name)));
}

#define DISPATCH_ACL(hook)                                                                         \
	SEC("lsm/" #hook)                                                                          \
	int BPF_PROG(dispatch_##hook, struct mnt_idmap *map, struct dentry *entry,                 \
		     const char *name)                                                             \
	{                                                                                          \
		struct mac_asker caller;                                                           \
		usher_mac_slots asked = modules_about_caller(MAC_POINT_##hook, &caller);           \
		struct usher_mac_attribute wanted = {};                                            \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		if (!asked || !read_attribute(&wanted, entry, name))                               \
			return 0;                                                                  \
		read_subject(&subject);                                                            \
		if (read_labels(&labels, asked, &caller, &subject, entry->d_inode,                 \
				wanted.file.device, NULL))                                         \
			return -EACCES;                                                            \
		return mac_ask_##hook(asked, &subject, &wanted, &labels);                          \
	}

/* Hooks: these, because access control lists pass no other one. The hooks cannot read a label. */
DISPATCH_ACL(inode_set_acl)
DISPATCH_ACL(inode_remove_acl)

/* Hook: inode_listxattr, because listxattr(2) and its kind pass it. */
SEC("lsm/inode_listxattr")
int BPF_PROG(dispatch_inode_listxattr, struct dentry *entry)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_inode_listxattr, &caller);
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, inode_of(entry)))
		return 0;
	return MAC_ASK_CALLER(inode_listxattr, asked, &caller, &wanted);
}

#endif
