/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The class number in a packet's mark: four bits, wherever user space has placed them. */
#ifndef USHER_MARKS_H
#define USHER_MARKS_H

#include <linux/types.h>

#define CLASS_BITS 0xf

/* `shift`: the lowest of the four bits. */
static __always_inline __u32 class_in_mark(__u32 mark, __u32 shift)
{
	return mark >> (shift & 31) & CLASS_BITS;
}

#endif
