// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lists the sockets of governed programs, and adopts those that are older than the policy.
 *
 * A socket that was made before its program was governed has no storage. The iterator visits all
 * descriptors of all processes. Where the holder's program is governed, the socket becomes that
 * program's; accepted sockets inherit it from their listener. Marks stay as they are: a listener
 * needs none, a datagram socket gets its own at its next send, and plaintext that the policy
 * forbids is dropped in any case.
 */
#include "sockets.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

/* The members have eight bytes each. */
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

/* The same structures as in usher_kernel.h, with the members that are listed. */
struct sock_common___listed {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock___listed {
	struct sock_common___listed __sk_common;
	__u16 sk_protocol;
	__u32 sk_mark;
	kuid_t sk_uid;
};

#pragma clang attribute pop

static __always_inline void list_ends(struct usher_live_socket *row, struct sock___listed *socket)
{
	struct sock_common___listed *common = &socket->__sk_common;

	if (BPF_CORE_READ(common, skc_family) == AF_INET) {
		set_mapped(row->local_address, BPF_CORE_READ(common, skc_rcv_saddr));
		set_mapped(row->remote_address, BPF_CORE_READ(common, skc_daddr));
	} else {
		BPF_CORE_READ_INTO(&row->local_address, common, skc_v6_rcv_saddr.in6_u.u6_addr32);
		BPF_CORE_READ_INTO(&row->remote_address, common, skc_v6_daddr.in6_u.u6_addr32);
	}
	row->local_port = BPF_CORE_READ(common, skc_num);
	row->remote_port = bpf_ntohs(BPF_CORE_READ(common, skc_dport));
	row->state = BPF_CORE_READ(common, skc_state);
	row->protocol = BPF_CORE_READ(socket, sk_protocol);
	row->mark = BPF_CORE_READ(socket, sk_mark);
	row->uid = BPF_CORE_READ(socket, sk_uid.val);
}

/* Run by user space, which reads a struct usher_live_socket for each. Kernel 5.11. */
SEC("iter/task_file")
int lists(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct usher_live_socket row __aligned = {};
	struct usher_policy_entry *entry;
	struct usher_governed *own;
	struct socket *socket;
	struct in_force now;
	struct inode *inode;
	__u32 family;

	if (!task || !file || !read_policy(&now))
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket || !socket->sk)
		return 0;
	family = BPF_CORE_READ((struct sock___listed *)socket->sk, __sk_common.skc_family);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	own = bpf_sk_storage_get(&sockets, socket->sk, 0, 0);
	if (!own) {
		struct usher_governed fresh __aligned = {};

		inode = executable_of(task);
		if (!inode)
			return 0;
		fresh.program = program_of(inode);
		entry = program_entry(&now, fresh.program);
		if (!entry)
			return 0;
		govern(&now, &fresh, entry, family);
		own = bpf_sk_storage_get(&sockets, socket->sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
		if (!own)
			return 0;
		row.adopted = 1;
		COUNT(adopted);
	}
	row.application = application_of(&now, own, family);
	if (row.application == USHER_UNGOVERNED)
		return 0;
	row.program = own->program;
	row.process = task->tgid;
	if (IS_CURRENT(&now, own->class))
		row.class = own->class;
	list_ends(&row, (struct sock___listed *)socket->sk);
	bpf_seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
