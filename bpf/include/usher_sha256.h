/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One step of the token chain (docs/PROTOCOL.md): SHA-256 (FIPS 180-4) of 44 bytes, which are one
 * block with their padding. Unrolled, so that the round constants are immediates: a table would be
 * one more pinned map.
 */
#ifndef USHER_SHA256_H
#define USHER_SHA256_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include "usher_token.h"

/* The hashed bytes: t[index] is the hash of this block with t[index + 1] in `value`. */
struct usher_token_block {
	__u8 domain[13]; /* "usher-token-1" */
	__u8 salt[USHER_TOKEN_KEY_SIZE];
	__u8 index[4]; /* big endian */
	__u8 value[USHER_TOKEN_ELEMENT_SIZE];
} __attribute__((packed, aligned(4)));

_Static_assert(sizeof(struct usher_token_block) == 44, "usher_token_block");

#define USHER_TURN(word, bits) (((word) >> (bits)) | ((word) << (32 - (bits))))

/*
 * One round. The letters swap roles instead of being moved. The empty asm statement keeps the
 * compiler from loading the words of later rounds ahead, onto the stack.
 */
#define USHER_ROUND(a, b, c, d, e, f, g, h, constant, word)                                        \
	do {                                                                                       \
		__u32 sum = (h) + (USHER_TURN(e, 6) ^ USHER_TURN(e, 11) ^ USHER_TURN(e, 25)) +     \
			    ((g) ^ ((e) & ((f) ^ (g)))) + (constant) + (word);                     \
		asm volatile("" : "+w"(sum));                                                      \
		(d) += sum;                                                                        \
		(h) = sum + (USHER_TURN(a, 2) ^ USHER_TURN(a, 13) ^ USHER_TURN(a, 22)) +           \
		      (((a) & (b)) | ((c) & ((a) | (b))));                                         \
	} while (0)

#define USHER_EIGHT_ROUNDS(w, at, k0, k1, k2, k3, k4, k5, k6, k7)                                  \
	do {                                                                                       \
		USHER_ROUND(a, b, c, d, e, f, g, h, k0, (w)[(at)]);                                \
		USHER_ROUND(h, a, b, c, d, e, f, g, k1, (w)[(at) + 1]);                            \
		USHER_ROUND(g, h, a, b, c, d, e, f, k2, (w)[(at) + 2]);                            \
		USHER_ROUND(f, g, h, a, b, c, d, e, k3, (w)[(at) + 3]);                            \
		USHER_ROUND(e, f, g, h, a, b, c, d, k4, (w)[(at) + 4]);                            \
		USHER_ROUND(d, e, f, g, h, a, b, c, k5, (w)[(at) + 5]);                            \
		USHER_ROUND(c, d, e, f, g, h, a, b, k6, (w)[(at) + 6]);                            \
		USHER_ROUND(b, c, d, e, f, g, h, a, k7, (w)[(at) + 7]);                            \
	} while (0)

/* The next sixteen words of the message schedule, which replace the last. */
static __always_inline void usher_sha256_schedule(volatile __u32 w[16])
{
#pragma unroll
	for (int i = 0; i < 16; i++) {
		__u32 early = w[(i + 1) & 15], late = w[(i + 14) & 15];

		w[i] += (USHER_TURN(early, 7) ^ USHER_TURN(early, 18) ^ (early >> 3)) +
			w[(i + 9) & 15] +
			(USHER_TURN(late, 17) ^ USHER_TURN(late, 19) ^ (late >> 10));
	}
}

/*
 * Replaces t[index + 1] by t[index]. A global function, so that the verifier checks its 64 rounds
 * once and not at every call.
 */
__attribute__((noinline)) int usher_token_step(struct usher_token_block *block)
{
	const __u32 *words = (const __u32 *)block;
	__u32 a = 0x6a09e667, b = 0xbb67ae85, c = 0x3c6ef372, d = 0xa54ff53a;
	__u32 e = 0x510e527f, f = 0x9b05688c, g = 0x1f83d9ab, h = 0x5be0cd19;
	/* Without volatile, the compiler fills the stack with generations of the schedule. */
	volatile __u32 w[16];

	if (!block)
		return 0;
#pragma unroll
	for (int i = 0; i < 11; i++)
		w[i] = bpf_ntohl(words[i]);
	w[11] = 0x80000000;
	w[12] = 0;
	w[13] = 0;
	w[14] = 0;
	w[15] = 8 * sizeof(*block);

	USHER_EIGHT_ROUNDS(w, 0, 0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
			   0x59f111f1, 0x923f82a4, 0xab1c5ed5);
	USHER_EIGHT_ROUNDS(w, 8, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
			   0x80deb1fe, 0x9bdc06a7, 0xc19bf174);
	usher_sha256_schedule(w);
	USHER_EIGHT_ROUNDS(w, 0, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
			   0x4a7484aa, 0x5cb0a9dc, 0x76f988da);
	USHER_EIGHT_ROUNDS(w, 8, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3,
			   0xd5a79147, 0x06ca6351, 0x14292967);
	usher_sha256_schedule(w);
	USHER_EIGHT_ROUNDS(w, 0, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354,
			   0x766a0abb, 0x81c2c92e, 0x92722c85);
	USHER_EIGHT_ROUNDS(w, 8, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
			   0xd6990624, 0xf40e3585, 0x106aa070);
	usher_sha256_schedule(w);
	USHER_EIGHT_ROUNDS(w, 0, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3,
			   0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3);
	USHER_EIGHT_ROUNDS(w, 8, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
			   0xa4506ceb, 0xbef9a3f7, 0xc67178f2);

	/* The element is the first 11 bytes of the digest. */
	a += 0x6a09e667;
	b += 0xbb67ae85;
	c += 0x3c6ef372;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		block->value[i] = a >> (24 - 8 * i);
		block->value[4 + i] = b >> (24 - 8 * i);
		if (i < 3)
			block->value[8 + i] = c >> (24 - 8 * i);
	}
	return 0;
}

#endif
