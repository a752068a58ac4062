/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A connection's endpoints in the form of struct usher_connection, read from program contexts. */
#ifndef USHER_ENDS_H
#define USHER_ENDS_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "usher_numbers.h"

/* Keys on the stack are written in words, which some architectures need aligned. */
#define __aligned __attribute__((aligned(8)))

static __always_inline void set_mapped(__u8 address[16], __be32 ipv4)
{
	__u32 *words = (__u32 *)address;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0x0000ffff);
	words[3] = ipv4;
}

/*
 * Reads the context one 32-bit word at a time. Without volatile, the compiler may join two reads
 * into one that the verifier refuses.
 */
static __always_inline void set_words(__u8 address[16], const volatile __u32 from[4])
{
	__u32 *words = (__u32 *)address;

	words[0] = from[0];
	words[1] = from[1];
	words[2] = from[2];
	words[3] = from[3];
}

/*
 * Reads the addresses of a struct bpf_sk_lookup or bpf_sock_ops; `client` and `server` are `local`
 * and `remote`, or the reverse. A v4 connection of a dual-stack socket is AF_INET6 with mapped
 * addresses. 0: another family.
 */
#define SET_ADDRESSES(connection, context, client, server)                                         \
	({                                                                                         \
		int is_known = 1;                                                                  \
		if ((context)->family == AF_INET) {                                                \
			set_mapped((connection)->client_address, (context)->client##_ip4);         \
			set_mapped((connection)->server_address, (context)->server##_ip4);         \
		} else if ((context)->family == AF_INET6) {                                        \
			set_words((connection)->client_address, (context)->client##_ip6);          \
			set_words((connection)->server_address, (context)->server##_ip6);          \
		} else {                                                                           \
			is_known = 0;                                                              \
		}                                                                                  \
		is_known;                                                                          \
	})

/* Compares two addresses or two session names. */
static __always_inline int equal_words(const __u8 left[16], const __u8 right[16])
{
	const __u32 *l = (const __u32 *)left, *r = (const __u32 *)right;

	return l[0] == r[0] && l[1] == r[1] && l[2] == r[2] && l[3] == r[3];
}

#endif
