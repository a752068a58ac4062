/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about files that are open, and memory. */
#ifndef USHER_MAC_OPEN_FILES_H
#define USHER_MAC_OPEN_FILES_H

#include "files.h"
#include "process_labels.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct vm_area_struct {
	struct file___mac *vm_file;
	unsigned long vm_flags;
};

#pragma clang attribute pop

/* The bits of vm_flags that are those of mmap(2), in the same order. */
#define PROTECTIONS 7

/* Hook: file_ioctl, because devices do by ioctl(2) what no other hook sees. */
SEC("lsm/file_ioctl")
int BPF_PROG(dispatch_file_ioctl, struct file *file, unsigned int command, unsigned long argument)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_file_ioctl, &caller);
	struct usher_mac_file_command wanted = { .command = command };
	struct inode *inode = file->f_inode;
	int found;

	if (!asked || !(found = read_own_file(&wanted.file, inode)))
		return 0;
	return MAC_ASK_ABOUT_FILE(file_ioctl, asked, &caller, &wanted, file, inode, &wanted.file,
				  found);
}

/* Hook: file_ioctl_compat, because the ioctl(2) of 32-bit programs passes no other. */
SEC("lsm/file_ioctl_compat")
int BPF_PROG(dispatch_file_ioctl_compat, struct file *file, unsigned int command,
	     unsigned long argument)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_file_ioctl_compat, &caller);
	struct usher_mac_file_command wanted = { .command = command };
	struct inode *inode = file->f_inode;
	int found;

	if (!asked || !(found = read_own_file(&wanted.file, inode)))
		return 0;
	return MAC_ASK_ABOUT_FILE(file_ioctl_compat, asked, &caller, &wanted, file, inode,
				  &wanted.file, found);
}

/* Hook: file_lock, because all kinds of locks pass it. */
SEC("lsm/file_lock")
int BPF_PROG(dispatch_file_lock, struct file *file, unsigned int command)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_file_lock, &caller);
	struct usher_mac_file_command wanted = { .command = command };
	struct inode *inode = file->f_inode;
	int found;

	if (!asked || !(found = read_own_file(&wanted.file, inode)))
		return 0;
	return MAC_ASK_ABOUT_FILE(file_lock, asked, &caller, &wanted, file, inode, &wanted.file,
				  found);
}

static __always_inline int ask_file_receive(struct file *file)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_file_receive, &caller);
	const struct file___mac *opened = (const struct file___mac *)file;
	struct usher_mac_file_access wanted = {};
	struct inode *inode = file->f_inode;
	int found;

	if (!asked || !(found = read_own_file(&wanted.file, inode)))
		return 0;
	if (opened->f_mode & FMODE_READ)
		wanted.access |= USHER_MAC_READ;
	if (opened->f_mode & FMODE_WRITE)
		wanted.access |= USHER_MAC_WRITE;
	return MAC_ASK_ABOUT_FILE(file_receive, asked, &caller, &wanted, file, inode, &wanted.file,
				  found);
}

/* Hook: file_receive, because a file that another process has opened comes that way, and a ring
 * that another process has made, by pidfd_getfd(2). */
SEC("lsm/file_receive")
int BPF_PROG(dispatch_file_receive, struct file *file)
{
	/* First, so that modules are asked about the label that the process has with the ring. */
	if (labelled_of(USHER_MAC_ALL_SLOTS) && is_ring_file((__u64)file) && mac_note_ring())
		return -ENOMEM;
	return mac_bounded(ask_file_receive(file));
}

/* Hook: file_permission, because each read and write of an open file passes it, whatever the call.
 */
SEC("lsm/file_permission")
int BPF_PROG(dispatch_file_permission, struct file *file, int mask)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_near_caller(MAC_POINT_file_permission, &caller);
	struct usher_mac_file_access wanted = { .access = mask & ACCESS_KINDS };
	struct inode *inode = file->f_inode;
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked || !wanted.access || !read_own_file(&wanted.file, inode))
		return 0;
	asked = begin_open_labels(
	    &labels, asked, &caller, file, inode, &wanted.file,
	    access_to_file(MAC_POINT_file_permission, &wanted.file, wanted.access));
	if (!asked)
		return 0;
	read_subject(&subject);
	if (refuses_unknown(&subject, &labels))
		return -EACCES;
	return mac_ask_file_permission(asked, &subject, &wanted, &labels);
}

/* Hook: file_mprotect, because it makes memory executable after mmap_file. */
SEC("lsm/file_mprotect")
int BPF_PROG(dispatch_file_mprotect, struct vm_area_struct *area, unsigned long asked_protection,
	     unsigned long protection)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_file_mprotect, &caller);
	const struct vm_area_struct *changed = bpf_core_cast(area, struct vm_area_struct);
	struct usher_mac_protection wanted = { .protection = protection };

	if (!asked)
		return 0;
	wanted.former = changed->vm_flags & PROTECTIONS;
	/* Memory without a file stays zero. */
	read_file(&wanted.file, changed->vm_file->f_inode);
	return MAC_ASK_CALLER(file_mprotect, asked, &caller, &wanted);
}

#endif
