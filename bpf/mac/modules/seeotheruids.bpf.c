// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `seeotheruids`: a process does nothing to the processes of other real users, as
 * FreeBSD's mac_seeotheruids(4) has it: it does not trace them, read what asks for that in their
 * /proc/PID, signal them, or set their scheduling and limits.
 *
 * The settings may exempt processes with the same real group, those in one group, and those with
 * the capability by which the kernel lets a process do this to any other one. The answer is that of
 * a process that does not exist; the framework makes EPERM of it for signals.
 */
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "usher_numbers.h"

MAC_POLICY(seeotheruids);
MAC_SETTINGS(struct usher_mac_seeotheruids);

/* Whether the process sees the one with these real ids, or may do so by this capability. */
static __always_inline int sees(const struct usher_mac_subject *subject, __u32 uid, __u32 gid,
				__u32 capability)
{
	const struct usher_mac_seeotheruids *now = mac_settings();

	if (subject->uid == uid)
		return 1;
	if (!now)
		return 0;
	if (now->primarygroup && subject->gid == gid)
		return 1;
	if (now->has_group && (subject->gid == now->group || subject->egid == now->group ||
			       mac_is_in_groups(now->group, now->group)))
		return 1;
	return now->suser_privileged && subject->capabilities >> capability & 1;
}

#define OF_OTHERS(point, capability)                                                               \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return sees(subject, request->uid, request->gid, capability) ? 0 : -ESRCH;         \
	}

OF_OTHERS(ptrace_access_check, CAP_SYS_PTRACE)
OF_OTHERS(task_setscheduler, CAP_SYS_NICE)
OF_OTHERS(task_setnice, CAP_SYS_NICE)
OF_OTHERS(task_prlimit, CAP_SYS_RESOURCE)

/* SIGCONT reaches jobs of the same session, whichever user they are; the kernel has checked that.
 */
MAC_CHECK(task_kill)
{
	if (request->signal == SIGCONT)
		return 0;
	return sees(subject, request->uid, request->gid, CAP_KILL) ? 0 : -ESRCH;
}

/* The parent, as the tracer, would see this process. The request does not have its capabilities and
 * groups, only whether it is root, and its real group. */
MAC_CHECK(ptrace_traceme)
{
	const struct usher_mac_seeotheruids *now = mac_settings();

	if (subject->uid == request->uid)
		return 0;
	if (!now)
		return -ESRCH;
	if ((now->primarygroup && subject->gid == request->gid) ||
	    (now->has_group && now->group == request->gid) ||
	    (now->suser_privileged && !request->euid))
		return 0;
	return -ESRCH;
}
