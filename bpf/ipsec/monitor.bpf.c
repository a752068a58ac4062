// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The monitor's programs at calls: see the sockets of governed programs, and give them the marks
 * that select entries of the SPD (docs/adr/0051). Those at packets are in packets.bpf.c.
 *
 *     made        marks a socket at its creation, before its first packet;
 *     connects4   marks it for its peer, and refuses peers that the policy discards;
 *     sends4      the same for datagrams with a destination of their own;
 *     listens     a listener has no mark: its answers take the mark of the SYN, which is that of
 *                 the SA that protected it (net.ipv4.tcp_fwmark_accept);
 *     keeps       refuses a governed program's changes of the mark, and replaces that of a datagram
 *                 socket which was connected before the policy;
 *     asks_peer4  finds sockets that another program has made and passed on; so does `keeps`.
 *
 * Sockets of other programs cost a look-up that finds nothing.
 *
 * Kernel 6.1 or later.
 */
#include "packets.h"
#include "sockets.h"

/* The numbers that signatures have in marks. Only user space's next process reads them: sockets
 * keep marks with these numbers. Limit: twice the signatures of the widest mask, those of a policy
 * and of the next one. Full: the next policy is refused. */
SPARSE_TABLE(signatures, 131072, struct usher_signature, __u32);

static __always_inline int refuse_socket(int error)
{
	COUNT(sockets_refused);
	bpf_set_retval(-error);
	return 0;
}

/* A program that only the next policy governs makes a socket: once that policy is in force the
 * socket is the program's. Without room for its entry, the socket is found as older ones are. */
