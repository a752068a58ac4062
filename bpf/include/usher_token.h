/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The token in the SYN (docs/PROTOCOL.md): its TCP option and its mask.
 * crates/authentication/usher-kernel/tests/world/token.rs makes and reads the same bytes in Rust.
 */
#ifndef USHER_TOKEN_H
#define USHER_TOKEN_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "usher_shared.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "SipHash reads its input as little-endian words; no big-endian machine was tried"
#endif

#define USHER_TOKEN_KIND 253
#define USHER_TOKEN_OPTION_SIZE 20
#define USHER_TOKEN_EXPERIMENT 0x5573
#define USHER_TOKEN_KEY_SIZE 16
#define USHER_TOKEN_ELEMENT_SIZE 11
#define USHER_TOKEN_SLOTS (1 << 24)
#define USHER_TOKEN_BLOCK 64
#define USHER_TOKENS_AHEAD 128
#define USHER_TOKENS_BEHIND 127

/* The whole option as sent. */
struct usher_token_option {
	__u8 kind;
	__u8 size;
	__be16 experiment;
	__u8 slot[3];
	__u8 position;
	__u8 masked[USHER_TOKEN_ELEMENT_SIZE + 1]; /* the element, then a zero byte */
} __attribute__((packed));

/* The input of the mask: 40 bytes, five words. */
struct usher_token_message {
	struct usher_connection connection;
	__u8 slot[3];
	__u8 position;
};

_Static_assert(sizeof(struct usher_token_option) == USHER_TOKEN_OPTION_SIZE, "usher_token_option");
_Static_assert(sizeof(struct usher_token_message) == 40, "usher_token_message");

#define USHER_ROTATE(word, bits) (((word) << (bits)) | ((word) >> (64 - (bits))))

static __always_inline void usher_sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[1] = USHER_ROTATE(v[1], 13) ^ v[0];
	v[0] = USHER_ROTATE(v[0], 32);
	v[2] += v[3];
	v[3] = USHER_ROTATE(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = USHER_ROTATE(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = USHER_ROTATE(v[1], 17) ^ v[2];
	v[2] = USHER_ROTATE(v[2], 32);
}

static __always_inline void usher_sip_word(__u64 v[4], __u64 word)
{
	v[3] ^= word;
	usher_sip_round(v);
	usher_sip_round(v);
	v[0] ^= word;
}

/* SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012) of exactly 40 bytes. */
static __always_inline void usher_token_mask(const __u64 key[2], const __u64 message[5],
					     __u64 mask[2])
{
	__u64 v[4] = {
		key[0] ^ 0x736f6d6570736575ULL,
		key[1] ^ 0x646f72616e646f6dULL ^ 0xee,
		key[0] ^ 0x6c7967656e657261ULL,
		key[1] ^ 0x7465646279746573ULL,
	};

	usher_sip_word(v, message[0]);
	usher_sip_word(v, message[1]);
	usher_sip_word(v, message[2]);
	usher_sip_word(v, message[3]);
	usher_sip_word(v, message[4]);
	/* The length of the message, in the last word's last byte. */
	usher_sip_word(v, 40ULL << 56);
	v[2] ^= 0xee;
	usher_sip_round(v);
	usher_sip_round(v);
	usher_sip_round(v);
	usher_sip_round(v);
	mask[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
	v[1] ^= 0xdd;
	usher_sip_round(v);
	usher_sip_round(v);
	usher_sip_round(v);
	usher_sip_round(v);
	mask[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
