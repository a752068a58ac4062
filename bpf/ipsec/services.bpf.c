// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Drops plaintext of services with protection, on this host and on others, even while the SPD lacks
 * Usher's entries (docs/adr/0065).
 *
 *     departs     drops answers of this host's services, and packets to those of other hosts, that
 *                 no SA of a demanded class is about to protect;
 *     enters      drops packets from services of other hosts that no SA has protected.
 *
 * The entries of the SPD do the protecting. These programs act only if somebody has removed the
 * entries, or if other entries come first.
 *
 * Packets that stay on this host, and those that it forwards, are left alone.
 */
#include "classes.h"
#include "usher_maps.h"
#include "usher_marks.h"
#include "usher_tcp.h"

#include <bpf/bpf_core_read.h>

/* The bit in a packet's reference to its route that says whether the reference is counted. */
#define NOT_COUNTED 1UL

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct xfrm_state {
	struct {
		__u32 reqid;
	} props;
};

struct dst_entry {
	struct xfrm_state *xfrm;
};

#pragma clang attribute pop

/* Services with a demand. Limit: 131,072. Full: user space gets the error, and the policy is not
 * put in force. */
SPARSE_TABLE(services, 131072, struct usher_ipsec_service, struct usher_ipsec_demand);

/* Counters of events, one copy per CPU. Key: 0. */
CPU_TABLE(service_counters, 1, struct usher_ipsec_service_counters);

#define COUNT(what)                                                                                \
	do {                                                                                       \
		struct usher_ipsec_service_counters *here = first_of(&service_counters);           \
		if (here)                                                                          \
			here->what++;                                                              \
	} while (0)

/* The demand of the service at this address and port. Without an address: of this host's
 * service. */
static __always_inline struct usher_ipsec_demand *demand_of(const __u8 address[16], __u16 port)
{
	struct usher_ipsec_service service __aligned = { .port = port };

	if (address)
		__builtin_memcpy(service.address, address, sizeof(service.address));
	return bpf_map_lookup_elem(&services, &service);
}

/*
 * Finds the classes that may protect a leaving packet. There are none while a demand is replaced by
 * one that shares no class with it. Returns 0 if the packet needs no protection. If its mark has a
 * class, the `application` block of its program decides in place of its destination's demand; the
 * monitor then decides which packets may leave in the clear.
 */
static __always_inline int demands_classes(const struct tcp_ends *ends, __u32 mark, __u32 *classes)
{
	struct usher_ipsec_demand *demand = demand_of(0, ends->source_port);
	__u32 class;

	if (demand) {
		*classes = demand->classes;
		return 1;
	}
	demand = demand_of(ends->destination, ends->destination_port);
	if (!demand)
		return 0;
	class = class_in_mark(mark, demand->shift);
	*classes = class == USHER_CLASS_NONE ? demand->classes : 1 << class;
	return class == USHER_CLASS_NONE || is_mandatory(class);
}

/*
 * Returns 1 if an SA of one of the classes is about to protect the packet. Its route has the SA. An
 * SA that is not Usher's has no class, and counts as every class.
 */
static __always_inline int is_to_be_protected(const struct sk_buff *skb, __u32 classes)
{
	struct dst_entry *route = (struct dst_entry *)(skb->_skb_refdst & ~NOT_COUNTED);
	struct xfrm_state *state = route ? BPF_CORE_READ(route, xfrm) : 0;
	__u32 number;

	if (!state)
		return 0;
	number = BPF_CORE_READ(state, props.reqid) - USHER_REQID;
	if (number > (CLASS_BITS - USHER_CLASS_LOWEST) / 2)
		return 1;
	return classes >> (USHER_CLASS_LOWEST + 2 * number) & 1;
}

/*
 * Hook: netfilter's POST_ROUTING of the network namespace, because every packet passes it with its
 * final route, even a packet without a socket or one that has waited for an SA. A packet passes it
 * before IPsec, with the SA in its route, and again as ESP or AH. Kernel 6.6.
 */
SEC("netfilter")
int departs(struct bpf_nf_ctx *context)
{
	struct tcp_ends ends __aligned = {};
	struct sk_buff *skb = context->skb;
	enum tcp_reading found;
	__u32 classes;

	if (skb->skb_iif || context->state->out->ifindex == LOOPBACK_INTERFACE)
		return NF_ACCEPT;
	found = read_tcp(skb, 1, &ends);
	if (found == NO_TCP)
		return NF_ACCEPT;
	if (found == UNREADABLE)
		return COUNTED(service_unreadable, NF_DROP);
	if (!demands_classes(&ends, skb->mark, &classes))
		return NF_ACCEPT;
	if (is_to_be_protected(skb, classes))
		return COUNTED(service_protected, NF_ACCEPT);
	return COUNTED(service_kept, NF_DROP);
}

/*
 * Hook: netfilter's LOCAL_IN of the network namespace, because it sees packets after IPsec, with
 * the mark that the SA has set, and whole. Packets to this host's services are the keeper's
 * business (bpf/authentication/protected). Kernel 6.6.
 */
SEC("netfilter")
int enters(struct bpf_nf_ctx *context)
{
	struct tcp_ends ends __aligned = {};
	struct usher_ipsec_demand *demand;
	enum tcp_reading found;

	if (context->state->in->ifindex == LOOPBACK_INTERFACE)
		return NF_ACCEPT;
	found = read_tcp(context->skb, 0, &ends);
	if (found == NO_TCP)
		return NF_ACCEPT;
	if (found == UNREADABLE)
		return COUNTED(service_unreadable, NF_DROP);
	demand = demand_of(ends.source, ends.source_port);
	if (!demand || class_in_mark(context->skb->mark, demand->shift) != USHER_CLASS_NONE)
		return NF_ACCEPT;
	return COUNTED(service_refused, NF_DROP);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
