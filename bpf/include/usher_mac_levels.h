/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The order of levels: for modules, the kernel and user space. The model that it is compared with
 * is in crates/authorization/usher-label.
 */
#ifndef USHER_MAC_LEVELS_H
#define USHER_MAC_LEVELS_H

#include "usher_mac_label.h"

/* Whether one level is at least as high as another, and has all of its compartments. */
static __inline__ int usher_mac_dominates(const struct usher_mac_level *level,
					  const struct usher_mac_level *other)
{
	__u32 missing = 0;
	int i;

	if (level->kind == USHER_MAC_LEVEL_EQUAL || other->kind == USHER_MAC_LEVEL_EQUAL ||
	    level->kind == USHER_MAC_LEVEL_HIGH || other->kind == USHER_MAC_LEVEL_LOW)
		return 1;
	if (level->kind != USHER_MAC_LEVEL_GRADE || other->kind != USHER_MAC_LEVEL_GRADE)
		return 0;
	for (i = 0; i < 32; i++)
		missing |= other->compartments[i] & ~level->compartments[i];
	return level->grade >= other->grade && !missing;
}

#endif