static __always_inline void made_before(struct bpf_sock *socket)
{
	struct usher_governed fresh __aligned = {};
	struct in_force next = {};

	if (read_next_policy(&next) && set_maker(&next, &fresh, bpf_get_current_task_btf()))
		bpf_sk_storage_get(&sockets, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/*
 * Hook: creation of sockets in the cgroup, because nothing can have been sent by then, and the
 * maker is known. Programs that are refused MPTCP use TCP. Kernel 4.10; bpf_set_retval 5.18.
 */
SEC("cgroup/sock_create")
int made(struct bpf_sock *socket)
{
	struct usher_governed fresh __aligned = {};
	struct usher_policy_entry *entry = 0;
	struct in_force now;

	if (read_policy(&now))
		entry = set_caller(&now, &fresh);
	if (!entry) {
		made_before(socket);
		return 1;
	}
	if (is_refused(socket->protocol))
		return refuse_socket(EPROTONOSUPPORT);
	govern(&now, &fresh, entry, socket->family);
	if (!bpf_sk_storage_get(&sockets, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse_socket(ENOMEM);
	socket->mark = (socket->mark & ~now.mask) | ((__u32)fresh.mark & now.mask);
	COUNT(sockets);
	return 1;
}

/* Clears our bits of the mark of a socket whose maker and user are no longer governed: its packets
 * are treated like those of other programs. The call passes. */
static __always_inline int loses_mark(void *context, const struct in_force *now, __u32 present)
{
	if (set_mark(context, now, present, 0))
		COUNT(unmarked);
	return 1;
}

/* A call that makes a governed socket send to a peer. */
struct sending {
	struct in_force now;
	struct bpf_sock *socket;
	struct usher_governed *own;
	__u32 application;
	__u32 class;
	__u32 patterns; /* of the items that have decided; 0: ports do not matter */
};

/* The outcomes of a call that makes a socket send; programs return only the first two. */
#define REFUSED 0
#define PERMITTED 1
#define GOVERNED 2

/* Looks up how the policy treats packets from the call's socket to the peer. If it returns
 * GOVERNED, `sending` has the class. */
static __always_inline int looks_up(struct bpf_sock_addr *context, const struct peer *peer,
				    struct sending *sending)
{
	struct bpf_sock *socket = context->sk;
	int full;

	if (!socket || !read_policy(&sending->now))
		return PERMITTED;
	sending->socket = socket;
	sending->own = GOVERNED_BY_CALLER(&sending->now, socket, socket->family, &full);
	if (!sending->own)
		return full ? REFUSED : PERMITTED;
	sending->application = application_of(&sending->now, sending->own, socket->family);
	if (sending->application == USHER_UNGOVERNED)
		return loses_mark(context, &sending->now, socket->mark);
	sending->class = treat(&sending->now, sending->application, peer, socket->src_port,
			       bpf_ntohs((__be16)context->user_port), &sending->patterns);
	if (sending->class != USHER_CLASS_DISCARD)
		return GOVERNED;
	return COUNTED(discarded, REFUSED);
}

/* Sets our bits of the mark of the call's socket. */
static __always_inline int marks(struct bpf_sock_addr *context, const struct sending *sending,
				 __u32 mark)
{
	if (!set_mark(context, &sending->now, sending->socket->mark, mark))
		return PERMITTED;
	return COUNTED(unmarked, REFUSED);
}

/* Returns 1 if an item names a local port. */
static __always_inline int names_local(__u32 patterns)
{
	return !!(patterns &
		  (1 << USHER_PATTERN_LOCAL | 1 << (USHER_PATTERN_LOCAL | USHER_PATTERN_REMOTE)));
}

/* Returns 1 if the program writes the ports of the socket's packets itself. */
static __always_inline int writes_ports(struct bpf_sock_addr *context)
{
	return context->type == SOCK_RAW && has_ports(context->protocol);
}

/*
 * The kernel chooses the local port of an unbound TCP socket later, and items that name the port
 * apply then (`begins`). A program that may use only such ports binds before it connects. Where
 * ports matter, a datagram socket keeps the mark of its creation: its datagrams may go to other
 * ports as well, and the SPD entries of the signature compare the ports of each. They see no ports
 * in what a raw socket sends.
 */
static __always_inline int connects(struct bpf_sock_addr *context, const struct peer *peer)
{
	struct sending sending = {};
	int result = looks_up(context, peer, &sending);
	__u32 mark, class;
	int is_open;

	if (result != GOVERNED)
		return result;
	is_open = names_local(sending.patterns) && !sending.socket->src_port;
	class = is_open ? USHER_CLASS_NONE : sending.class;
	mark = sending.class << sending.now.shift;
	if (context->type != SOCK_STREAM) {
		class |= USHER_CLASS_ONLY_SHOWN;
		if (sending.patterns && !writes_ports(context))
			mark = sending.own->mark;
	}
	result = marks(context, &sending, mark);
	if (result == PERMITTED)
		sending.own->class = STAMPED(&sending.now, class);
	return result;
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
	if (!(peer->words[0] | peer->words[1] | peer->words[2] | peer->words[3]))
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

/* The class number that the policy demands for packets between the socket and its own peer. */
static __always_inline __u32 class_to_own_peer(const struct sending *sending)
{
	const struct bpf_sock *socket = sending->socket;
	struct peer peer;
	__u32 patterns;

	set_peer_of(&peer, socket);
	return treat(&sending->now, sending->application, &peer, socket->src_port,
		     bpf_ntohs(socket->dst_port), &patterns);
}

/*
 * A datagram with a destination of its own needs the mark of the socket's creation. A socket that
 * was connected may have another mark: its first such datagram still leaves by that, and `leaves`
 * drops it if it must not. But `leaves` lets the datagrams of a connection with a former signature
 * pass, so a datagram of another class is refused here.
 */
static __always_inline int sends(struct bpf_sock_addr *context, const struct sending *sending)
{
	__u32 mark = sending->own->mark, former = sending->socket->mark, signature;

	if ((former & sending->now.mask) == (mark & sending->now.mask))
		return PERMITTED;
	COUNT(corrected);
	if (!marks(context, sending, mark))
		return REFUSED;
	signature = signature_in(&sending->now, former);
	return !signature || signature == signature_in(&sending->now, mark) ||
	       !is_connected(sending->socket) || sending->class == class_to_own_peer(sending);
}

/* Hooks: sendmsg of the cgroup, because unconnected UDP names its peer there. Kernel 4.18. */
SEC("cgroup/sendmsg4")
int sends4(struct bpf_sock_addr *context)
{
	__be32 address = context->user_ip4;
	struct sending sending = {};
	struct peer peer;
	int result;

	set_peer4(&peer, address ? address : bpf_htonl(0x7f000001));
	result = looks_up(context, &peer, &sending);
	return result == GOVERNED ? sends(context, &sending) : result;
}

/*
 * Makes the kernel forget the route of a socket's connection, and with it the SA for its ports: a
 * connected IPv6 socket would use the route for all ports of the peer (ip6_sk_dst_lookup_flow). A
 * change of the mark does that. If another thread sends meanwhile, its datagram may leave by the
 * class beside the signature, which is the class of this datagram.
 */
static __always_inline int forgets_route(struct bpf_sock_addr *context,
					 const struct sending *sending)
{
	__u32 connection = (__u32)sending->own->class & ~USHER_CLASS_ONLY_SHOWN;

	if (!is_connected(sending->socket) || sending->class == connection)
		return PERMITTED;
	return marks(context, sending,
		     signature_in(&sending->now, sending->own->mark) |
			 sending->class << sending->now.shift);
}

/* Like sends4, for IPv6 sockets. */
SEC("cgroup/sendmsg6")
int sends6(struct bpf_sock_addr *context)
{
	struct sending sending = {};
	struct peer peer;
	int result;

	set_destination6(&peer, context);
	result = looks_up(context, &peer, &sending);
	if (result != GOVERNED)
		return result;
	if (!sends(context, &sending) || !forgets_route(context, &sending))
		return REFUSED;
	return marks(context, &sending, sending.own->mark);
}

/* Returns 1 if the option gives the socket an IPsec policy of its own, or lets the program write IP
 * headers itself, with any protocol in them. */
static __always_inline int passes_by_policy(__u32 level, __u32 name)
{
	if (level == SOL_IP)
		return name == IP_IPSEC_POLICY || name == IP_XFRM_POLICY || name == IP_HDRINCL;
	return level == SOL_IPV6 &&
	       (name == IPV6_IPSEC_POLICY || name == IPV6_XFRM_POLICY || name == IPV6_HDRINCL);
}

/*
 * Returns the mark that a socket needs when a call sets its mark. It differs from the present mark
 * if the program connected the socket for datagrams before the policy came into force. No iterator
 * can set that mark, so any process with the socket does it by this call (`usher policy apply`),
 * without knowing the mark.
 */
static __always_inline __u32 needed_mark(const struct bpf_sock *socket, const struct in_force *now,
					 struct usher_governed *own)
{
	__u32 application, class, patterns, present = socket->mark;
	struct peer peer;

	if ((socket->protocol != IPPROTO_UDP && socket->protocol != IPPROTO_UDPLITE) ||
	    !is_connected(socket) || signature_in(now, present))
		return present;
	application = application_of(now, own, socket->family);
	set_peer_of(&peer, socket);
	class = treat(now, application, &peer, socket->src_port, bpf_ntohs(socket->dst_port),
		      &patterns);
	if (class == USHER_CLASS_DISCARD || leaves_as(class_in(now, present), class))
		return present;
	COUNT(remarked);
	own->class = STAMPED(now, class | USHER_CLASS_ONLY_SHOWN);
	return patterns ? (__u32)own->mark : class << now->shift;
}

/* Returns 1 if the option leaves the socket's treatment alone. A mark without our bits gets
 * them. */
static __always_inline int may_be_set(struct bpf_sockopt *context, const struct in_force *now,
				      struct usher_governed *own)
{
	__u32 *mark = context->optval, present, needed;

	if (context->level != SOL_SOCKET || context->optname != SO_MARK)
		return !passes_by_policy(context->level, context->optname);
	if (!context->optlen)
		return 0; /* Longer than a page: the kernel would take its beginning, unseen. */
	if (context->optlen < (int)sizeof(*mark) || (void *)(mark + 1) > context->optval_end)
		return 1; /* The kernel refuses it. */
	present = context->sk->mark;
	if (*mark & now->mask && (*mark & now->mask) != (present & now->mask))
		return 0;
	needed = needed_mark(context->sk, now, own);
	*mark = (*mark & ~now->mask) | (needed & now->mask);
	return 1;
}

/*
 * Hook: setsockopt of the cgroup, because a privileged program could otherwise give its socket
 * another mark, an IPsec policy of its own, or headers that look like those of an SA. Of a value
 * longer than a page this program sees only the first page: it refuses a longer mark, and judges
 * other options by their names. Kernel 5.3.
 */
SEC("cgroup/setsockopt")
int keeps(struct bpf_sockopt *context)
{
	struct bpf_sock *socket = context->sk;
	struct usher_governed *own;
	struct in_force now;
	int full;

	if (context->optlen > SMALLEST_PAGE)
		context->optlen = 0;
	if (!socket || !is_of_ip(socket->family) || !read_policy(&now))
		return 1;
	own = GOVERNED_BY_CALLER(&now, socket, socket->family, &full);
	if (!own)
		return !full;
	if (application_of(&now, own, socket->family) == USHER_UNGOVERNED)
		return 1;
	if (may_be_set(context, &now, own))
		return 1;
	COUNT(options_refused);
	return 0;
}

/* A program asks for an address of a socket that another program has made. */
static __always_inline int asks(struct bpf_sock_addr *context)
{
	struct bpf_sock *socket = context->sk;
	struct in_force now;
	int full;

	if (socket && read_policy(&now))
		GOVERNED_BY_CALLER(&now, socket, socket->family, &full);
	return 1;
}

/*
 * Hooks: getpeername and getsockname of the cgroup, because a program that another starts for a
 * connection (inetd) passes no hook before it reads, but most ask for an address first. They cannot
 * refuse. Kernel 5.8.
 */
SEC("cgroup/getpeername4")
int asks_peer4(struct bpf_sock_addr *context)
{
	return asks(context);
}

/* Like asks_peer4, for IPv6 sockets. */
SEC("cgroup/getpeername6")
int asks_peer6(struct bpf_sock_addr *context)
{
	return asks(context);
}

/* Like asks_peer4, for the socket's own address. */
SEC("cgroup/getsockname4")
int asks_own4(struct bpf_sock_addr *context)
{
	return asks(context);
}

/* Like asks_own4, for IPv6 sockets. */
SEC("cgroup/getsockname6")
int asks_own6(struct bpf_sock_addr *context)
{
	return asks(context);
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
	__u32 application, class, patterns;
	struct peer peer;

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
		      &patterns);
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

char LICENSE[] SEC("license") = "Dual BSD/GPL";
