/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A connection, read from the kernel's socket. */
#ifndef USHER_IPSEC_CONNECTIONS_H
#define USHER_IPSEC_CONNECTIONS_H

#include "policy.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr___ends {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

/* The same structures as in usher_kernel.h, with the members that are read here. */
struct sock_common___ends {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr___ends skc_v6_daddr;
	struct in6_addr___ends skc_v6_rcv_saddr;
};

struct sock___ends {
	struct sock_common___ends __sk_common;
	__u16 sk_protocol;
	__u32 sk_mark;
	kuid_t sk_uid;
	__u8 sk_kern_sock : 1;
};

#pragma clang attribute pop

/* The class number that the policy demands for an application's connection, and its peer. */
static __always_inline __u32 class_of_connection(const struct in_force *now, __u32 application,
						 struct sock_common___ends *common,
						 struct peer *peer)
{
	__u32 words[4] = {}, patterns;

	if (BPF_CORE_READ(common, skc_family) == AF_INET) {
		set_peer4(peer, BPF_CORE_READ(common, skc_daddr));
	} else {
		BPF_CORE_READ_INTO(&words, common, skc_v6_daddr.in6_u.u6_addr32);
		set_peer6(peer, words);
	}
	return treat(now, application, peer, BPF_CORE_READ(common, skc_num),
		     bpf_ntohs(BPF_CORE_READ(common, skc_dport)), &patterns);
}

#endif
