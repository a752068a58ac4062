/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Labels of files that are reached through an overlay: those of the files in its layers. Most hooks
 * are asked about the overlay's own file, which has no label, and then about the layer's, which has
 * one. mmap_file, inode_getattr, file_ioctl, file_lock, file_receive and the hooks of executions
 * are asked about the overlay's only: the functions here find the layer's.
 *
 * An open file keeps the layer's file that its overlay has opened for it. That one is mapped, even
 * if the file has been copied up since. Without an open file the inode in the uppermost layer
 * counts, whose attributes stat(2) shows; a metacopy has its data in another inode. Commands, locks
 * and the receiving of an open file are about both: MAC_ASK_ABOUT_FILE.
 *
 * No hook has a pointer to the layer's file that may be used with storage of inodes. So the storage
 * is read by its address, as the kernel itself looks it up. Layouts are those of the running kernel
 * (BTF) but for structures of overlayfs, which may be loaded later than this program: tried on 6.18
 * and 7.3. An invalid address reads as zeros, and a storage counts only where it names the table.
 * Where anything is otherwise, the label is not known.
 */
#ifndef USHER_MAC_LAYERS_H
#define USHER_MAC_LAYERS_H

#include "events.h"
#include "labels.h"
#include "usher_numbers.h"

#include <linux/magic.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct inode___mac_layered {
	unsigned short i_mode;
	struct super_block *i_sb;
	void *i_security;
};

struct file___mac_layered {
	struct inode___mac_layered *f_inode;
	void *private_data;
};

struct bpf_local_storage_map___mac {
	unsigned short cache_idx;
};

struct bpf_local_storage_data___mac {
	struct bpf_local_storage_map___mac *smap;
	unsigned char data[0];
};

struct bpf_local_storage_elem___mac {
	struct hlist_node snode;
	struct bpf_local_storage___mac *local_storage;
	struct bpf_local_storage_data___mac sdata;
};

struct bpf_local_storage___mac {
	struct bpf_local_storage_data___mac *cache[16];
	struct hlist_head list;
};

#pragma clang attribute pop

/* Limit of overlays upon each other: FILESYSTEM_MAX_STACK_DEPTH. */
#define STACKED_OVERLAYS 2
/* Limit of tables, of all programs, that are searched for our storage of an inode. The kernel looks
 * in a cache first. */
#define MOST_STORAGES 16
/* Limit of the words of an inode that all LSMs keep. */
#define WORDS_OF_LSMS 128

/* Where the storage of inodes is. Found once. */
static struct {
	__u64 table; /* the address of `files`; 0: not found yet */
	__u64 offset; /* in what LSMs keep of each inode */
} files_storage;

/* A file of an overlay, by addresses. */
struct mac_layered {
	__u64 inode; /* of the overlay */
	__u64 file; /* the open one; 0: none */
	__u64 stored; /* an entry of the inode in `files`, where `files_storage` is to be found */
};

/* With a stack of its own. */
static __noinline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

/* Finds the table and the offset, by an entry that the kernel has found. */
static __always_inline void find_storage(const struct mac_layered *by)
{
	__u64 data = by->stored - bpf_core_field_offset(struct bpf_local_storage_data___mac, data);
	const struct bpf_local_storage_elem___mac *entry = bpf_core_cast(
	    (void *)(data - bpf_core_field_offset(struct bpf_local_storage_elem___mac, sdata)),
	    struct bpf_local_storage_elem___mac);
	__u64 storage = (__u64)entry->local_storage, table = (__u64)entry->sdata.smap;
	__u64 kept =
	    (__u64)bpf_core_cast((void *)by->inode, struct inode___mac_layered)->i_security;

	if (!storage || !table || !kept)
		return;
	for (__u32 i = 0; i < WORDS_OF_LSMS; i++) {
		if (word_at(kept + i * 8) != storage)
			continue;
		files_storage.offset = i * 8;
		/* The offset first: readers take the table as the sign that both are there. */
		asm volatile("" : : : "memory");
		*(volatile __u64 *)&files_storage.table = table;
		break;
	}
}

static __always_inline __u64 table_of(__u64 data)
{
	return (__u64)bpf_core_cast((void *)data, struct bpf_local_storage_data___mac)->smap;
}

