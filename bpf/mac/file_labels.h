/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The life of labels of files on multilabel file systems. The attribute security.bpf.mac has the
 * text; the storage of the inode has the numbers of the elements, for programs that cannot read the
 * attribute. A new file has its label in the storage at once, and the labeller writes the
 * attribute, because no hook at a file's creation can write it (tried on 6.18).
 *
 * The kernel reads the attribute for a program with the rights of the calling process: the label of
 * a file that it may not read stays unknown, and the access is refused.
 */
#ifndef USHER_MAC_FILE_LABELS_H
#define USHER_MAC_FILE_LABELS_H

#include "label_text.h"

extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern int bpf_get_file_xattr(struct file *file, const char *name, struct bpf_dynptr *value) __ksym;
extern int bpf_get_dentry_xattr(struct dentry *entry, const char *name,
				struct bpf_dynptr *value) __ksym;

struct xattr;

/* those_about_caller in a program that may sleep. */
static __always_inline usher_mac_slots those_about_sleeper(usher_mac_slots asked,
							   struct mac_asker *caller)
{
	bpf_rcu_read_lock();
	asked = those_about_caller(asked, caller);
	bpf_rcu_read_unlock();
	return asked;
}

static __always_inline usher_mac_slots modules_about_sleeper(__u32 point, struct mac_asker *caller)
{
	return those_about_sleeper(modules_at(point), caller);
}

/* The attribute of the label. */
const char label_attribute[] = "security.bpf.mac";

/* Stores a label that was read, unless another one was set meanwhile. */
static __always_inline void store_label(struct usher_mac_file_label *stored,
					const struct usher_mac_label *label, __u64 order,
					__u32 state, __u32 changes)
{
	bpf_spin_lock(&stored->lock);
	if (stored->changes == changes) {
		stored->label = *label;
		stored->order = order;
		stored->state = state;
	}
	bpf_spin_unlock(&stored->lock);
}

/* Stores what was read: `length` is the kernel's answer, a length or an error. Returns as
 * read_label. */
static __always_inline int end_attribute(struct usher_mac_file_label *stored,
					 struct mac_scratch *now, int length, __u32 changes)
{
	const struct usher_mac_labelled *with_labels = labelled_now();
	usher_mac_slots slots;
	__u64 order;

	if (!with_labels)
		return 0;
	/* The order first, because user space writes the slots first. */
	order = *(volatile __u64 *)&with_labels->order;
	slots = with_labels->slots;
	if (length == -ENODATA && stored->state == USHER_MAC_FILE_NEW) {
		/* The labeller has not written the attribute yet; a module was loaded since. */
		now->label = stored->label;
		store_label(stored, &now->label, order, USHER_MAC_FILE_NEW, changes);
		return 0;
	}
	if (length <= 0 || length > USHER_MAC_TEXT_SIZE)
		return length < 0 ? length : -EINVAL;
	begin_text(now, length);
	if (mac_read_attribute(now, slots))
		return -EINVAL;
	store_label(stored, &now->label, order, USHER_MAC_FILE_READ, changes);
	return 0;
}

/* Reads the label of an open file, or of the file with a name (the other one is NULL), if it is not
 * known yet. Returns 0, or the error of reading; -ENODATA: the file has no attribute. */
static __always_inline int read_label(struct file *file, struct dentry *entry, __u32 device)
{
	struct usher_mac_file_label *stored;
	struct mac_scratch *now;
	struct bpf_dynptr value;
	__u32 changes;
	int length;

	if (!labelled_of(USHER_MAC_ALL_SLOTS) || !is_multilabel(device))
		return 0;
	stored = bpf_inode_storage_get(&files, file ? file->f_inode : entry->d_inode, NULL,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!stored || is_known(stored))
		return 0;
	now = take_scratch();
	if (!now)
		return 0;
	changes = stored->changes;
	bpf_dynptr_from_mem(now->text, sizeof(now->text), 0, &value);
	now->reads_attribute = 1;
	length = file ? bpf_get_file_xattr(file, label_attribute, &value)
		      : bpf_get_dentry_xattr(entry, label_attribute, &value);
	now->reads_attribute = 0;
	return end_attribute(stored, now, length, changes);
}

/* Hook: path_link, because inode_link cannot sleep, and comes afterwards. */
SEC("lsm.s/path_link")
int BPF_PROG(dispatch_path_link, struct dentry *former, const struct path *directory,
	     struct dentry *entry)
{
	struct usher_mac_file file = {};

