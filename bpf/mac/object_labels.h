/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The life of labels of objects that end with their last holder: sockets, pipes, memory files and
 * message queues of POSIX, System V IPC, and mounted file systems. Each keeps the label that its
 * maker had when it was made.
 *
 * An accepted connection has the label of the socket that listened: TCP by the copy of its storage,
 * UNIX streams by socket_calls.h. Accepted connections of other families have no label.
 */
#ifndef USHER_MAC_OBJECT_LABELS_H
#define USHER_MAC_OBJECT_LABELS_H

#include "accesses.h"

/* Gives a socket this label. */
static __always_inline int label_socket(struct sock *socket, struct usher_mac_label *label)
{
	if (bpf_sk_storage_get(&sockets, socket, label, BPF_LOCAL_STORAGE_GET_F_CREATE))
		return 0;
	return -ENOMEM;
}

/* Hook: socket_post_create, because the socket is there, and nobody has it yet. Sockets of the
 * kernel have no label. */
SEC("lsm/socket_post_create")
int BPF_PROG(dispatch_socket_post_create, struct socket *socket, int family, int kind, int protocol,
	     int is_kernels)
{
	struct usher_mac_label label;
	struct sock *made;

	if (is_kernels || !labelled_of(USHER_MAC_ALL_SLOTS))
		return 0;
	made = socket->sk;
	read_own_label(&label);
	if (!made || are_equal(&label, &no_label))
		return 0;
	return label_socket(made, &label);
}

/* Hook: mptcp_add_subflow, because the kernel makes the TCP sockets of MPTCP itself, and a client
 * that speaks TCP gets a copy of one. */
SEC("lsm/mptcp_add_subflow")
int BPF_PROG(dispatch_mptcp_add_subflow, struct sock *socket, struct sock *subflow)
{
	struct usher_mac_label label;

	if (!labelled_of(USHER_MAC_ALL_SLOTS))
		return 0;
	read_socket_label(&label, socket);
	return are_equal(&label, &no_label) ? 0 : label_socket(subflow, &label);
}

/* Whether a file ends with its last holder, and has no attributes. */
static __always_inline int holds(const struct inode *inode)
{
	const struct inode *made = bpf_core_cast(inode, struct inode);
	const struct super_block *system = made->i_sb;
	unsigned long magic = system->s_magic;

	/* A directory is the root of a whole file system. */
	if ((made->i_mode & S_IFMT) == S_IFDIR)
		return 0;
	if (magic == TMPFS_MAGIC || magic == HUGETLBFS_MAGIC)
		return system->s_flags & SB_KERNMOUNT;
	return magic == PIPEFS_MAGIC || magic == MQUEUE_MAGIC || magic == SECRETMEM_MAGIC;
}

/*
 * Hook: d_instantiate, because pipes, message queues and memory files pass no other one with an
 * inode. It cannot refuse: without room for the object's label, the process is killed.
 */
SEC("lsm/d_instantiate")
int BPF_PROG(dispatch_d_instantiate, struct dentry *entry, struct inode *inode)
{
	struct usher_mac_file_label *stored;
	struct usher_mac_label label;

	if (!labelled_of(USHER_MAC_ALL_SLOTS) || !holds(inode))
		return 0;
	read_own_label(&label);
	if (are_equal(&label, &no_label))
		return 0;
	stored = bpf_inode_storage_get(&files, inode, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!stored) {
		bpf_send_signal(SIGKILL);
		return 0;
	}
	bpf_spin_lock(&stored->lock);
	stored->label = label;
	stored->state = USHER_MAC_FILE_HELD;
	bpf_spin_unlock(&stored->lock);
	return 0;
}

/* Gives a new object the label of its process, in a table by addresses. */
static __always_inline int label_at(void *table, const void *object)
{
	__u64 key = (__u64)object;
	struct usher_mac_label label;

	if (!labelled_of(USHER_MAC_ALL_SLOTS))
		return 0;
	read_own_label(&label);
	if (!are_equal(&label, &no_label))
		return bpf_map_update_elem(table, &key, &label, BPF_ANY) ? -ENOSPC : 0;
	/* The end of a former object at this address may not have been noted. */
	bpf_map_delete_elem(table, &key);
	return 0;
}

/* Forgets the label of an object that ends: another object may get its address. */
static __always_inline int forget_at(void *table, const void *object)
{
	__u64 key = (__u64)object;

	bpf_map_delete_elem(table, &key);
	return 0;
}

#define DISPATCH_OBJECT(hook, act, table, type)                                                    \
	SEC("lsm/" #hook)                                                                          \
	int BPF_PROG(dispatch_##hook, type *object)                                                \
	{                                                                                          \
		return act(&table, object);                                                        \
	}

/* Hooks: these, because nobody can find the object yet. */
DISPATCH_OBJECT(msg_queue_alloc_security, label_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(sem_alloc_security, label_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(shm_alloc_security, label_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(sb_alloc_security, label_at, file_systems, struct super_block)

/* Hooks: these, because the memory of the object is freed next. */
DISPATCH_OBJECT(msg_queue_free_security, forget_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(sem_free_security, forget_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(shm_free_security, forget_at, ipc_objects, struct kern_ipc_perm)
DISPATCH_OBJECT(sb_free_security, forget_at, file_systems, struct super_block)

#endif
