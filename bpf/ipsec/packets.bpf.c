// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The monitor's programs at packets: drop packets of governed sockets that are not protected as the
 * policy demands (docs/adr/0051).
 *
 *     arrives     compares a packet's mark, and so its SA, with the policy, before TCP sees a SYN;
 *     leaves      the last check: drops plaintext that should have been protected, and packets
 *                 that are protected by another class;
 *     decide      decides about a packet for user space: for tests and explanations.
 *
 * The kernel never protects packets that stay on a host. So the programs leave the loopback
 * interface alone. Packets of other programs' sockets cost a look-up that finds nothing.
 *
 * Kernel 6.1 or later.
 */
#include "packets.h"
#include "sockets.h"

/* Returns 1 if a socket of TCP in this state has one peer. */
static __always_inline int is_connection(__u32 state)
{
	return state != BPF_TCP_LISTEN && state != BPF_TCP_CLOSE;
}

/*
 * Returns the class number that the policy demands for a governed socket's packet. A TCP connection
 * keeps it; a listener and datagram sockets look it up for each packet.
 */
static __always_inline __u32 demanded(const struct in_force *now, struct usher_governed *own,
				      const struct bpf_sock *socket, __u32 application,
				      const struct ends *ends)
{
	int keeps = socket->type == SOCK_STREAM && is_connection(socket->state) &&
		    ends->protocol == IPPROTO_TCP;
	__u64 class = own->class;
	__u32 patterns;

	if (keeps && IS_CURRENT(now, class) && (__u32) class)
		return class;
	class = treat(now, application, &ends->peer, ends->local, ends->remote, &patterns);
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
 * Returns 1 if a packet of a TCP connection has the protection that was looked up for the
 * connection. Nearly all protected packets take this path, so it reads as little as possible. Only
 * connections of TCP that the policy in force governs have a class of its generation.
 */
static __always_inline int is_protected_as_found(const struct usher_governed *own,
						 const struct bpf_sock *socket, __u32 mark)
{
	const volatile struct usher_ipsec_state *shared = first_of(&state);
	__u64 class = own->class;

	return shared && (__u32)(class >> 32) == shared->generation &&
	       is_same_class(class, class_in_mark(mark & shared->mask, shared->shift)) &&
	       is_connection(socket->state);
}

/* Finds the storage of a packet's socket. Returns 0 if the packet stays on the host, or its socket
 * has none. */
static __always_inline struct usher_governed *storage_of(struct __sk_buff *packet,
							 struct bpf_sock *socket)
{
	if (!socket || packet->ifindex == LOOPBACK_INTERFACE)
		return 0;
	return bpf_sk_storage_get(&sockets, socket, 0, 0);
}

/*
 * Hook: ingress of the cgroup, because it sees a packet with its socket before TCP does: SYNs
 * before the queue of the listener, the last ACK of a handshake, UDP. The packet has been
 * decrypted, and has the mark that its SA has set. Kernel 4.10.
 */
SEC("cgroup_skb/ingress")
int arrives(struct __sk_buff *packet)
{
	struct bpf_sock *socket = packet->sk;
	struct usher_governed *own = storage_of(packet, socket);
	struct ends ends __aligned = {};
	__u32 application, class, mark;
	struct in_force now;

	if (!own)
		return 1;
	if (is_protected_as_found(own, socket, packet->mark))
		PASS(arrived_protected);
	socket = bpf_sk_fullsock(socket);
	if (!socket || !read_policy(&now))
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

/* The port of ESP in UDP (NAT traversal), which is the IKE daemon's. */
#define NAT_TRAVERSAL 4500

/* Returns 1 if a raw socket can write headers like those of an SA itself. */
static __always_inline int writes_headers(const struct bpf_sock *socket)
{
	return socket->type == SOCK_RAW &&
	       (socket->protocol == IPPROTO_ESP || socket->protocol == IPPROTO_AH ||
		socket->protocol == IPPROTO_RAW);
}

/* Returns 1 if an SA has made the packet: ESP, AH, or ESP in UDP. A packet whose header a program
 * may have written itself does not count. */
static __always_inline int is_transformed(const struct bpf_sock *socket, const struct ends *ends)
{
	if (ends->protocol == IPPROTO_UDP)
		return ends->local == NAT_TRAVERSAL && socket->type != SOCK_RAW &&
		       (socket->protocol != IPPROTO_UDP || socket->src_port != NAT_TRAVERSAL);
	return (ends->protocol == IPPROTO_ESP || ends->protocol == IPPROTO_AH) &&
	       !writes_headers(socket);
}

/* Returns 1 if a protected packet has the class of a network in which ports do not matter. If its
 * mark has no class, an SA that is not Usher's has protected it. */
static __always_inline int is_of_network(__u32 class, const struct bpf_sock *socket, __u32 marked)
{
	if (class == USHER_CLASS_BYPASS)
		return 1;
	if (marked >= USHER_CLASS_LOWEST)
		return is_same_class(class, marked);
	return class != USHER_CLASS_DISCARD && socket->type != SOCK_RAW;
}

/*
 * Returns 1 if the ports of a protected datagram have been compared with the policy in force. An SA
 * changes only the class in a mark. So if the mark has the signature, the SPD has compared the
 * ports. An application without a signature has one class.
 */
static __always_inline int are_ports_compared(const struct in_force *now,
					      const struct usher_governed *own, __u32 mark)
{
	__u32 signature = signature_in(now, own->mark);

	if (signature_in(now, mark) != signature)
		return 0;
	return signature || is_same_class(class_in(now, own->mark), class_in(now, mark));
}

/*
 * Returns 1 if a protected packet has the class that the policy demands. Its mark has the class of
 * the SA, if that is Usher's (set_mark_out), otherwise of its socket. Its ports are encrypted. A
 * connection knows its own ports. An answer of a listener has the class of the SYN, which `arrives`
 * has compared. A closed TCP socket sends only a reset. The SPD has compared the ports of a
 * datagram; if it did so by a former signature, they are those of the connection (see `sends`).
 * Nothing compares ports that a raw socket writes, and protocols without ports need no comparison.
 */
static __always_inline int has_class(const struct in_force *now, struct usher_governed *own,
				     const struct bpf_sock *socket, __u32 application,
				     const struct ends *ends, __u32 mark)
{
	__u32 marked = class_in(now, mark), class, patterns;
	struct usher_policy_entry *network;
	struct ends connection __aligned = {};

	if (socket->type != SOCK_STREAM || socket->state == BPF_TCP_CLOSE) {
		network = network_entry(now, application, &ends->peer);
		if (!network)
			return 0;
		if (!network->patterns)
			return is_of_network(network->class, socket, marked);
		if (socket->type == SOCK_STREAM)
			return 1;
		if (!has_ports(socket->protocol)) {
			class = treat(now, application, &ends->peer, 0, 0, &patterns);
			return is_of_network(class, socket, marked);
		}
		if (socket->type != SOCK_DGRAM)
			return 0;
		if (are_ports_compared(now, own, mark))
			return 1;
		if (!is_connected(socket) || !signature_in(now, mark))
			return 0;
	} else if (socket->state == BPF_TCP_LISTEN) {
		return 1;
	}
	set_peer_of(&connection.peer, socket);
	connection.local = socket->src_port;
	connection.remote = bpf_ntohs(socket->dst_port);
	connection.protocol = IPPROTO_TCP;
	class = demanded(now, own, socket, application, &connection);
	return class == USHER_CLASS_BYPASS || is_same_class(class, marked);
}

/* The first byte of an IPv4 header without options. */
#define IPV4_WITHOUT_OPTIONS 0x45

/* Returns 1 if a packet is ESP or AH directly after its IP header, which has no options. */
static __always_inline int is_plainly_transformed(const struct __sk_buff *packet)
{
	const __u8 *start = (const __u8 *)(long)packet->data;
	const struct ipv6hdr *ipv6 = (const struct ipv6hdr *)start;
	const struct iphdr *ipv4 = (const struct iphdr *)start;
	__u8 protocol;

	/* ESP and AH make every packet longer than either header. */
	if ((const void *)(ipv6 + 1) > (const void *)(long)packet->data_end)
		return 0;
	protocol = *start == IPV4_WITHOUT_OPTIONS ? ipv4->protocol : ipv6->nexthdr;
	return (*start == IPV4_WITHOUT_OPTIONS || *start >> 4 == 6) &&
	       (protocol == IPPROTO_ESP || protocol == IPPROTO_AH);
}

/* How a leaving packet is dropped; both values are results of programs. */
#define LEAVES_REFUSED 0 /* a datagram's call fails with EPERM */
#define LEAVES_LOST 2 /* the call does not see it (NET_XMIT_DROP) */

/*
 * If another policy has changed the socket's mark meanwhile, the packet is dropped as if it was
 * lost on the way: the next one has the new mark.
 */
static __always_inline int dropped(const struct in_force *now, const struct __sk_buff *packet,
				   const struct bpf_sock *socket)
{
	return (packet->mark ^ socket->mark) & now->mask ? LEAVES_LOST : LEAVES_REFUSED;
}

/* As `dropped`, for a packet whose mark the SA has set. A datagram that another class has protected
 * most likely had a former mark. */
static __always_inline int dropped_transformed(const struct bpf_sock *socket)
{
	int is_datagram = socket->protocol == IPPROTO_UDP || socket->protocol == IPPROTO_UDPLITE;

	return is_datagram && !is_connected(socket) ? LEAVES_LOST : LEAVES_REFUSED;
}

#define DROP_LEAVING(reason, how)                                                                  \
	do {                                                                                       \
		COUNT(reason);                                                                     \
		return how;                                                                        \
	} while (0)

/*
 * Hook: egress of the cgroup, because it sees packets as they leave, after the SPD has been
 * applied, with their socket (a listener for its answers), and before fragmentation. Kernel 4.10.
 */
SEC("cgroup_skb/egress")
int leaves(struct __sk_buff *packet)
{
	struct bpf_sock *socket = packet->sk;
	struct usher_governed *own = storage_of(packet, socket);
	struct ends ends __aligned = {};
	struct in_force now;
	__u32 application, class;

	if (!own)
		return 1;
	if (is_plainly_transformed(packet) && is_protected_as_found(own, socket, packet->mark))
		PASS(left_protected);
	socket = bpf_sk_fullsock(socket);
	if (!socket || !read_policy(&now))
		return 1;
	application = application_of(&now, own, socket->family);
	if (application == USHER_UNGOVERNED)
		return 1;
	if (!read_ends(packet, 0, 1, &ends))
		KEEP(kept_unreadable);
	if (is_transformed(socket, &ends)) {
		if (has_class(&now, own, socket, application, &ends, packet->mark))
			PASS(left_protected);
		DROP_LEAVING(kept_class, dropped_transformed(socket));
	}
	class = demanded(&now, own, socket, application, &ends);
	if (may_be_plain(class, &ends.peer))
		PASS(left_plain);
	if (class == USHER_CLASS_DISCARD)
		KEEP(kept_discard);
	DROP_LEAVING(kept_plain, dropped(&now, packet, socket));
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
	__u32 patterns;

	if (!read_policy(&now) || !read_ends(packet, ETHERNET_HEADER, 1, &ends))
		return USHER_CLASS_NONE;
	return treat(&now, packet->mark, &ends.peer, ends.local, ends.remote, &patterns);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
