/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads packets at hooks of control groups and of tc, for usher_packet.h. */
#ifndef USHER_SKB_H
#define USHER_SKB_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define PACKET struct __sk_buff

static __always_inline const void *look(struct __sk_buff *packet, __u32 offset, void *room,
					__u32 size)
{
	return bpf_skb_load_bytes(packet, offset, room, size) ? NULL : room;
}

#include "usher_packet.h"

#endif
