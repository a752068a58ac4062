/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Dispatchers of hooks about packets that arrive and leave, at sockets and at interfaces, and the
 * program that numbers the elements of interfaces.
 *
 * A packet has the label of the interface by which it arrived: the one that hands it to the network
 * layer, so a bridge and not its port. Between sockets of this host that is `lo`, since the kernel
 * forgets the sender there; also for this host's copy of its own multicast and broadcast, which
 * comes by no interface. A UNIX datagram, and a netlink message of a process, has the label of the
 * process that sends it: programs do not find the storage of the sending socket (6.18).
 *
 * Packets come in any context, with any current process. Only UNIX datagrams and messages of
 * netlink are delivered by the sending process itself.
 */
#ifndef USHER_MAC_PACKETS_H
#define USHER_MAC_PACKETS_H

#include "socket_calls.h"
#include "usher_ends.h"

/* Results at tcx: to the next program, or to nowhere (linux/bpf.h of kernel 6.6). */
#define TC_PASS_ON (-1)
#define TC_DROP 2

struct sk_buff;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock___mac_call {
	struct sock_common___mac __sk_common;
	__u16 sk_type;
	__u16 sk_protocol;
	__u8 sk_kern_sock : 1;
	kuid_t sk_uid;
};

struct tcp_sock___mac {
	__u8 is_mptcp : 1;
};

struct sk_buff___mac {
	struct sock___mac_call *sk;
	struct net_device___mac *dev;
	char cb[48];
	__u8 pkt_type : 3;
};

/* In `cb` of a netlink message. */
struct netlink_skb_parms {
	__u32 portid; /* of the sending socket; 0: the kernel's */
};

struct nsproxy___mac {
	struct net___mac *net_ns;
};

