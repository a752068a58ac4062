// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Keeps unprotected packets from the ports of services that demand protection by IPsec
 * (docs/adr/0055).
 *
 * An inbound SA marks the packets that it has decrypted or checked with the number of its class.
 * The program compares it with what the service demands: for every TCP packet to the port, so from
 * the SYN on, before sk_lookup sees it. It looks at no connection and keeps no state.
 *
 * Packets that stay on this host are left alone: the kernel never protects them.
 */
#include "usher_maps.h"
#include "usher_marks.h"
#include "usher_protected.h"
#include "usher_tcp.h"

/*
 * Ports with a demand. Key: the port in host byte order.
 * Limit: every port there is.
 */
SPARSE_TABLE(demands, 65536, __u32, struct usher_demand);

/* Counters of events, one copy per CPU. Key: 0. */
CPU_TABLE(counters, 1, struct usher_protected_counters);

#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_protected_counters *here = first_of(&counters);                       \
		if (here)                                                                          \
			here->what++;                                                              \
	} while (0)

/*
 * Hook: netfilter's LOCAL_IN of the network namespace, because it is the only one that sees packets
 * after IPsec and before sk_lookup, on every interface, and whole: for this link the kernel
 * reassembles fragments. ESP and AH packets come by first, and the packets in them come by again
 * after decryption. Kernel 6.6.
 */
SEC("netfilter")
int require(struct bpf_nf_ctx *context)
{
	struct tcp_ends ends __aligned = {};
	struct usher_demand *demand;
	enum tcp_reading found;
	__u32 port, class;

	if (context->state->in->ifindex == LOOPBACK_INTERFACE)
		return NF_ACCEPT;
	found = read_tcp(context->skb, 0, &ends);
	if (found == NO_TCP)
		return NF_ACCEPT;
	if (found == UNREADABLE) {
		COUNT(unreadable);
		return NF_DROP;
	}
	port = ends.destination_port;
	demand = bpf_map_lookup_elem(&demands, &port);
	if (!demand)
		return NF_ACCEPT;
	class = class_in_mark(context->skb->mark, demand->shift);
	if (demand->classes >> class & 1)
		return COUNTED(protected, NF_ACCEPT);
	return COUNTED(refused, NF_DROP);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
