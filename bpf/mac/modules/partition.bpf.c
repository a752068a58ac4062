// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `partition`: processes in a partition reach those of their own partition only, as
 * FreeBSD's mac_partition(4) has it.
 *
 * The element of a process is the number of its partition; 0, or none, is no partition. Processes
 * without a partition reach all others. A process with CAP_SYS_ADMIN or CAP_SETUID enters one,
 * once, or has its next program enter it; children and programs are in it, too, and nothing leads
 * out again, not even root's privileges.
 *
 * A process in a partition does not signal, trace or schedule processes outside of it, and uses no
 * UNIX socket and no object of System V IPC that such a process has made. Processes that are
 * elsewhere do not exist for it (ESRCH); to objects it has no access (EACCES).
 */
#include "usher_mac_policy.h"
#include "usher_numbers.h"

MAC_POLICY(partition, .label = USHER_MAC_NUMBER);

/* CAP_SYS_ADMIN, and CAP_SETUID, by which logins and services of users begin. */
#define MAY_ENTER (1ULL << CAP_SYS_ADMIN | 1ULL << CAP_SETUID)

/* The partition of a process or object; 0: none. */
static __always_inline __u32 partition_of(const struct usher_mac_element *element)
{
	return element->kind == USHER_MAC_NUMBER ? *(const __u32 *)element->value : 0;
}

static __always_inline int reaches(const struct usher_mac_element *own,
				   const struct usher_mac_element *object)
{
	__u32 partition = partition_of(own);

	return !partition || partition == partition_of(object);
}

#define TO_A_PROCESS(point)                                                                        \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return reaches(subject_label, object_label) ? 0 : -ESRCH;                          \
	}

TO_A_PROCESS(task_kill)
TO_A_PROCESS(ptrace_access_check)
TO_A_PROCESS(task_setscheduler)
TO_A_PROCESS(task_setnice)
TO_A_PROCESS(task_setpgid)

/* The request does not say whose limits: a process in a partition leaves all others' alone. */
TO_A_PROCESS(task_prlimit)

/* The parent is to trace this process, so it must reach it. */
MAC_CHECK(ptrace_traceme)
{
	return reaches(object_label, subject_label) ? 0 : -ESRCH;
}

#define TO_AN_OBJECT(point)                                                                        \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return reaches(subject_label, object_label) ? 0 : -EACCES;                         \
	}

TO_AN_OBJECT(unix_stream_connect)
TO_AN_OBJECT(unix_may_send)
TO_AN_OBJECT(msg_queue_associate)
TO_AN_OBJECT(msg_queue_msgctl)
TO_AN_OBJECT(msg_queue_msgsnd)
TO_AN_OBJECT(msg_queue_msgrcv)
TO_AN_OBJECT(sem_associate)
TO_AN_OBJECT(sem_semctl)
TO_AN_OBJECT(sem_semop)
TO_AN_OBJECT(shm_associate)
TO_AN_OBJECT(shm_shmctl)
TO_AN_OBJECT(shm_shmat)

MAC_RELABEL(relabel_process)
{
	if (partition_of(former) || !(subject->capabilities & MAY_ENTER))
		return -EPERM;
	return 0;
}

/* Files have no partition: their element is left empty. */
MAC_DECISION(new_file)
{
	__builtin_memset(element, 0, sizeof(*element));
	return 0;
}