struct task_struct___mac_network {
	struct nsproxy___mac *nsproxy;
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/* The label of a network interface, which may be NULL, or of `lo` in its network namespace. */
static __always_inline const struct usher_mac_label *
label_of_interface(const struct net_device___mac *device, int is_loopback)
{
	struct usher_mac_interface wanted = {};
	void *labels = first_of(&interfaces);
	const struct usher_mac_label *found;

	/* No interface has one. */
	if (!labels)
		return &blank_label;
	wanted.network = device->nd_net.net->net_cookie;
	if (is_loopback)
		__builtin_memcpy(wanted.name, "lo", 2);
	else
		copy_device_name(wanted.name, device);
	found = bpf_map_lookup_elem(labels, &wanted);
	return found ? found : &blank_label;
}

/* Replaces an interface by `lo` of its network namespace. */
static __always_inline void be_loopback(struct usher_mac_device *interface)
{
	interface->number = LOOPBACK_INTERFACE;
	__builtin_memset(interface->name, 0, sizeof(interface->name));
	__builtin_memcpy(interface->name, "lo", 2);
}

/* Whether no process has this socket. The kernel makes those below an MPTCP socket, for its
 * process. */
static __always_inline int is_of_kernel(const struct sock___mac_call *socket)
{
	const struct tcp_sock___mac *tcp = bpf_core_cast(socket, struct tcp_sock___mac);

	if (!BPF_CORE_READ_BITFIELD(socket, sk_kern_sock))
		return 0;
	if (socket->sk_type != SOCK_STREAM || socket->sk_protocol != IPPROTO_TCP ||
	    !bpf_core_field_exists(struct tcp_sock___mac, is_mptcp))
		return 1;
	return !BPF_CORE_READ_BITFIELD(tcp, is_mptcp);
}

/* Whether the calling process sends this packet to a socket, which gets it at once. */
static __always_inline int is_sent_now(__u32 family, const struct sk_buff___mac *packet)
{
	if (family != AF_NETLINK)
		return family == AF_UNIX;
	return bpf_core_cast(packet->cb, struct netlink_skb_parms)->portid != 0;
}

/* Reads a packet at a socket. */
static __always_inline void read_packet(struct usher_mac_packet *wanted,
					const struct sock___mac_call *socket,
					const struct net_device___mac *device)
{
	wanted->family = socket->__sk_common.skc_family;
	wanted->kind = socket->sk_type;
	wanted->protocol = socket->sk_protocol;
	wanted->uid = socket->sk_uid.val;
	read_device(&wanted->interface, device);
}

/* The word of a packet's access (remembered.h): whether its interface is another one than `lo`. */
static __always_inline __u64 access_of_packet(__u32 point, __u32 interface)
{
	return access_at(point, interface > LOOPBACK_INTERFACE);
}

/* The label of a packet that is delivered. */
static __always_inline const struct usher_mac_label *
label_of_packet(__u32 family, const struct sk_buff___mac *packet, int is_loopback)
{
	const struct usher_mac_process *process;

	if (!is_sent_now(family, packet))
		return label_of_interface(packet->dev, is_loopback);
	process =
	    bpf_task_storage_get(&processes, bpf_get_current_task_btf()->group_leader, NULL, 0);
	return process ? &process->label : &blank_label;
}

/* Hook: socket_sock_rcv_skb, because packets of all families pass it before a socket's queue.
 * Modules are not asked about sockets of the kernel, such as the one for ICMP and neighbours. */
SEC("lsm/socket_sock_rcv_skb")
int BPF_PROG(dispatch_socket_sock_rcv_skb, struct sock *socket, struct sk_buff *packet)
{
	struct mac_asker owner;
	usher_mac_slots asked = modules_near_socket(MAC_POINT_socket_deliver, socket, &owner);
	const struct sk_buff___mac *arrived = bpf_core_cast(packet, struct sk_buff___mac);
	const struct sock___mac_call *own = (const struct sock___mac_call *)socket;
	const struct usher_mac_label *label = &blank_label;
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;
	__u64 access;
	int is_loopback;

	if (!asked || is_of_kernel(own))
		return 0;
	/* For the copy the kernel names the interface by which the packet leaves. */
	is_loopback = BPF_CORE_READ_BITFIELD((const struct sk_buff___mac *)packet, pkt_type) ==
		      PACKET_LOOPBACK;
	if (owner.slots & asked)
		label = label_of_packet(own->__sk_common.skc_family, arrived, is_loopback);
	access = access_of_packet(MAC_POINT_socket_deliver,
				  is_loopback ? LOOPBACK_INTERFACE : arrived->dev->ifindex);
	asked = begin_known_labels(&labels, asked, &owner, label, access);
	if (!asked)
		return 0;
	read_packet(&wanted, own, arrived->dev);
	if (is_loopback)
		be_loopback(&wanted.interface);
	be_nobody(&subject);
	return mac_ask_socket_deliver(asked, &subject, &wanted, &labels);
}

/* At the root of control groups, because packets of all sockets of IP pass it behind the choice of
 * their interface. 0: refused. */
SEC("cgroup_skb/egress")
int dispatch_cgroup_egress(struct __sk_buff *packet)
{
	struct mac_asker owner;
	usher_mac_slots asked =
	    modules_near_socket(MAC_POINT_interface_transmit, (void *)packet->sk, &owner);
	const struct usher_mac_label *label = &blank_label;
	const struct sk_buff___mac *leaves;
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;
	__u64 access;

	if (!asked)
		return 1;
	leaves = bpf_core_cast(bpf_cast_to_kern_ctx(packet), struct sk_buff___mac);
	if (is_of_kernel(leaves->sk))
		return 1;
	if (owner.slots & asked)
		label = label_of_interface(leaves->dev, 0);
	access = access_of_packet(MAC_POINT_interface_transmit, packet->ifindex);
	asked = begin_known_labels(&labels, asked, &owner, label, access);
	if (!asked)
		return 1;
	read_packet(&wanted, leaves->sk, leaves->dev);
	be_nobody(&subject);
	return !mac_ask_interface_transmit(asked, &subject, &wanted, &labels);
}

/* Reads a packet at an interface, of whatever sender and receiver, and begins its labels. */
static __always_inline void read_passing(struct usher_mac_packet *wanted,
					 struct usher_mac_subject *subject,
					 struct mac_labels *labels, usher_mac_slots asked,
					 const struct mac_asker *nobody, struct __sk_buff *packet)
{
	const struct sk_buff___mac *passing =
	    bpf_core_cast(bpf_cast_to_kern_ctx(packet), struct sk_buff___mac);

	__builtin_memset(wanted, 0, sizeof(*wanted));
	read_device(&wanted->interface, passing->dev);
	be_nobody(subject);
	if (begin_labels(labels, asked, nobody))
		labels->object = *label_of_interface(passing->dev, 0);
}

/* At tcx of each interface (kernel 6.6), before its other programs, because packets of all senders
 * and receivers pass it. Packet sockets that capture, and XDP, get a packet before. */
SEC("tcx/ingress")
int dispatch_tc_ingress(struct __sk_buff *packet)
{
	struct mac_asker nobody;
	usher_mac_slots asked =
	    those_about_nobody(modules_at(MAC_POINT_interface_receive), &nobody);
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;

	if (!asked)
		return TC_PASS_ON;
	read_passing(&wanted, &subject, &labels, asked, &nobody, packet);
	return mac_ask_interface_receive(asked, &subject, &wanted, &labels) ? TC_DROP : TC_PASS_ON;
}

/* As dispatch_tc_ingress, where packets leave. XDP, and packet sockets with PACKET_QDISC_BYPASS,
 * bypass it. */
SEC("tcx/egress")
int dispatch_tc_egress(struct __sk_buff *packet)
{
	struct mac_asker nobody;
	usher_mac_slots asked = those_about_nobody(modules_at(MAC_POINT_interface_send), &nobody);
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;

	if (!asked)
		return TC_PASS_ON;
	read_passing(&wanted, &subject, &labels, asked, &nobody, packet);
	return mac_ask_interface_send(asked, &subject, &wanted, &labels) ? TC_DROP : TC_PASS_ON;
}

/*
 * Answers struct usher_mac_numbering, for user space, which writes labels of interfaces: only the
 * kernel numbers elements.
 */
SEC("syscall")
int number_element(struct usher_mac_numbering *question)
{
	const struct task_struct___mac_network *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct___mac_network);
	struct usher_mac_numbered wanted = question->wanted;
	long number = number_of(&wanted, USHER_MAC_ELEMENTS);

	question->number = number > 0 ? number : 0;
	question->network = task->nsproxy->net_ns->net_cookie;
	return 0;
}

#endif
