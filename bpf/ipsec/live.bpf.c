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
 *
 * Users choose how many descriptors there are: a process may have half a million of one socket, and
 * hand them on to its children. So a process is identified once for all its descriptors, and a
 * socket is reported once for each process, as far as `judged_sockets` reaches. User space reads
 * the rows in parts, and does other work between them.
 */
#include "connections.h"
#include "sockets.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id; /* of this run of an iterator alone; never 0 */
};

/* The members have eight bytes each. */
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

/* The members have eight bytes each. */
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	__u64 uid;
};

struct tcp_sock;

struct udp_sock {
	__u16 gso_size;
};

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

/* Limit of control groups that are visited on the way up. */
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

/* Returns 1 if a socket is one of IP that can be protected. */
static __always_inline int is_protectable(struct sock *socket, __u32 *family)
{
	struct sock___ends *ends = (struct sock___ends *)socket;
	__u32 protocol = BPF_CORE_READ(ends, sk_protocol);

	*family = BPF_CORE_READ(ends, __sk_common.skc_family);
	return is_of_ip(*family) && !is_refused(protocol);
}

/*
 * Returns the reason why a governed socket cannot send datagrams that need protection; 0: there is
 * none. No iterator can set the mark of a connected socket: it has the former mark until a call
 * sets its mark (`keeps`), or its program connects it again. If the mark has a signature, the SPD
 * compares each datagram.
 */
static __always_inline __u32 failing(const struct in_force *now, __u32 application,
				     struct sock___ends *socket)
{
	__u32 protocol = BPF_CORE_READ(socket, sk_protocol), class = USHER_CLASS_NONE, mark;
	struct peer peer;

	if (protocol != IPPROTO_UDP && protocol != IPPROTO_UDPLITE)
		return 0;
	if (BPF_CORE_READ(socket, __sk_common.skc_state) == BPF_TCP_ESTABLISHED) {
		class = class_of_connection(now, application, &socket->__sk_common, &peer);
		if (class == USHER_CLASS_BYPASS || class == USHER_CLASS_DISCARD)
			return 0;
		mark = BPF_CORE_READ(socket, sk_mark);
		if (!signature_in(now, mark) && !leaves_as(class_in(now, mark), class))
			return USHER_UNHELD_MARK;
	}
	return BPF_CORE_READ((struct udp_sock *)socket, gso_size) ? USHER_UNHELD_SEGMENTS : 0;
}

/* The process whose descriptors are visited. */
struct holder {
	__u64 number; /* of the process, its program and the run of the iterator */
	__u64 is_governed; /* by the policy, and in reach */
	struct usher_governed maker; /* if so, its identities */
};

/* Key: 0. User space may have begun several runs, and continues one at a time; each finds its own
 * holder anew. */
ARRAY_TABLE(holders, 1, struct holder);

/* A socket that this run has judged in a process. If another socket gets its address meanwhile, the
 * next run finds that one. */
struct judged {
	__u64 socket; /* the distance from the key of identities */
	__u64 holder; /* the holder's number */
};

#define JUDGED_PLACES 4096

/* Key: the lowest bits of a socket's mixed address. A place has the last socket that came to it.
 * Limit: 4,096. Full: a socket whose place another has taken is judged again. */
ARRAY_TABLE(judged_sockets, JUDGED_PLACES, struct judged);

/* The number of a process for `holders`. An exec changes it, and a later process has another one.
 */
static __always_inline __u64 number_of_holder(const struct in_force *policy,
					      struct task_struct *task, __u64 session,
					      const struct usher_program_key *key)
{
	__u64 mixed = mixed_with(key->words[0], (char *)task - (char *)key);

	mixed = mixed_with(mixed, task->start_boottime);
	mixed = mixed_with(mixed, task->self_exec_id);
	mixed = mixed_with(mixed, policy->generation);
	mixed = mixed_with(mixed, session);
	return mixed_with(mixed, key->words[1]) | 1;
}

/* Identifies the holder of a task's descriptors, once for all of them. A program that the policy
 * `present` governs counts as not governed here; NULL: there is no such policy. */
static __always_inline struct holder *holder_of(const struct in_force *policy,
						const struct in_force *present,
						struct task_struct *task, __u64 session)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct holder *holder = first_of(&holders);
	struct usher_governed maker __aligned = {};
	__u64 number;
	int governed;

	if (!key || !holder)
		return 0;
	number = number_of_holder(policy, task, session, key);
	if (holder->number == number)
		return holder;
	governed = set_maker(policy, &maker, task) && is_in_reach(task);
	if (governed && present && maker_entry(present, &maker))
		governed = 0;
	holder->number = number;
	holder->is_governed = governed;
	holder->maker = maker;
	return holder;
}

