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

/* The control group of the monitor. Key: 0. User space sets it before the programs are attached. */
USHER_MAP(reach, CGROUP_ARRAY, 0, 1, __u32, __u32);

/* 1: that control group is the root, so every program is in it, and the programs do not ask. User
 * space sets it before it loads them. */
const volatile __u64 reaches_all = 0;

/* Returns 1 if the calling program is in the control group or below it, or if the kernel cannot
 * tell. */
static __always_inline int is_in_reach(void)
{
	return reaches_all || bpf_current_task_under_cgroup(&reach, 0) != 0;
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
	return set_caller(&now, &caller) ? refuse_call() : 0;
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

/* A use of a socket by a program that a block may govern. */
struct socket_use {
	struct caller caller;
	struct sock___ends *socket;
	__u32 generation;
	__u32 family;
};

#define LEFT_ALONE 0
#define OWN 1
#define REFUSED 2

/*
 * Decides about a use of a socket, whose storage (`maker`) may be NULL. The kernel's own sockets,
 * by which it sends on behalf of a caller (as a network file system does), are left alone. OWN: no
 * program that the policy governs has made the socket. The caller is its maker from now on, and
 * `fresh` its storage.
 *
 * A global function, because the verifier follows it once per program, and not once per path to its
 * call.
 */
__noinline int judge(const struct socket_use *use, struct usher_governed *maker,
		     struct usher_governed *fresh)
{
	struct usher_policy_entry *entry;
	struct sock___ends *socket;
	struct in_force now = {};
	__u32 protocol;
	__u8 state;

	if (!use || !fresh || !read_state(&now) || !find_policy(&now, use->generation) ||
	    is_governed(&now, maker, use->family))
		return LEFT_ALONE;
	entry = make_caller(&now, &use->caller, fresh);
	if (!entry)
		return LEFT_ALONE;
	socket = use->socket;
	if (BPF_CORE_READ_BITFIELD_PROBED(socket, sk_kern_sock))
		return LEFT_ALONE;
	protocol = BPF_CORE_READ(socket, sk_protocol);
	if (!is_of_ip(use->family) || is_refused(protocol))
		return REFUSED;
	govern(&now, fresh, entry, use->family);
	state = BPF_CORE_READ(socket, __sk_common.skc_state);
	if (protocol == IPPROTO_TCP && state != BPF_TCP_LISTEN && state != BPF_TCP_CLOSE &&
	    !is_as_demanded(&now, entry->number, socket))
		return REFUSED;
	return OWN;
}

/* Returns 1 if the policy in force governs the socket already, whoever uses it. A socket without
 * any storage costs no helper. */
static __always_inline int has_maker(const struct in_force *now, struct sock *sk, __u32 family)
{
	struct usher_governed *own;
	__u64 application;

	if (!is_of_ip(family) || !sk->sk_bpf_storage)
		return 0;
	own = bpf_sk_storage_get(&sockets, sk, 0, 0);
	if (!own)
		return 0;
	application = own->application;
	return IS_CURRENT(now, application) && (__u32)application != USHER_UNGOVERNED;
}

/* The calling program uses a socket. Every send and receive of the kernel passes here, so the
 * common calls return early: those of programs outside the control group, then those at sockets
 * with a governed maker, and then those of programs that no block governs. */
static __always_inline int at_use(struct socket *socket)
{
	struct usher_governed fresh __aligned, *maker;
	struct sock *used = socket->sk;
	struct in_force now;
	struct socket_use use;

	if (!used)
		return 0;
	use.socket = (struct sock___ends *)used;
	use.family = use.socket->__sk_common.skc_family;
	if (!is_of_ip(use.family) && !passes_beside(use.family))
		return 0;
	if (!read_state(&now) || !is_in_reach() || has_maker(&now, used, use.family) ||
	    !may_be_governed(&now, &use.caller))
		return 0;
	use.generation = now.generation;
	/* Cleared only here, because few calls get this far. */
	fresh = (struct usher_governed){};
	maker = is_of_ip(use.family) ? bpf_sk_storage_get(&sockets, used, 0, 0) : 0;
	switch (judge(&use, maker, &fresh)) {
	case LEFT_ALONE:
		return 0;
	case REFUSED:
		return refuse_call();
	}
	if (maker)
		replace_maker(maker, &fresh);
	else if (!bpf_sk_storage_get(&sockets, used, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse_call();
	COUNT(adopted);
	return 0;
}

/* Defines a program at a hook whose first argument is the socket that the caller uses. */
#define AT_USE(hook, name)                                                                         \
	SEC("lsm/" hook)                                                                           \
	int BPF_PROG(name, struct socket *socket)                                                  \
	{                                                                                          \
		return at_use(socket);                                                             \
	}

/* Hook: socket_accept, because a program may accept at a listener that another program made. The
 * accepted connection itself passes a hook only when the program uses it. Kernel 2.6. */
AT_USE("socket_accept", accepts)

/* Hook: socket_sendmsg, because send, write, writev, sendmmsg, io_uring and, from kernel 6.5 on,
 * sendfile and splice pass it. Kernel 2.6. */
AT_USE("socket_sendmsg", sends)

/* Hook: socket_recvmsg, because recv, read, readv, recvmmsg and io_uring pass it. splice passes
 * file_permission only, at which a program would cost each read and write of the host more than
 * this is worth (threat model: P32). Kernel 2.6. */
AT_USE("socket_recvmsg", receives)

/* Hooks: these three come before the hooks of the control group, which also find the socket but
 * cannot refuse the call. Kernel 2.6. */
AT_USE("socket_getpeername", asks_peer)
AT_USE("socket_getsockname", asks_own)
AT_USE("socket_setsockopt", sets)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
