/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The marks of Usher's daemons, which bpf/guard sets. connection.bpf.c reads them too. */
#ifndef USHER_DAEMONS_H
#define USHER_DAEMONS_H

#include "usher_read.h"
#include "usher_refusals.h"

/* How to recognize a daemon, and the device of the pins. Key: 0. */
ARRAY_TABLE(guard_settings, 1, struct usher_guard_settings);

/*
 * Marks of daemons. Key: the thread; value: enum usher_mark. Limit: memory. Full: an exec sets no
 * mark, and the daemon is refused Usher's objects; a new thread or process is refused.
 */
TASK_TABLE(daemons, __u8);

/* enum usher_mark, or 0. */
static __always_inline __u8 mark_of(struct task_struct *task)
{
	__u8 *mark = bpf_task_storage_get(&daemons, task, NULL, 0);

	return mark ? *mark : 0;
}

/* The task's roles; none until it declares them. */
static __always_inline __u8 roles_of(struct task_struct *task)
{
	__u8 mark = mark_of(task);

	return cred_of(task)->euid.val == 0 && !(mark & USHER_UNDECLARED) ? mark & USHER_ROLES : 0;
}

static __always_inline struct usher_guard_settings *settings(void)
{
	return first_of(&guard_settings);
}

#endif
