/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The meaning of class numbers. */
#ifndef USHER_IPSEC_CLASSES_H
#define USHER_IPSEC_CLASSES_H

#include "usher_ipsec.h"

/* Returns 1 if the class number demands protection from every peer. */
static __always_inline int is_mandatory(__u32 class)
{
	return class >= USHER_CLASS_LOWEST && !((class - USHER_CLASS_LOWEST) & 1);
}

/* Returns 1 if two class numbers are of the same class, at any level. */
static __always_inline int is_same_class(__u32 one, __u32 other)
{
	return one >= USHER_CLASS_LOWEST && other >= USHER_CLASS_LOWEST &&
	       (one - USHER_CLASS_LOWEST) >> 1 == (other - USHER_CLASS_LOWEST) >> 1;
}

/*
 * Returns 1 if packets of a connection with the class number `marked` in its mark leave as the
 * class number `demanded` requires. Without a mark they leave as bypass. An accepted connection has
 * the mark of the SA that protected its SYN. SAs always have the mark of the mandatory level.
 */
static __always_inline int leaves_as(__u32 marked, __u32 demanded)
{
	if (marked == demanded)
		return 1;
	if (marked == USHER_CLASS_NONE)
		return demanded == USHER_CLASS_BYPASS;
	return is_mandatory(marked) && is_same_class(marked, demanded);
}

#endif
