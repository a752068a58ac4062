/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Common to all objects of bpf/authentication/ownership and bpf/guard. These maps are pinned, so
 * all objects share them.
 */
#ifndef USHER_REASONS_H
#define USHER_REASONS_H

#include "usher_kernel.h"
#include "usher_layout.h"
#include "usher_ownership.h"

/* Refusals so far, one copy per CPU. Key: enum usher_reason. */
CPU_TABLE(refusals, USHER_REASONS, __u64);

/* Counts the refusal and returns `error`. */
static __always_inline int refuse(__u32 reason, int error)
{
	__u64 *count = bpf_map_lookup_elem(&refusals, &reason);

	if (count)
		(*count)++;
	return error;
}

#endif