/* The address of the label of an inode as `files` has it; 0: the inode has none. */
static __always_inline __u64 stored_at(__u64 inode)
{
	const struct inode___mac_layered *of =
	    bpf_core_cast((void *)inode, struct inode___mac_layered);
	__u64 table = *(volatile __u64 *)&files_storage.table, storage, data, entry;
	const struct bpf_local_storage___mac *all;
	__u16 place;

	if (!table || !of->i_security)
		return 0;
	storage = word_at((__u64)of->i_security + files_storage.offset);
	if (!storage)
		return 0;
	place = bpf_core_cast((void *)table, struct bpf_local_storage_map___mac)->cache_idx % 16;
	data = word_at(storage + bpf_core_field_offset(struct bpf_local_storage___mac, cache) +
		       place * 8);
	if (data && table_of(data) == table)
		goto found;
	all = bpf_core_cast((void *)storage, struct bpf_local_storage___mac);
	entry = (__u64)all->list.first;
	for (int i = 0; i < MOST_STORAGES && entry; i++) {
		data = entry - bpf_core_field_offset(struct bpf_local_storage_elem___mac, snode) +
		       bpf_core_field_offset(struct bpf_local_storage_elem___mac, sdata);
		if (table_of(data) == table)
			goto found;
		entry = (__u64)bpf_core_cast((void *)entry, struct hlist_node)->next;
	}
	return 0;
found:
	return data + bpf_core_field_offset(struct bpf_local_storage_data___mac, data);
}

/* The inode in the uppermost layer. In struct ovl_inode the inode is followed by its name in the
 * upper layer or NULL, and then by those in lower layers: their number, and for each a layer and a
 * name. */
static __always_inline __u64 layer_of_inode(__u64 inode)
{
	__u64 behind = inode + bpf_core_type_size(struct inode___mac_layered);
	__u64 entry = word_at(behind), lower;

	if (!entry) {
		lower = word_at(behind + 8);
		entry = lower ? word_at(lower + 16) : 0;
	}
	return (__u64)bpf_core_cast((void *)entry, struct dentry)->d_inode;
}

/* The inode of the layer's file, which is on no overlay itself; 0: it is not found. */
static __always_inline __u64 layer_of(__u64 inode, __u64 file)
{
	const struct inode___mac_layered *at;
	__u64 kept, magic;

	for (int i = 0; i <= STACKED_OVERLAYS; i++) {
		at = bpf_core_cast((void *)inode, struct inode___mac_layered);
		magic = at->i_sb->s_magic;
		/* Zeros: there is no inode, or it is not in use. */
		if (!magic)
			return 0;
		if (magic != OVERLAYFS_SUPER_MAGIC)
			return inode;
		kept = 0;
		if (file && (at->i_mode & S_IFMT) == S_IFREG)
			kept = (__u64)bpf_core_cast((void *)file, struct file___mac_layered)
				   ->private_data;
		/* A file that is only a name (O_PATH) keeps nothing. */
		if (!kept) {
			file = 0;
			inode = layer_of_inode(inode);
			continue;
		}
		/* The first member of struct ovl_file. */
		file = word_at(kept);
		inode = (__u64)bpf_core_cast((void *)file, struct file___mac_layered)->f_inode;
	}
	return 0;
}

/*
 * As read_file_label, of the layer's file. Global, so that the verifier goes through it once, and
 * so that it has a stack of its own.
 */
usher_mac_slots __attribute__((noinline))
mac_layer_label(struct usher_mac_label *label __arg_nonnull,
		const struct mac_layered *of __arg_nonnull)
{
	__u64 layer = layer_of(of->inode, of->file), place = 0, order;
	const struct usher_mac_in_force *now = first_of(&in_force);

	if (of->stored)
		find_storage(of);
	if (layer) {
		if (!is_multilabel_now(now,
				       bpf_core_cast((void *)layer, struct inode)->i_sb->s_dev)) {
			*label = no_label;
			return 0;
		}
		place = stored_at(layer);
	}
	if (!place || (__u32)word_at(place + __builtin_offsetof(struct usher_mac_file_label,
								state)) == USHER_MAC_FILE_COLD) {
		__builtin_memset(label, 0xff, sizeof(*label));
		return USHER_MAC_ALL_SLOTS;
	}
	/* The order is read first, as in read_file_label. */
	order = word_at(place + __builtin_offsetof(struct usher_mac_file_label, order));
	bpf_probe_read_kernel(
	    label, sizeof(*label),
	    (void *)(place + __builtin_offsetof(struct usher_mac_file_label, label)));
	return now && order == now->labelled.order ? 0 : mac_mark_younger(label, order);
}

/* As mac_layer_label, by a hook's own pointers. `file`: the open one, or NULL. */
static __always_inline usher_mac_slots read_layer_label(struct usher_mac_label *label,
							struct inode *inode,
							const struct file *file)
{
	struct mac_layered of = {
		.inode = (__u64)inode,
		.file = (__u64)file,
	};

	if (!*(volatile __u64 *)&files_storage.table)
		of.stored = (__u64)bpf_inode_storage_get(&files, inode, NULL,
							 BPF_LOCAL_STORAGE_GET_F_CREATE);
	return mac_layer_label(label, &of);
}

#endif
