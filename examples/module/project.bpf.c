// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include <usher_mac_policy.h>

MAC_POLICY(project, .label = USHER_MAC_NUMBER);

#ifndef CAP_SYS_ADMIN
#define CAP_SYS_ADMIN 21
#endif

static __always_inline int may_label(const struct usher_mac_subject *subject)
{
	return subject->capabilities >> CAP_SYS_ADMIN & 1;
}

/* 0: no project, and everybody's. */
static __always_inline __u32 project(const struct usher_mac_element *element)
{
	return *(const __u32 *)element->value;
}

MAC_CHECK(file_open)
{
	if (may_label(subject) || !project(object_label))
		return 0;
	return project(subject_label) == project(object_label) ? 0 : -EACCES;
}

MAC_RELABEL(relabel_process)
{
	return may_label(subject) ? 0 : -EPERM;
}

MAC_RELABEL(relabel_file)
{
	return may_label(subject) ? 0 : -EPERM;
}

/* The process's project, or 0: a file without an element would be refused. */
MAC_DECISION(new_file)
{
	element->kind = USHER_MAC_NUMBER;
	return 0;
}