/* Returns 1 if this run has judged the socket in this process before. */
static __always_inline int is_judged(struct sock *socket, const struct holder *holder)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct judged *judged;
	__u64 distance;
	__u32 place;

	if (!key)
		return 0;
	distance = (char *)socket - (char *)key;
	place = mixed_with(key->words[1], distance) % JUDGED_PLACES;
	judged = bpf_map_lookup_elem(&judged_sockets, &place);
	if (!judged)
		return 0;
	if (judged->socket == distance && judged->holder == holder->number)
		return 1;
	judged->socket = distance;
	judged->holder = holder->number;
	return 0;
}

/*
 * Run by user space when the table of the next policy is in its place, before its generation comes
 * into force. A socket without a maker gets the holder's program as its maker, if the next policy
 * governs that. Otherwise LSM programs, once the policy is in force, would take it for another
 * program's socket and refuse its use. `lists` covers what the present policy governs. User space
 * reads a struct usher_live_socket for each. Kernel 5.12.
 */
SEC("iter/task_file")
int prepares(struct bpf_iter__task_file *context)
{
	struct usher_live_socket row __aligned = { .adopted = 1 };
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct in_force next = {}, now = {};
	struct usher_governed fresh __aligned;
	struct socket *socket;
	struct holder *holder;
	__u32 family;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket || !socket->sk || !read_next_policy(&next))
		return 0;
	holder = holder_of(&next, read_policy(&now) ? &now : 0, task, context->meta->session_id);
	if (!holder || !holder->is_governed || !is_protectable(socket->sk, &family) ||
	    bpf_sk_storage_get(&sockets, socket->sk, 0, 0))
		return 0;
	fresh = holder->maker;
	if (!bpf_sk_storage_get(&sockets, socket->sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	COUNT(adopted);
	bpf_seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

/* Reports a socket that cannot be made the holder's program's, and why. */
static __always_inline int unheld(struct bpf_iter__task_file *context, const struct holder *holder,
				  const struct task_struct *task, __u32 reason)
{
	struct usher_live_socket row __aligned = { .application = USHER_UNGOVERNED };

	row.unheld = reason;
	row.program = holder->maker.program;
	row.place = holder->maker.place;
	row.script = holder->maker.script;
	row.process = task->tgid;
	bpf_seq_write(context->meta->seq, &row, sizeof(row));
	return 0;
}

/*
 * Run by user space, which reads a struct usher_live_socket for each governed socket of a process.
 * It also reads one for each socket with a mark of ours whose maker is no longer governed, and for
 * each that cannot be made a governed holder's (USHER_UNGOVERNED). Kernel 5.12.
 */
SEC("iter/task_file")
int lists(struct bpf_iter__task_file *context)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct usher_live_socket row __aligned = {};
	struct usher_policy_entry *entry = 0;
	struct usher_governed *own;
	struct socket *from_file;
	struct holder *holder;
	struct sock *socket;
	struct in_force now;
	__u32 family;

	if (!task || !file)
		return 0;
	from_file = bpf_sock_from_file(file);
	if (!from_file || !from_file->sk || !read_policy(&now))
		return 0;
	socket = from_file->sk;
	holder = holder_of(&now, 0, task, context->meta->session_id);
	if (!holder)
		return 0;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if ((!own && !holder->is_governed) || is_judged(socket, holder))
		return 0;
	if (!is_protectable(socket, &family)) {
		if (holder->is_governed && (is_of_ip(family) || passes_beside(family)))
			return unheld(context, holder, task, USHER_UNHELD_KIND);
		return 0;
	}
	if (!is_governed(&now, own, family)) {
		struct usher_governed fresh __aligned = holder->maker;

		if (holder->is_governed)
			entry = maker_entry(&now, &fresh);
		if (entry) {
			govern(&now, &fresh, entry, family);
			if (own)
				replace_maker(own, &fresh);
			else
				own = bpf_sk_storage_get(&sockets, socket, &fresh,
							 BPF_SK_STORAGE_GET_F_CREATE);
			if (!own)
				return unheld(context, holder, task, USHER_UNHELD_FULL);
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
	if (row.application != USHER_UNGOVERNED)
		row.unheld = failing(&now, row.application, (struct sock___ends *)socket);
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
