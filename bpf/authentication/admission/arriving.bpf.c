// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reads tokens at netfilter's LOCAL_IN, in place of the filter at every interface (docs/adr/0063).
 *
 * Here a packet is as the listener will see it: decrypted and checked by IPsec, reassembled from
 * its fragments, without tags and tunnels, from any interface. No other program reads tokens then.
 * The tables are those of admission.bpf.c.
 *
 * The program runs after `require` (bpf/authentication/protected). A packet without the protection
 * that its service demands does not come here: it spends no token and leaves no note.
 */
#include <linux/if_ether.h>

#include "entries.bpf.h"
#include "usher_netfilter.h"

static __always_inline int load(const struct bpf_dynptr *packet, __u32 offset, void *to, __u32 size)
{
	return !bpf_dynptr_read(to, size, packet, offset, 0);
}

static __always_inline int load_at_hand(const struct bpf_dynptr *packet, __u32 offset, void *to,
					__u32 size)
{
	return load(packet, offset, to, size);
}

/* No packet is shorter: the kernel has dropped those without a whole IP header. */
static __always_inline int is_shorter(const struct bpf_dynptr *packet, __u32 size)
{
	return 0;
}

static __always_inline __be16 network_protocol(const struct bpf_dynptr *packet, __u32 *offset)
{
	__u8 first;

	if (!load(packet, 0, &first, sizeof(first)))
		return 0;
	return first >> 4 == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

#include "token.bpf.h"

/*
 * Hook: netfilter's LOCAL_IN of the network namespace, because it is the only one that sees packets
 * after IPsec and before sk_lookup, on every interface, and whole: for this link the kernel
 * reassembles fragments. It accepts every packet; choose_queue refuses the SYNs that have no entry.
 * Kernel 6.6.
 */
SEC("netfilter")
int check_token(struct bpf_nf_ctx *context)
{
	struct usher_connection nobody __aligned = {};
	struct bpf_dynptr packet;

	if (bpf_dynptr_from_skb((struct __sk_buff *)context->skb, 0, &packet))
		take_note(&nobody, 0, UNREAD_ANYONES);
	else
		read_token(&packet);
	return NF_ACCEPT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
