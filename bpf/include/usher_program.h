/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between kernel programs that identify executables (usher_executable.h) and user space. The
 * Rust side is generated from this header.
 */
#ifndef USHER_PROGRAM_H
#define USHER_PROGRAM_H

#include <linux/types.h>

/* The key that turns addresses into numbers. */
struct usher_program_key {
	__u64 words[2];
};

/* Asks which program is the file that the caller has open as `descriptor`. The rest is the answer.
 */
struct usher_program_query {
	__u64 program; /* its identity */
	__u64 place; /* the identity of its name in its directory */
	__u64 directory; /* the identity of its directory, as if that were a program */
	__u64 script; /* its identity as a script */
	__u32 descriptor;
	__u32 reserved; /* 0 */
};

_Static_assert(sizeof(struct usher_program_key) == 16, "usher_program_key");
_Static_assert(sizeof(struct usher_program_query) == 40, "usher_program_query");

#endif
