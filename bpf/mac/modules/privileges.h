/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The check of privileges of `biba` and `lomac`, after levels.h: processes below `high` use none by
 * which the system as a whole is changed. */
#ifndef USHER_MAC_MODULE_PRIVILEGES_H
#define USHER_MAC_MODULE_PRIVILEGES_H

#define BIT(capability) (1ULL << (capability))

/*
 * Capabilities by which a process changes itself, and uses files, processes and ports about which
 * there are other checks: chown, dac_override, dac_read_search, fowner, fsetid, kill, setgid,
 * setuid, setpcap, net_bind_service, net_broadcast, ipc_lock, ipc_owner, sys_chroot, sys_nice,
 * sys_resource, lease, audit_write, wake_alarm, block_suspend.
 */
#define OWN_CAPABILITIES                                                                           \
	(BIT(0) | BIT(1) | BIT(2) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(7) | BIT(8) |          \
	 BIT(10) | BIT(11) | BIT(14) | BIT(15) | BIT(18) | BIT(23) | BIT(24) | BIT(28) | BIT(29) | \
	 BIT(35) | BIT(36))

/* In a user namespace of its own a process has privileges about what is there only. */
MAC_CHECK(capable)
{
	if (is_exempt(subject_label) || !request->argument || is_high(subject_label))
		return 0;
	return request->command < 64 && OWN_CAPABILITIES >> request->command & 1 ? 0 : -EPERM;
}

#endif
