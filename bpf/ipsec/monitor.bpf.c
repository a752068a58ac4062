// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The monitor: sees the sockets of governed programs, gives them the marks that select entries of
 * the SPD, and drops packets that are not protected as the policy demands (docs/adr/0051).
 *
 *     made        marks a socket at its creation, before its first packet;
 *     connects4   marks it for its peer, and refuses what the policy discards;
 *     sends4      the same for datagrams with a destination of their own;
 *     listens     a listener has no mark: its answers take the mark of the SYN, which is that of
 *                 the SA that protected it (net.ipv4.tcp_fwmark_accept);
 *     keeps       refuses a governed program to change the mark;
 *     arrives     compares a packet's mark, so its SA, with the policy, before TCP sees a SYN;
 *     leaves      a seat belt: drops plaintext that should have been protected;
 *     decide      decides about a packet for user space: for tests and explanations.
 *
 * The kernel never protects what stays on a host. So the programs leave the loopback interface
 * alone. Sockets of other programs cost a look-up that finds nothing.
 *
 * Kernel 6.1 or later.
 */
#include "packets.h"
#include "sockets.h"

#define SOL_IP 0
#define IP_IPSEC_POLICY 16
#define IP_XFRM_POLICY 17
#define SOL_IPV6 41
#define IPV6_IPSEC_POLICY 34
#define IPV6_XFRM_POLICY 35

#define LOOPBACK_INTERFACE 1

/* The most that a setsockopt program sees of a value, on machines with the smallest pages. */
#define PAGE 4096

static __always_inline int refuse_socket(int error)
{
	COUNT(sockets_refused);
	bpf_set_retval(-error);
	return 0;
}

/*
 * Hook: creation of sockets in the cgroup, because nothing can have been sent by then, and the
 * maker is known. MPTCP's subflows are the kernel's own sockets, which pass no hook: programs that
 * are refused it use TCP. SCTP's accepted sockets are not copies of their listener: they would have
 * neither storage nor mark. Kernel 4.10; bpf_set_retval 5.18.
 */
