/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Pointers that are only read. Not for modules, which are compiled with older headers of libbpf. */
#ifndef USHER_READ_H
#define USHER_READ_H

#include "usher_kernel.h"

/*
 * A pointer to read by, which verifiers refuse to pass on to the kernel. If a program follows a
 * pointer that it may pass on, verifiers up to 6.18 search the names of all types of the kernel
 * three times, for each pointer followed. From this one they follow without a search. Kernels
 * before 6.2 have no such cast.
 */
#define READ_ONLY(pointer, type)                                                                   \
	(bpf_ksym_exists(bpf_rdonly_cast) ? bpf_core_cast(pointer, type) : (type *)(pointer))

/* The credentials of a task, to read by. */
static __always_inline const struct cred *cred_of(const struct task_struct *task)
{
	return READ_ONLY(task, struct task_struct)->cred;
}

#endif
