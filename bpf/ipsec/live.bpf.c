// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lists the sockets of governed programs, and adopts those that are older than the policy.
 *
 * A socket that was made before its program was governed has no storage; the maker of another
 * socket may have left the policy. The iterator visits all descriptors of all processes. If the
 * holder's program is governed, and runs in the control group of the monitor or below it, such a
 * socket becomes that program's. Sockets accepted later inherit this from their listener. A second
 * iterator, over TCP sockets, gives connections their marks: those that were adopted, and those
 * that an earlier policy has marked. A listener needs no mark, and a datagram socket gets its own
 * at its next send to a named peer. Plaintext that the policy forbids is dropped in any case.
 */
#include "connections.h"
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

/* The same. */
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	__u64 uid;
};

struct tcp_sock;

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup___above *cgroup;
	struct cgroup_subsys_state *parent;
};

/* The same structure as in usher_kernel.h. */
struct cgroup___above {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

#pragma clang attribute pop

/* The number of the control group of the monitor. Key: 0. User space sets it before a program runs.
 */
ARRAY_TABLE(reach_number, 1, __u64);

/* The most control groups that are visited on the way up. */
#define MOST_GROUPS 64

/* Returns 1 if a process is in the control group of the monitor or below it, or if it is nested too
 * deeply to tell. */
static __always_inline int is_in_reach(struct task_struct *task)
{
	struct cgroup___above *group =
	    (struct cgroup___above *)BPF_CORE_READ(task, cgroups, dfl_cgrp);
	__u64 *reach = first_of(&reach_number);

	if (!reach)
		return 0;
	for (int visited = 0; visited < MOST_GROUPS; visited++) {
		struct cgroup_subsys_state *parent;

		if (BPF_CORE_READ(group, kn, id) == *reach)
			return 1;
		parent = BPF_CORE_READ(group, self.parent);
		if (!parent)
			return 0;
		group = BPF_CORE_READ(parent, cgroup);
	}
	return 1;
}

static __always_inline void list_ends(struct usher_live_socket *row, struct sock___ends *socket)
{
	struct sock_common___ends *common = &socket->__sk_common;

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

/*
 * The socket of a descriptor, if it is one of IP that can be protected, and its family. Subflows of
 * MPTCP and accepted sockets of SCTP would not be their socket's.
 */
static __always_inline struct sock *socket_of(struct file *file, __u32 *family)
{
	struct socket *socket = bpf_sock_from_file(file);
	struct sock___ends *ends;
	__u32 protocol;

	if (!socket || !socket->sk)
		return 0;
	ends = (struct sock___ends *)socket->sk;
	*family = BPF_CORE_READ(ends, __sk_common.skc_family);
	protocol = BPF_CORE_READ(ends, sk_protocol);
	if (!is_of_ip(*family) || protocol == IPPROTO_MPTCP || protocol == IPPROTO_SCTP)
		return 0;
	return socket->sk;
}

/*
 * Run by user space when the table of the next policy is in its place, before its generation comes
 * in force: sockets without a maker become the holder's program's, if that policy governs it. So
 * LSM programs take none of them for the socket of another program, whose use they refuse, once the
 * policy is in force. What the present policy governs is left to `lists`. User space reads a
 * struct usher_live_socket for each. Kernel 5.12.
 */
SEC("iter/task_file")
int prepares(struct bpf_iter__task_file *context)
{
	struct usher_live_socket row __aligned = { .adopted = 1 };
	struct usher_governed fresh __aligned = {};
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct in_force next = {}, now = {};
	struct sock *socket;
	__u32 family;

	if (!task || !file || !read_next_policy(&next))
		return 0;
	socket = socket_of(file, &family);
	if (!socket || bpf_sk_storage_get(&sockets, socket, 0, 0))
		return 0;
	if (!set_user(&next, &fresh, task) || !is_in_reach(task))
		return 0;
	if (read_policy(&now) && maker_entry(&now, &fresh))
		return 0;
	if (!bpf_sk_storage_get(&sockets, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	COUNT(adopted);
	bpf_seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

/*
 * Run by user space, which reads a struct usher_live_socket for each, also for sockets with a mark
 * of ours whose maker is no longer governed (USHER_UNGOVERNED). Kernel 5.12.
 */
SEC("iter/task_file")
int lists(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct usher_live_socket row __aligned = {};
	struct usher_policy_entry *entry;
	struct usher_governed *own;
	struct sock *socket;
	struct in_force now;
	__u32 family;

	if (!task || !file || !read_policy(&now))
		return 0;
	socket = socket_of(file, &family);
	if (!socket)
		return 0;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!is_governed(&now, own, family)) {
		struct usher_governed fresh __aligned = {};

		entry = set_user(&now, &fresh, task);
		if (entry && is_in_reach(task)) {
			govern(&now, &fresh, entry, family);
			if (own)
				replace_maker(own, &fresh);
			else
				own = bpf_sk_storage_get(&sockets, socket, &fresh,
							 BPF_SK_STORAGE_GET_F_CREATE);
			if (!own)
				return 0;
			row.adopted = 1;
			COUNT(adopted);
		} else if (!own ||
			   !(BPF_CORE_READ((struct sock___ends *)socket, sk_mark) & now.mask)) {
			return 0;
		}
	}
	row.application = application_of(&now, own, family);
	row.program = own->program;
	row.place = own->place;
	row.script = own->script;
	row.cookie = bpf_get_socket_cookie(socket);
	row.process = task->tgid;
	if (IS_CURRENT(&now, own->class))
		row.class = own->class & ~USHER_CLASS_ONLY_SHOWN;
	list_ends(&row, (struct sock___ends *)socket);
	bpf_seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

/*
 * Run by user space after `lists`, in the network namespace whose connections it marks: sets the
 * marks of governed connections to what the policy in force demands. The kernel holds the lock of
 * the socket meanwhile, and takes its route anew. Kernel 5.16.
 */
SEC("iter/tcp")
int marks(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	__u32 application, class, present, mark, family;
	struct sock_common___ends *ends;
	struct usher_governed *own;
	struct tcp_sock *socket;
	struct in_force now;
	struct peer peer;

	if (!common || common->skc_state == BPF_TCP_LISTEN || common->skc_state == BPF_TCP_CLOSE ||
	    !read_policy(&now))
		return 0;
	socket = bpf_skc_to_tcp_sock(common);
	if (!socket)
		return 0;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!own)
		return 0;
	ends = (struct sock_common___ends *)common;
	family = BPF_CORE_READ(ends, skc_family);
	application = application_of(&now, own, family);
	if (application == USHER_UNGOVERNED)
		return 0;
	class = class_of_connection(&now, application, ends, &peer);
	own->class = STAMPED(&now, class);
	present = BPF_CORE_READ((struct sock___ends *)common, sk_mark);
	if (leaves_as(class_in(&now, present), class))
		return 0;
	mark = (present & ~now.mask) | (class << now.shift & now.mask);
	if (bpf_setsockopt(socket, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)))
		COUNT(unmarked);
	else
		COUNT(remarked);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
