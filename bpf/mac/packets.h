/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Dispatchers of hooks about packets that arrive and leave, and the program that numbers the
 * elements of interfaces.
 *
 * A packet has the label of the interface by which it arrived: the one that hands it to the network
 * layer, so a bridge and not its port. Between sockets of this host that is `lo`, since the kernel
 * forgets the sender there. A UNIX datagram has the label of the process that sends it.
 *
 * Packets come in any context. The current process has nothing to do with them, but for UNIX
 * datagrams, which the sending process itself delivers.
 */
#ifndef USHER_MAC_PACKETS_H
#define USHER_MAC_PACKETS_H

#include "socket_calls.h"

#define AF_UNIX 1

struct sk_buff;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net___mac {
	__u64 net_cookie;
};

struct network_of___mac {
	struct net___mac *net;
};

struct net_device___mac {
	char name[USHER_MAC_INTERFACE_NAME];
	int ifindex;
	struct network_of___mac nd_net;
};

struct sock___mac_call {
	struct sock_common___mac __sk_common;
	__u16 sk_type;
	__u16 sk_protocol;
	__u8 sk_kern_sock : 1;
	kuid_t sk_uid;
};

struct sk_buff___mac {
	struct sock___mac_call *sk;
	struct net_device___mac *dev;
};

struct nsproxy___mac {
	struct net___mac *net_ns;
};

struct task_struct___mac_network {
	struct nsproxy___mac *nsproxy;
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/* The label of a network interface, which may be NULL. */
static __always_inline void read_interface_label(struct usher_mac_label *label,
						 const struct net_device___mac *device)
{
	struct usher_mac_interface wanted = { .network = device->nd_net.net->net_cookie };
	void *labels = first_of(&interfaces);
	struct usher_mac_label *found = NULL;

	/* The kernel leaves what it likes behind the zero that ends a name. */
	if (labels && bpf_probe_read_kernel_str(wanted.name, sizeof(wanted.name), device->name) > 0)
		found = bpf_map_lookup_elem(labels, &wanted);
	*label = found ? *found : no_label;
}

/* Reads a packet at a socket. Returns 0 for a socket of the kernel, such as the one for ICMP and
 * neighbours: modules are not asked about these. */
static __always_inline int read_packet(struct usher_mac_packet *wanted,
				       const struct sock___mac_call *socket,
				       const struct net_device___mac *device)
{
	if (BPF_CORE_READ_BITFIELD_PROBED(socket, sk_kern_sock))
		return 0;
	wanted->family = socket->__sk_common.skc_family;
	wanted->kind = socket->sk_type;
	wanted->protocol = socket->sk_protocol;
	wanted->uid = socket->sk_uid.val;
	wanted->interface = device->ifindex;
	wanted->reserved = 0;
	return 1;
}

/* Hook: socket_sock_rcv_skb, because packets of all families pass it before a socket's queue. */
SEC("lsm/socket_sock_rcv_skb")
int BPF_PROG(dispatch_socket_sock_rcv_skb, struct sock *socket, struct sk_buff *packet)
{
	__u64 asked = modules_at(MAC_POINT_socket_deliver);
	const struct sk_buff___mac *arrived = bpf_core_cast(packet, struct sk_buff___mac);
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;

	if (!asked)
		return 0;
	if (!read_packet(&wanted, bpf_core_cast(socket, struct sock___mac_call), arrived->dev))
		return 0;
	be_nobody(&subject);
	if (begin_labels_by(&labels, asked, 0)) {
		read_socket_label(&labels.subject, socket);
		if (wanted.family == AF_UNIX)
			read_own_label(&labels.object);
		else
			read_interface_label(&labels.object, arrived->dev);
	}
	return mac_ask_socket_deliver(asked, &subject, &wanted, &labels);
}

/* At the root of control groups, because packets of all sockets of IP pass it behind the choice of
 * their interface. 0: refused. */
SEC("cgroup_skb/egress")
int dispatch_cgroup_egress(struct __sk_buff *packet)
{
	__u64 asked = modules_at(MAC_POINT_interface_transmit);
	const struct sk_buff___mac *leaves;
	struct usher_mac_subject subject;
	struct usher_mac_packet wanted;
	struct mac_labels labels;

	if (!asked)
		return 1;
	leaves = bpf_core_cast(bpf_cast_to_kern_ctx(packet), struct sk_buff___mac);
	if (!read_packet(&wanted, leaves->sk, leaves->dev))
		return 1;
	be_nobody(&subject);
	if (begin_labels_by(&labels, asked, 0)) {
		read_socket_label(&labels.subject, (void *)packet->sk);
		read_interface_label(&labels.object, leaves->dev);
	}
	return !mac_ask_interface_transmit(asked, &subject, &wanted, &labels);
}

/*
 * Answers struct usher_mac_numbering, for user space, which writes labels of interfaces: elements
 * are numbered here only.
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
