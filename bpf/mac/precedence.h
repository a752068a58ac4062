/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The error that a process gets when several modules refuse: by FreeBSD's precedence, so the order
 * of modules decides nothing. User space compiles this file too, for a test.
 */
#ifndef USHER_MAC_PRECEDENCE_H
#define USHER_MAC_PRECEDENCE_H

#ifdef __bpf__
#include <linux/errno.h>
#else
#include <errno.h>
#endif

/* The largest number of an error. Programs at hooks may return no other. */
#define MAC_LARGEST_ERROR 4095

/* The error in a module's answer: 0, or its negative number. Any other answer is EACCES. */
static __always_inline int mac_error_of(int answer)
{
	if (answer == 0)
		return 0;
	return answer < 0 && answer >= -MAC_LARGEST_ERROR ? answer : -EACCES;
}

/* The rank of an error: the higher one precedes. Global, so that the verifier goes through it once,
 * and not for each pair of ranks. */
__attribute__((noinline)) int mac_rank(int error)
{
	switch (error) {
	case -EDEADLK:
		return 7;
	case -EINVAL:
		return 6;
	case -ESRCH:
		return 5;
	case -ENOENT:
		return 4;
	case -EACCES:
		return 3;
	case -EPERM:
		return 2;
	case 0:
		return 0;
	}
	return 1;
}

/*
 * Composes two answers of mac_error_of into one. Of two errors without a rank it takes the smaller
 * number, so that their order does not matter.
 */
static __always_inline int mac_compose(int one, int other)
{
	int rank = mac_rank(one), other_rank = mac_rank(other);

	if (rank != other_rank)
		return rank > other_rank ? one : other;
	return one > other ? one : other;
}

#endif
