/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about the system as a whole. */
#ifndef USHER_MAC_SYSTEM_H
#define USHER_MAC_SYSTEM_H

#include "open_files.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct timespec64 {
	__s64 tv_sec;
};

#pragma clang attribute pop

struct timezone;

/* Hook: capable, because every use of a privilege passes it. */
SEC("lsm/capable")
int BPF_PROG(dispatch_capable, const struct cred *cred, struct user_namespace *namespace,
	     int capability, unsigned int options)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_capable, &caller);
	struct usher_mac_operation wanted = { .command = capability };
	struct usher_mac_subject subject;
	struct mac_labels labels;

	if (!asked)
		return 0;
	wanted.argument = bpf_core_cast(namespace, struct user_namespace___mac)->level == 0;
	read_subject(&subject);
	begin_labels(&labels, asked, &caller);
	if (options & CAP_OPT_NOAUDIT)
		labels.told = UNTOLD;
	return mac_ask_capable(asked, &subject, &wanted, &labels);
}

/* Hook: kernel_read_file, because modules of the kernel, firmware and kernels are read there. */
SEC("lsm/kernel_read_file")
int BPF_PROG(dispatch_kernel_read_file, struct file *file, int kind, int is_whole)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_kernel_read_file, &caller);
	struct usher_mac_file_command wanted = { .command = kind };

	if (!asked || !read_file(&wanted.file, bpf_core_cast(file, struct file)->f_inode))
		return 0;
	return MAC_ASK_CALLER(kernel_read_file, asked, &caller, &wanted);
}

/* Hook: kernel_module_request, because a process makes the kernel load a module that way. */
SEC("lsm/kernel_module_request")
int BPF_PROG(dispatch_kernel_module_request, char *name)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_kernel_module_request, &caller);
	struct usher_mac_kernel_module wanted = {};

	if (!asked)
		return 0;
	/* The kernel's names are shorter (MODULE_NAME_LEN). */
	bpf_probe_read_kernel_str(wanted.name, sizeof(wanted.name), name);
	return MAC_ASK_CALLER(kernel_module_request, asked, &caller, &wanted);
}

/* Hook: bpf, because bpf(2) passes it. Modules are not asked about the kernel's own calls. */
SEC("lsm/bpf")
int BPF_PROG(dispatch_bpf, int command, union bpf_attr *attributes, unsigned int size,
	     int is_kernels)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_bpf, &caller);
	struct usher_mac_operation wanted = { .command = command };

	if (!asked || is_kernels)
		return 0;
	return MAC_ASK_CALLER(bpf, asked, &caller, &wanted);
}

/* Hook: perf_event_open, because perf_event_open(2) passes it. */
SEC("lsm/perf_event_open")
int BPF_PROG(dispatch_perf_event_open, int kind)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_perf_event_open, &caller);
	struct usher_mac_operation wanted = { .command = kind };

	if (!asked)
		return 0;
	return MAC_ASK_CALLER(perf_event_open, asked, &caller, &wanted);
}

/* Hook: settime, because clock_settime(2) and settimeofday(2) pass it. */
SEC("lsm/settime")
int BPF_PROG(dispatch_settime, const struct timespec64 *time, const struct timezone *zone)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_settime, &caller);
	struct usher_mac_operation wanted = {};

	if (!asked)
		return 0;
	wanted.value = bpf_core_cast(time, struct timespec64)->tv_sec;
	return MAC_ASK_CALLER(settime, asked, &caller, &wanted);
}

/* Hook: syslog, because syslog(2) and /dev/kmsg pass it. */
SEC("lsm/syslog")
int BPF_PROG(dispatch_syslog, int action)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_syslog, &caller);
	struct usher_mac_operation wanted = { .command = action };

	if (!asked)
		return 0;
	return MAC_ASK_CALLER(syslog, asked, &caller, &wanted);
}

/* Hook: quotactl, because quotactl(2) and quotactl_fd(2) pass it. */
SEC("lsm/quotactl")
int BPF_PROG(dispatch_quotactl, int command, int type, int id, const struct super_block *system)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_quotactl, &caller);
	struct usher_mac_operation wanted = {
		.command = command,
		.argument = type,
		.value = (__u32)id,
	};

	if (!asked)
		return 0;
	return MAC_ASK_CALLER(quotactl, asked, &caller, &wanted);
}

#endif
