// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `te`: type enforcement, as SELinux and FreeBSD's sebsd(4) have it. A process has a
 * domain, a file a type. A process does to an object what a rule permits its domain with the
 * object's type, and nothing else.
 *
 * Sockets, pipes and System V IPC have the domain of the process that makes them. A process without
 * an element is exempt; as an object it is of the domain `unconfined`, the first one. Files without
 * an element are of the type `untyped`, and terminals of `terminal`. An element whose name the
 * policy does not declare has number 0, about which there are no rules.
 *
 * A check costs the same whatever the number of rules: each name has one place by its hash, and a
 * domain and a type have one cell.
 */
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

MAC_POLICY(te, .label = USHER_MAC_NAME, .exempts_without_element = 1);
MAC_SETTINGS(struct usher_mac_te);

#include "te_files.h"
#include "te_labels.h"

/* A process may do anything to itself. */
#define REACHES_PROCESS(point, wanted)                                                             \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		if (request->process == subject->process)                                          \
			return 0;                                                                  \
		return may(subject_label, object_label, OF_PROCESS, USHER_MAC_TE_PROCESS, wanted); \
	}

REACHES_PROCESS(task_kill, USHER_MAC_TE_SIGNAL)
REACHES_PROCESS(task_setscheduler, USHER_MAC_TE_SETSCHED)
REACHES_PROCESS(task_setnice, USHER_MAC_TE_SETSCHED)
REACHES_PROCESS(ptrace_access_check,
		request->argument &PTRACE_MODE_ATTACH ? USHER_MAC_TE_PTRACE : USHER_MAC_TE_READ)

/* The parent is to trace this process, so it needs the permission. */
MAC_CHECK(ptrace_traceme)
{
	return may(object_label, subject_label, OF_PROCESS, USHER_MAC_TE_PROCESS,
		   USHER_MAC_TE_PTRACE);
}

/* The hook has no label of the other process: it counts as unconfined. 2: sets its limits. */
MAC_CHECK(task_prlimit)
{
	if (!(request->argument & 2))
		return 0;
	return may(subject_label, object_label, OF_PROCESS, USHER_MAC_TE_PROCESS,
		   USHER_MAC_TE_SETSCHED);
}

#define USES_SOCKET(point, wanted)                                                                 \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, object_label, OF_PROCESS, USHER_MAC_TE_SOCKET, wanted);  \
	}

USES_SOCKET(socket_sendmsg, USHER_MAC_TE_WRITE)
USES_SOCKET(socket_recvmsg, USHER_MAC_TE_READ)
USES_SOCKET(socket_getsockopt, USHER_MAC_TE_READ)
USES_SOCKET(socket_bind, USHER_MAC_TE_BIND)
USES_SOCKET(socket_listen, USHER_MAC_TE_LISTEN)
USES_SOCKET(socket_accept, USHER_MAC_TE_ACCEPT)
USES_SOCKET(socket_connect, USHER_MAC_TE_CONNECT)
USES_SOCKET(unix_stream_connect, USHER_MAC_TE_CONNECT)
USES_SOCKET(unix_may_send, USHER_MAC_TE_WRITE)

/* The socket is to have the process's own domain. */
MAC_CHECK(socket_create)
{
	return may(subject_label, subject_label, OF_PROCESS, USHER_MAC_TE_SOCKET,
		   request->family == AF_UNIX ? USHER_MAC_TE_CREATE : USHER_MAC_TE_NETWORK);
}

/* Networks without an element are for everybody who has a socket. */
#define PASSES_INTERFACE(point, wanted)                                                            \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		if (object_label->kind == USHER_MAC_NONE || !request->interface.number)            \
			return 0;                                                                  \
		return may(subject_label, object_label, OF_PROCESS, USHER_MAC_TE_SOCKET, wanted);  \
	}

PASSES_INTERFACE(socket_deliver, USHER_MAC_TE_READ)
PASSES_INTERFACE(interface_transmit, USHER_MAC_TE_WRITE)

#define USES_IPC(point, wanted)                                                                    \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, object_label, OF_PROCESS, USHER_MAC_TE_IPC, wanted);     \
	}

/* The permission for a command. `value` and `values`: the commands of a kind that change contents;
 * `one` and `other`: those that change its state, beside IPC_RMID and IPC_SET. */
static __always_inline __u32 wanted_of_control(__u32 command, __u32 value, __u32 values, __u32 one,
					       __u32 other)
{
	command &= 0xff;
	if (command == value || command == values)
		return USHER_MAC_TE_WRITE;
	if (command == IPC_RMID || command == IPC_SET || command == one || command == other)
		return USHER_MAC_TE_SETATTR;
	return USHER_MAC_TE_GETATTR;
}

/* No command. */
#define NONE 256

USES_IPC(msg_queue_msgctl, wanted_of_control(request->argument, NONE, NONE, NONE, NONE))
USES_IPC(msg_queue_msgsnd, USHER_MAC_TE_WRITE)
USES_IPC(msg_queue_msgrcv, USHER_MAC_TE_READ)
USES_IPC(sem_semctl, wanted_of_control(request->argument, SETVAL, SETALL, NONE, NONE))
USES_IPC(sem_semop, request->argument ? USHER_MAC_TE_READ | USHER_MAC_TE_WRITE : USHER_MAC_TE_READ)
USES_IPC(shm_shmctl, wanted_of_control(request->argument, NONE, NONE, SHM_LOCK, SHM_UNLOCK))
USES_IPC(shm_shmat,
	 request->argument &SHM_RDONLY ? USHER_MAC_TE_READ : USHER_MAC_TE_READ | USHER_MAC_TE_WRITE)

/* In a user namespace of its own a process has privileges about what is there only. */
MAC_CHECK(capable)
{
	const struct usher_mac_te *now = mac_settings();
	__u32 domain, capability = request->command;

	if (!now)
		return -EPERM;
	if (subject_label->kind == USHER_MAC_NONE || !request->argument)
		return 0;
	domain = number_of(now, subject_label, 0);
	OPAQUE(domain);
	if (domain >= USHER_MAC_TE_NAMES || capability >= 64)
		return -EPERM;
	if (now->capabilities[domain] >> capability & 1)
		return 0;
	return refuse(now, domain, domain, USHER_MAC_TE_CAPABILITY, 1ULL << capability, -EPERM);
}
