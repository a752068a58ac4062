// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For tests only: a client that writes given bytes into its SYN, another program's filter that
 * loses packets, and one that marks them as an inbound SA does.
 */
#include <linux/pkt_cls.h>

#include "usher_maps.h"

#define SYN 2
#define OPTION_SIZE 20

struct option {
	__u8 bytes[OPTION_SIZE];
};

/* Key: the client's port in host byte order. Limit: 1024. Full: the test gets the error. */
HASH_TABLE(options, 1024, __u32, struct option);

/* The number of packets to lose, and the number that came. */
ARRAY_TABLE(losses, 2, __u64);

/* The mark that `mark` gives packets. Key: 0. */
ARRAY_TABLE(marks, 1, __u32);

SEC("tc")
int mark(struct __sk_buff *packet)
{
	__u32 *found = first_of(&marks);

	if (found)
		packet->mark = *found;
	return TC_ACT_UNSPEC;
}

SEC("sockops")
int write_token(struct bpf_sock_ops *context)
{
	__u32 port = context->local_port;
	struct option *option = bpf_map_lookup_elem(&options, &port);
	int flags = context->bpf_sock_ops_cb_flags;

	if (!option)
		return 1;
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		bpf_sock_ops_cb_flags_set(context, flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		bpf_sock_ops_cb_flags_set(context, flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (context->skb_tcp_flags & SYN)
			bpf_reserve_hdr_opt(context, OPTION_SIZE, 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (context->skb_tcp_flags & SYN)
			bpf_store_hdr_opt(context, option->bytes, OPTION_SIZE, 0);
		break;
	}
	return 1;
}

SEC("tc")
int lose(struct __sk_buff *packet)
{
	__u32 index = 0;
	__u64 *left = bpf_map_lookup_elem(&losses, &index), *seen;

	index = 1;
	seen = bpf_map_lookup_elem(&losses, &index);
	if (!left || !seen)
		return TC_ACT_UNSPEC;
	__sync_fetch_and_add(seen, 1);
	if (!*left)
		return TC_ACT_UNSPEC;
	(*left)--;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