SEC("cgroup/sock_create")
int made(struct bpf_sock *socket)
{
	struct usher_governed fresh __aligned = {};
	struct usher_policy_entry *entry;
	struct in_force now;

	if (!read_policy(&now))
		return 1;
	fresh.program = calling_program();
	if (!fresh.program)
		return 1;
	entry = program_entry(&now, fresh.program);
	if (!entry)
		return 1;
	if (socket->protocol == IPPROTO_MPTCP || socket->protocol == IPPROTO_SCTP)
		return refuse_socket(EPROTONOSUPPORT);
	govern(&now, &fresh, entry, socket->family);
	if (!bpf_sk_storage_get(&sockets, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse_socket(ENOMEM);
	socket->mark = (socket->mark & ~now.mask) | ((__u32)fresh.mark & now.mask);
	COUNT(sockets);
	return 1;
}

/*
 * The local port of a TCP socket that is not bound is chosen later. Items that name the port apply
 * then (`begins`); a program that may use nothing else binds before it connects. A datagram socket
 * that is not bound keeps the mark of its creation, which selects by the ports of each packet.
 */
static __always_inline int connects(struct bpf_sock_addr *context, const struct peer *peer)
{
	struct bpf_sock *socket = context->sk;
	__u32 application, class, mark;
	struct usher_governed *own;
	struct in_force now;
	int by_local, full;
	__u16 local;

	if (!socket || !read_policy(&now))
		return 1;
	own = GOVERNED_BY_CALLER(&now, socket, socket->family, &full);
	if (!own)
		return !full;
	application = application_of(&now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return 1;
	local = socket->src_port;
	class =
	    treat(&now, application, peer, local, bpf_ntohs((__be16)context->user_port), &by_local);
	if (class == USHER_CLASS_DISCARD) {
		COUNT(discarded);
		return 0;
	}
	mark = class << now.shift;
	if (context->type != SOCK_STREAM && by_local && !local)
		mark = own->mark;
	if (set_mark(context, &now, socket->mark, mark)) {
		COUNT(unmarked);
		return 0;
	}
	own->class = STAMPED(&now, by_local && !local ? USHER_CLASS_NONE : class);
	return 1;
}

/*
 * Hook: connect of the cgroup, because nothing has been sent by then: TCP, even with data in the
 * SYN (TCP Fast Open), and UDP. The kernel takes the address 0 for one of this host, which is
 * never discarded. Kernel 4.17; bpf_setsockopt 5.8.
 */
SEC("cgroup/connect4")
int connects4(struct bpf_sock_addr *context)
{
	__be32 address = context->user_ip4;
	struct peer peer;

	set_peer4(&peer, address ? address : bpf_htonl(0x7f000001));
	return connects(context, &peer);
}

static __always_inline void set_destination6(struct peer *peer, struct bpf_sock_addr *context)
{
	set_peer6(peer, context->user_ip6);
	if (!peer->words[0] && !peer->words[1] && !peer->words[2] && !peer->words[3])
		peer->words[3] = bpf_htonl(1);
}

/* Like connects4, for IPv6 sockets, including mapped addresses. */
SEC("cgroup/connect6")
int connects6(struct bpf_sock_addr *context)
{
	struct peer peer;

	set_destination6(&peer, context);
	return connects(context, &peer);
}

/* A datagram to a destination of its own needs the mark of the socket's creation. A socket that was
 * connected has another: its first such datagram goes by that, and `leaves` drops it if it must not
 * be plain. */
static __always_inline int sends(struct bpf_sock_addr *context, const struct peer *peer)
{
	struct bpf_sock *socket = context->sk;
	struct usher_governed *own;
	struct in_force now;
	__u32 application;
	int by_local, full;

	if (!socket || !read_policy(&now))
		return 1;
	own = GOVERNED_BY_CALLER(&now, socket, socket->family, &full);
	if (!own)
		return !full;
	application = application_of(&now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return 1;
	if (treat(&now, application, peer, socket->src_port, bpf_ntohs((__be16)context->user_port),
		  &by_local) == USHER_CLASS_DISCARD) {
		COUNT(discarded);
		return 0;
	}
	if ((socket->mark & now.mask) == ((__u32)own->mark & now.mask))
		return 1;
	COUNT(corrected);
	if (!set_mark(context, &now, socket->mark, own->mark))
		return 1;
	COUNT(unmarked);
	return 0;
}

/* Hooks: sendmsg of the cgroup, because unconnected UDP names its peer there. Kernel 4.18. */
SEC("cgroup/sendmsg4")
int sends4(struct bpf_sock_addr *context)
{
	__be32 address = context->user_ip4;
	struct peer peer;

	set_peer4(&peer, address ? address : bpf_htonl(0x7f000001));
	return sends(context, &peer);
}

/* Like sends4, for IPv6 sockets. */
SEC("cgroup/sendmsg6")
int sends6(struct bpf_sock_addr *context)
{
	struct peer peer;

	set_destination6(&peer, context);
	return sends(context, &peer);
}

static __always_inline int changes_policy(__u32 level, __u32 name)
{
	return (level == SOL_IP && (name == IP_IPSEC_POLICY || name == IP_XFRM_POLICY)) ||
	       (level == SOL_IPV6 && (name == IPV6_IPSEC_POLICY || name == IPV6_XFRM_POLICY));
}

/* Whether the option leaves the socket's treatment alone. A mark without our bits gets them. */
static __always_inline int may_be_set(struct bpf_sockopt *context, const struct in_force *now,
				      __u32 present)
{
	__u32 *mark = context->optval;

	if (context->level != SOL_SOCKET || context->optname != SO_MARK)
		return !changes_policy(context->level, context->optname);
	if (!context->optlen)
		return 0; /* Longer than a page: the kernel would take its beginning, unseen. */
	if (context->optlen < (int)sizeof(*mark) || (void *)(mark + 1) > context->optval_end)
		return 1; /* The kernel refuses it. */
	if (*mark & now->mask && (*mark & now->mask) != (present & now->mask))
		return 0;
	*mark = (*mark & ~now->mask) | (present & now->mask);
	return 1;
}

/*
 * Hook: setsockopt of the cgroup: a privileged program could give its socket another mark, or an
 * IPsec policy of its own. Values longer than a page, of which the program sees only the first
 * page, are left to the kernel, but no mark is that long. Kernel 5.3.
 */
SEC("cgroup/setsockopt")
int keeps(struct bpf_sockopt *context)
{
	struct bpf_sock *socket = context->sk;
	struct usher_governed *own;
	struct in_force now;

	if (context->optlen > PAGE)
		context->optlen = 0;
	if (!socket || !read_policy(&now))
		return 1;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!own || application_of(&now, own, socket->family) == USHER_UNGOVERNED)
		return 1;
	if (may_be_set(context, &now, socket->mark))
		return 1;
	COUNT(options_refused);
	return 0;
}

/* This hook cannot refuse: a listener without room for its storage is counted, and not governed. */
static __always_inline void listens(struct bpf_sock_ops *context, struct bpf_sock *socket,
				    const struct in_force *now)
{
	struct usher_governed *own;
	int full;

	own = GOVERNED_BY_CALLER(now, socket, socket->family, &full);
	if (!own || application_of(now, own, socket->family) == USHER_UNGOVERNED)
		return;
	/* Accepted sockets inherit a copy. */
	own->class = 0;
	if (socket->mark & ~now->mask)
		COUNT(listeners_marked);
	if (set_mark(context, now, socket->mark, 0))
		COUNT(unmarked);
}

/* The kernel has chosen the local port. The peer is the one that gets the SYN: programs of others
 * may have changed it after `connects`. */
static __always_inline void begins(struct bpf_sock_ops *context, struct bpf_sock *socket,
				   const struct in_force *now)
{
	struct usher_governed *own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	__u32 application, class;
	struct peer peer;
	int by_local;

	if (!own)
		return;
	application = application_of(now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return;
	if (context->family == AF_INET)
		set_peer4(&peer, context->remote_ip4);
	else
		set_peer6(&peer, context->remote_ip6);
	class = treat(now, application, &peer, context->local_port, bpf_ntohl(context->remote_port),
		      &by_local);
	if (set_mark(context, now, socket->mark, class << now->shift)) {
		COUNT(unmarked);
		return;
	}
	own->class = STAMPED(now, class);
}

/*
 * Hook: sockops of the cgroup, because it sees listen(), and a connection between the choice of its
 * port and its SYN. Kernel 4.13, TCP_LISTEN_CB 4.19.
 */
SEC("sockops")
int changes(struct bpf_sock_ops *context)
{
	struct bpf_sock *socket;
	struct in_force now;

	if (context->op != BPF_SOCK_OPS_TCP_LISTEN_CB && context->op != BPF_SOCK_OPS_TCP_CONNECT_CB)
		return 1;
	socket = context->sk;
	if (!socket || !read_policy(&now))
		return 1;
	if (context->op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		listens(context, socket, &now);
	else
		begins(context, socket, &now);
	return 1;
}

/*
 * The class number that a governed socket's packet is to have. A TCP connection keeps it; a
 * listener and datagram sockets look it up for each packet.
 */
static __always_inline __u32 demanded(const struct in_force *now, struct usher_governed *own,
				      const struct bpf_sock *socket, __u32 application,
				      const struct ends *ends)
{
	int keeps = socket->protocol == IPPROTO_TCP && socket->state != BPF_TCP_LISTEN &&
		    socket->state != BPF_TCP_CLOSE && ends->protocol == PROTOCOL_TCP;
	__u64 class = own->class;
	int by_local;

	if (keeps && IS_CURRENT(now, class) && (__u32) class)
		return class;
	class = treat(now, application, &ends->peer, ends->local, ends->remote, &by_local);
	if (keeps)
		own->class = STAMPED(now, class);
	return class;
}

#define KEEP(reason)                                                                               \
	do {                                                                                       \
		COUNT(reason);                                                                     \
		return 0;                                                                          \
	} while (0)

#define PASS(reason)                                                                               \
	do {                                                                                       \
		COUNT(reason);                                                                     \
		return 1;                                                                          \
	} while (0)

/*
 * Hook: ingress of the cgroup, because it sees a packet with its socket before TCP does: SYNs
 * before the queue of the listener, the last ACK of a handshake, UDP. The packet has been
 * decrypted, and has the mark that its SA has set. Kernel 4.10.
 */
SEC("cgroup_skb/ingress")
int arrives(struct __sk_buff *packet)
{
	struct bpf_sock *socket = packet->sk;
	struct ends ends __aligned = {};
	__u32 application, class, mark;
	struct usher_governed *own;
	struct in_force now;

	if (!socket || packet->ifindex == LOOPBACK_INTERFACE)
		return 1;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return 1;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!own || !read_policy(&now))
		return 1;
	application = application_of(&now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return 1;
	if (!read_ends(packet, 0, 0, &ends))
		KEEP(refused_unreadable);
	/* With net.ipv4.conf.*.route_localnet a neighbour could send from this host's address. */
	if (is_loopback(&ends.peer))
		KEEP(refused_plain);
	class = demanded(&now, own, socket, application, &ends);
	mark = class_in(&now, packet->mark);
	if (class == USHER_CLASS_DISCARD)
		KEEP(refused_discard);
	if (class == USHER_CLASS_BYPASS)
		PASS(arrived_plain);
	if (is_same_class(class, mark))
		PASS(arrived_protected);
	if (mark >= USHER_CLASS_LOWEST)
		KEEP(refused_class);
	if (may_be_plain(class, &ends.peer))
		PASS(arrived_plain);
	KEEP(refused_plain);
}

/*
 * Whether a packet is the socket's own plaintext: not what a tunnel or UDP encapsulation has made
 * of it, which passes here again with the same socket.
 */
static __always_inline int is_own(const struct bpf_sock *socket, const struct ends *ends)
{
	if (socket->type == SOCK_RAW)
		return 1;
	if (socket->protocol != ends->protocol)
		return 0;
	return ends->protocol != PROTOCOL_UDP || socket->src_port == ends->local;
}

/*
 * Hook: egress of the cgroup, because it sees packets as they leave, after the SPD has been
 * applied, with their socket (a listener for its answers), and before fragmentation. Kernel 4.10.
 */
SEC("cgroup_skb/egress")
int leaves(struct __sk_buff *packet)
{
	struct bpf_sock *socket = packet->sk;
	struct ends ends __aligned = {};
	struct usher_governed *own;
	__u32 application, class;
	struct in_force now;

	if (!socket || packet->ifindex == LOOPBACK_INTERFACE)
		return 1;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return 1;
	own = bpf_sk_storage_get(&sockets, socket, 0, 0);
	if (!own || !read_policy(&now))
		return 1;
	application = application_of(&now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return 1;
	if (!read_ends(packet, 0, 1, &ends))
		KEEP(kept_unreadable);
	if (ends.protocol == PROTOCOL_ESP || ends.protocol == PROTOCOL_AH)
		PASS(left_protected);
	if (!is_own(socket, &ends))
		return 1;
	class = demanded(&now, own, socket, application, &ends);
	if (may_be_plain(class, &ends.peer))
		PASS(left_plain);
	if (class == USHER_CLASS_DISCARD)
		KEEP(kept_discard);
	KEEP(kept_plain);
}

#define ETHERNET_HEADER 14

/*
 * Run by user space (BPF_PROG_TEST_RUN) with a leaving packet behind an Ethernet header, and the
 * application as its mark: returns the class number. Attached nowhere. Kernel 4.12.
 */
SEC("tc")
int decide(struct __sk_buff *packet)
{
	struct ends ends __aligned = {};
	struct in_force now;
	int by_local;

	if (!read_policy(&now) || !read_ends(packet, ETHERNET_HEADER, 1, &ends))
		return USHER_CLASS_NONE;
	return treat(&now, packet->mark, &ends.peer, ends.local, ends.remote, &by_local);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