	if (labelled_of(USHER_MAC_ALL_SLOTS) && read_file(&file, inode_of(former)))
		read_label(NULL, former, file.device);
	return 0;
}

/* Whether this is the name of the attribute with the label. */
static __always_inline int is_label(const char *name)
{
	char found[sizeof(label_attribute)] = {};
	__u32 differences = 0;

	if (bpf_probe_read_kernel_str(found, sizeof(found), name) != sizeof(found))
		return 0;
	for (__u32 i = 0; i < sizeof(found); i++)
		differences |= found[i] ^ label_attribute[i];
	/* A longer name is cut off. */
	return !differences && !bpf_probe_read_kernel(found, 1, name + sizeof(found) - 1) &&
	       !found[0];
}

/* Modules may refuse that an element is left out of the new label. */
static long leave_out_element(__u64 slot, struct label_reading *reading)
{
	struct mac_scratch *now = reading->scratch;

	if (slot >= USHER_MAC_MODULES)
		return 1;
	if (!(reading->slots >> slot & 1) || now->named >> slot & 1 ||
	    element_at(*place_of(&now->former, slot), slot) == &nothing)
		return 0;
	reading->error = ask_about_file(slot, reading, &nothing);
	return reading->error != 0;
}

static __always_inline int ask_about_label(struct mac_scratch *now, struct inode *inode,
					   const struct usher_mac_file *file, int found)
{
	struct label_reading reading = {
		.scratch = now,
		.slots = labelled_of(USHER_MAC_ALL_SLOTS),
		.file = file,
	};

	read_own_label(&now->own);
	/* If the former label cannot be read, or is no label, modules see it as unknown. */
	if (read_file_label(&now->former, inode, file->device) && found == -ENODATA)
		now->former = no_label;
	now->label = no_label;
	read_subject(&now->subject);
	if (READ_TEXT(reading, read_file_element))
		return reading.error;
	bpf_loop(USHER_MAC_MODULES, leave_out_element, &reading, 0);
	return reading.error;
}

/*
 * For inode_setxattr, which each setting of an attribute passes. All modules whose elements change
 * must permit it. The file keeps its former label until inode_post_setxattr.
 */
static __always_inline int set_file_label(struct dentry *entry, const char *name, const void *value,
					  __u64 size)
{
	struct usher_mac_file file = {};
	struct mac_scratch *now;
	int error, found;

	if (!labelled_of(USHER_MAC_ALL_SLOTS) || !is_label(name) ||
	    !read_file(&file, inode_of(entry)) || !is_multilabel(file.device))
		return 0;
	found = read_label(NULL, entry, file.device);
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	error = copy_text(now, value, size);
	if (!error) {
		bpf_rcu_read_lock();
		error = ask_about_label(now, entry->d_inode, &file, found);
		bpf_rcu_read_unlock();
	}
	return mac_bounded(error);
}

/* Hook: inode_post_setxattr, because the attribute is set. The kernel holds the inode's lock, as at
 * inode_setxattr. */
SEC("lsm.s/inode_post_setxattr")
int BPF_PROG(dispatch_inode_post_setxattr, struct dentry *entry, const char *name,
	     const void *value, __u64 size, int flags)
{
	const struct usher_mac_labelled *with_labels = labelled_now();
	struct usher_mac_file_label *stored;
	struct usher_mac_file file = {};
	struct mac_scratch *now;
	usher_mac_slots slots;
	__u64 order;
	int is_read;

	if (!with_labels || !with_labels->slots || !is_label(name) ||
	    !read_file(&file, inode_of(entry)) || !is_multilabel(file.device))
		return 0;
	stored =
	    bpf_inode_storage_get(&files, entry->d_inode, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	/* The file has no stored label, and is read when it is next needed. */
	if (!stored)
		return 0;
	order = *(volatile __u64 *)&with_labels->order;
	slots = with_labels->slots;
	now = take_scratch();
	is_read = now && !copy_text(now, value, size) && !mac_read_attribute(now, slots);
	bpf_spin_lock(&stored->lock);
	if (is_read) {
		stored->label = now->label;
		stored->order = order;
	}
	stored->state = is_read ? USHER_MAC_FILE_READ : USHER_MAC_FILE_COLD;
	stored->changes++;
	bpf_spin_unlock(&stored->lock);
	return 0;
}

/* Whether a label has an element of one of these modules. Global, so that the verifier goes through
 * it once, and not with each label. */
__attribute__((noinline)) int mac_has_any(const struct usher_mac_label *label __arg_nonnull,
					  usher_mac_slots slots)
{
	int found = 0;

#pragma unroll
	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++)
		found |= (slots >> slot & 1) && label->elements[slot];
	return found;
}

