/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rows of the iterators of bpf/mac/shown.bpf.c, by which every process may read the labels of
 * processes. The reader is crates/authorization/usher-system-label (`process`).
 */
#ifndef USHER_MAC_SHOWN_H
#define USHER_MAC_SHOWN_H

#include "usher_mac_label.h"

/* An element, with the name of its module, padded with zeros; USHER_MAC_NONE: none. */
struct usher_mac_shown_element {
	char module[USHER_MAC_NAME_SIZE];
	struct usher_mac_element element;
};

/* A process. */
struct usher_mac_shown {
	__u32 process; /* its number as the reader sees it */
	__u32 reserved; /* 0 */
	struct usher_mac_shown_element elements[USHER_MAC_MODULES];
};

_Static_assert(sizeof(struct usher_mac_shown_element) == 152, "usher_mac_shown_element");
_Static_assert(sizeof(struct usher_mac_shown) == 1224, "usher_mac_shown");

#endif
