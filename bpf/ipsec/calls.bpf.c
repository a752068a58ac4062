// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Covers two kinds of sockets that the control group's hooks do not see, where the kernel runs LSM
 * programs: sockets of families whose traffic passes beside those hooks, and sockets that another
 * program has made and passed on.
 *
 * The programs run for the whole kernel. They leave all programs outside the monitor's control
 * group alone.
 *
 *     families    refuses a governed program a socket of such a family;
 *     accepts, sends, receives, asks_peer, asks_own, sets
 *                 make an IP socket the caller's own at its first such call, if no governed
 *                 program has made the socket. If the socket has a connection without the
 *                 protection that the policy demands, they refuse the call, before a byte is read
 *                 or written.
 *
 * Kernel 6.1 or later with LSM programs.
 */
#include "connections.h"
#include "sockets.h"

#include <linux/socket.h>

#define AF_PACKET 17
#define AF_RDS 21
#define AF_TIPC 30
#define AF_RXRPC 33
#define AF_SMC 43
#define AF_XDP 44

/* The control group of the monitor. Key: 0. User space sets it before the programs are attached. */
USHER_MAP(reach, CGROUP_ARRAY, 0, 1, __u32, __u32);

/* All that the look-up of a task's program depends on. Within a generation the policy does not
 * change. An exec alone changes which script a task executes. */
struct ungoverned {
	struct usher_origin program;
	__u64 execution; /* the task's number of executions */
	__u64 generation; /* of the policy */
};

/* The last look-up for a task that found no governed program. Key: a thread, at first without an
 * entry. Limit: memory. Full: the program is looked up at each call. */
TASK_TABLE(ungoverned, struct ungoverned);

/* Reads what the look-up of the task's program depends on. Returns 0 if the task has none. */
static __always_inline int read_subject(struct ungoverned *subject, const struct in_force *now,
					struct task_struct *task)
{
	subject->execution = task->self_exec_id;
	subject->generation = now->generation;
	return read_origin(&subject->program, executed_by(task));
}

/* Returns 1 if a look-up for the task found no governed program, and would find the same again. */
static __always_inline int is_known(const struct ungoverned *subject, struct task_struct *task)
{
	struct ungoverned *known = bpf_task_storage_get(&ungoverned, task, 0, 0);

	return known && known->generation == subject->generation &&
	       known->execution == subject->execution &&
	       known->program.file == subject->program.file &&
	       known->program.directory == subject->program.directory &&
	       known->program.name == subject->program.name;
}

static __always_inline void note_ungoverned(const struct ungoverned *subject,
					    struct task_struct *task)
{
	struct ungoverned *known =
	    bpf_task_storage_get(&ungoverned, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (known)
		*known = *subject;
}

/* Returns 1 if the calling program is in the control group or below it, or if the kernel cannot
 * tell. */
static __always_inline int is_in_reach(void)
{
	return bpf_current_task_under_cgroup(&reach, 0) != 0;
}

/* Returns 1 if sockets of the family make traffic that no hook of the control group sees. */
static __always_inline int passes_beside(int family)
{
	return family == AF_PACKET || family == AF_RDS || family == AF_TIPC || family == AF_RXRPC ||
	       family == AF_SMC || family == AF_XDP;
}

static __always_inline int refuse_call(void)
{
	COUNT(calls_refused);
	return -EPERM;
}

/* Hook: socket_create, because nothing can have been sent by then. Kernel 2.6. */
SEC("lsm/socket_create")
int BPF_PROG(families, int family, int type, int protocol, int kernel)
{
	struct usher_governed caller __aligned = {};
	struct in_force now;

	if (kernel || !passes_beside(family) || !is_in_reach() || !read_policy(&now))
		return 0;
	return set_maker(&now, &caller, bpf_get_current_task_btf()) ? refuse_call() : 0;
}

/* Returns 1 if the mark of a connection has the class that the policy demands for it. */
static __always_inline int is_as_demanded(const struct in_force *now, __u32 application,
					  struct sock___ends *socket)
{
	struct peer peer;
	__u32 class = class_of_connection(now, application, &socket->__sk_common, &peer);

	return is_same_class(class, class_in(now, BPF_CORE_READ(socket, sk_mark))) ||
	       may_be_plain(class, &peer);
}

/*
 * The calling program uses a socket. If no governed program has made it, or only one that is no
 * longer governed, the caller decides how it is treated from now on.
 */
static __always_inline int use(struct socket *socket)
{
	struct sock *sk = socket->sk;
	struct sock___ends *used = (struct sock___ends *)sk;
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_governed fresh __aligned = {};
	struct ungoverned subject __aligned = {};
	struct usher_policy_entry *entry;
	struct usher_governed *own;
	struct in_force now;
	__u32 family, protocol;
	int has_program;
	__u8 state;

	if (!sk || !read_policy(&now))
		return 0;
	/* Read without a helper, because every call passes here. */
	family = used->__sk_common.skc_family;
	if (!is_of_ip(family) && !passes_beside(family))
		return 0;
	own = is_of_ip(family) ? bpf_sk_storage_get(&sockets, sk, 0, 0) : 0;
	if (is_governed(&now, own, family))
		return 0;
	/* Read before the look-up: a file renamed meanwhile has another place afterwards. */
	has_program = read_subject(&subject, &now, task);
	if ((has_program && is_known(&subject, task)) || !is_in_reach())
		return 0;
	entry = set_user(&now, &fresh, task);
	if (!entry) {
		if (has_program)
			note_ungoverned(&subject, task);
		return 0;
	}
	protocol = BPF_CORE_READ(used, sk_protocol);
	if (!is_of_ip(family) || protocol == IPPROTO_MPTCP || protocol == IPPROTO_SCTP)
		return refuse_call();
	govern(&now, &fresh, entry, family);
	state = BPF_CORE_READ(used, __sk_common.skc_state);
	if (protocol == IPPROTO_TCP && state != BPF_TCP_LISTEN && state != BPF_TCP_CLOSE &&
	    !is_as_demanded(&now, entry->number, used))
		return refuse_call();
	if (own)
		replace_maker(own, &fresh);
	else if (!bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse_call();
	COUNT(adopted);
	return 0;
}

/* Defines a program at a hook whose first argument is the socket that the caller uses. */
#define AT_USE(hook, name)                                                                         \
	SEC("lsm/" hook)                                                                           \
	int BPF_PROG(name, struct socket *socket)                                                  \
	{                                                                                          \
		return use(socket);                                                                \
	}

/* Hook: socket_accept, because a program may accept at a listener that another program made. The
 * accepted connection itself passes a hook only when the program uses it. Kernel 2.6. */
AT_USE("socket_accept", accepts)

/* Hook: socket_sendmsg, because send, write, writev, sendmmsg, sendfile and io_uring pass it.
 * Kernel 2.6. */
AT_USE("socket_sendmsg", sends)

/* Hook: socket_recvmsg, because recv, read, readv, recvmmsg, splice and io_uring pass it. Kernel
 * 2.6. */
AT_USE("socket_recvmsg", receives)

/* Hooks: these three come before the hooks of the control group, which also find the socket but
 * cannot refuse the call. Kernel 2.6. */
AT_USE("socket_getpeername", asks_peer)
AT_USE("socket_getsockname", asks_own)
AT_USE("socket_setsockopt", sets)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
