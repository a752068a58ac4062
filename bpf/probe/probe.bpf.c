// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tries whether this kernel can load LSM programs, for `usher doctor`; never attached. A kernel in
 * lockdown lists "bpf" among its LSMs and still refuses them, so only trying decides.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("lsm/file_open")
int usher_probe_lsm(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
