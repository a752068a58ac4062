/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The version of pinned tables, which user space checks before it adopts them. */
#ifndef USHER_LAYOUT_H
#define USHER_LAYOUT_H

#include <linux/types.h>

#include "usher_maps.h"

struct usher_layout {
	__u32 version; /* 0: not written yet */
	__u32 reserved;
};

_Static_assert(sizeof(struct usher_layout) == 8, "usher_layout");

/* Key: 0. Written once by the daemon that made the tables. */
ARRAY_TABLE(layout, 1, struct usher_layout);

#endif
