// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Can this kernel load LSM programs? Loaded by `usher doctor` and never attached: a kernel in
 * lockdown lists "bpf" among its LSMs and refuses them all the same, so only trying tells.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("lsm/file_open")
int usher_probe_lsm(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