/* For inode_removexattr. As on FreeBSD, a label that a module in force has, or that cannot be read,
 * is not removed. Another one can be set, about which modules are asked. */
static __always_inline int remove_file_label(struct dentry *entry, const char *name)
{
	usher_mac_slots slots = labelled_of(USHER_MAC_ALL_SLOTS);
	struct usher_mac_label label;
	struct usher_mac_file file = {};

	if (!slots || !is_label(name) || !read_file(&file, inode_of(entry)) ||
	    !is_multilabel(file.device))
		return 0;
	if (read_label(NULL, entry, file.device) == -ENODATA)
		return 0;
	read_file_label(&label, entry->d_inode, file.device);
	return mac_has_any(&label, slots) ? -EPERM : 0;
}

struct new_file_reading {
	struct mac_scratch *scratch;
	const struct usher_mac_creation *wanted;
	struct usher_mac_label *directory;
	usher_mac_slots asked;
	int error;
};

/* Decides the element of a new file for the module in a slot: the process's, if the module does not
 * decide. */
static __always_inline int decide_file(__u32 slot, const struct new_file_reading *reading)
{
	const struct usher_mac_element *own, *directory;
	struct mac_scratch *now = reading->scratch;
	struct usher_mac_module *module;
	long number;
	int error;

	module = bpf_map_lookup_elem(&modules, &slot);
	if (!module)
		return -EACCES;
	own = element_at(*place_of(&now->own, slot), slot);
	directory = element_at(*place_of(reading->directory, slot), slot);
	__builtin_memset(&now->wanted, 0, sizeof(now->wanted));
	now->wanted.element = *own;
	error = mac_ask_new_file(slot, &now->subject, reading->wanted, own, directory,
				 &now->wanted.element);
	if (error)
		return error;
	number = number_decided(now, module, slot);
	if (number < 0)
		return number;
	*place_of(&now->label, slot) = number;
	return 0;
}

static long decide_file_slot(__u64 slot, struct new_file_reading *reading)
{
	if (slot >= USHER_MAC_MODULES)
		return 1;
	if (reading->asked >> slot & 1)
		reading->error = decide_file(slot, reading);
	return reading->error != 0;
}

static __always_inline int label_new_file(struct inode *inode, struct inode *directory,
					  struct mac_scratch *now)
{
	const struct usher_mac_labelled *with_labels = labelled_now();
	struct new_file_reading reading = { .scratch = now };
	struct usher_mac_creation wanted = {};
	struct usher_mac_file_label *stored;
	struct mac_labels labels = {};
	__u64 order;

	if (!with_labels || !read_file(&wanted.directory, directory))
		return 0;
	order = *(volatile __u64 *)&with_labels->order;
	wanted.mode = bpf_core_cast(inode, struct inode___mac)->i_mode;
	stored = bpf_inode_storage_get(&files, inode, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!stored)
		return -ENOMEM;
	read_subject(&now->subject);
	read_own_label(&now->own);
	labels.slots = asked_about(with_labels->slots, &now->own);
	labels.unknown = read_file_label(&labels.directory, directory, wanted.directory.device);
	if (refuses_unknown(&now->subject, &labels))
		return -EACCES;
	now->label = now->own;
	reading.wanted = &wanted;
	reading.directory = &labels.directory;
	reading.asked = modules_at(MAC_POINT_new_file) & with_labels->slots;
	bpf_loop(USHER_MAC_MODULES, decide_file_slot, &reading, 0);
	if (reading.error)
		return reading.error;
	store_label(stored, &now->label, order, USHER_MAC_FILE_NEW, 0);
	return 0;
}

/* Hook: inode_init_security, because no process can open the file yet. The kernel calls it where an
 * LSM or EVM may write an attribute. */
SEC("lsm/inode_init_security")
int BPF_PROG(dispatch_inode_init_security, struct inode *inode, struct inode *directory,
	     const struct qstr *name, struct xattr *attributes, int *count)
{
	struct mac_scratch *now;
	__u32 device = bpf_core_cast(inode, struct inode)->i_sb->s_dev;
	int error;

	if (!labelled_of(USHER_MAC_ALL_SLOTS) || !is_multilabel(device))
		return 0;
	now = take_scratch();
	if (!now)
		return -ENOMEM;
	error = mac_bounded(label_new_file(inode, directory, now));
	/* The kernel takes this error for "has no attribute", and makes the file. */
	return error == -EOPNOTSUPP ? -EACCES : error;
}

#endif
