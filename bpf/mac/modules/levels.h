/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the modules `biba`, `mls` and `lomac` have in common: levels, and the checks of writing and
 * of what goes both ways. Before it includes this, a module defines
 *
 *   KIND                the kind of its elements
 *   MAY_FLOW(from, to)  whether information may flow from one level to another
 *   USUAL               the kind of the level of files, processes and System V IPC without one
 *   ATTRIBUTES          READS, or 0: what reading the attributes of a file counts as
 *
 * Reading is a flow from the object to the process, writing the other way round. A process without
 * an element, and one whose level is `equal`, is exempt: it may do everything, as far as this
 * module is concerned. Everybody may use the sockets and pipes that exempt processes make.
 */
#ifndef USHER_MAC_MODULE_LEVELS_H
#define USHER_MAC_MODULE_LEVELS_H

#include "ioctls.h"
#include "kernel_numbers.h"
#include "usher_mac_levels.h"
#include "usher_mac_policy.h"

#define READS 1
#define WRITES 2

static __always_inline const struct usher_mac_levels *
levels_of(const struct usher_mac_element *element)
{
	return (const struct usher_mac_levels *)element->value;
}

static __always_inline int has_level(const struct usher_mac_element *element)
{
	return element->kind == KIND && levels_of(element)->effective.kind != USHER_MAC_LEVEL_NONE;
}

static __always_inline int is_exempt(const struct usher_mac_element *own)
{
	return own->kind == USHER_MAC_NONE ||
	       (has_level(own) && levels_of(own)->effective.kind == USHER_MAC_LEVEL_EQUAL);
}

/* The level of an object: the usual one without an element. NULL: it is not known, or the object
 * has a range or an auxiliary level only. */
static __always_inline const struct usher_mac_level *
level_of(const struct usher_mac_element *object, const struct usher_mac_level *usual)
{
	if (has_level(object))
		return &levels_of(object)->effective;
	return object->kind == USHER_MAC_NONE ? usual : NULL;
}

/* Whether a process may access an object in these ways. Only exempt processes may access an object
 * without a level. */
static __always_inline int may(const struct usher_mac_element *own,
			       const struct usher_mac_element *object, __u32 usual, __u32 ways)
{
	struct usher_mac_level of_usual = { .kind = usual };
	const struct usher_mac_level *level, *from;

	if (is_exempt(own))
		return 0;
	if (!has_level(own))
		return -EACCES;
	level = level_of(object, &of_usual);
	if (!level)
		return -EACCES;
	from = &levels_of(own)->effective;
	if (ways & READS && !MAY_FLOW(level, from))
		return -EACCES;
	return ways & WRITES && !MAY_FLOW(from, level) ? -EACCES : 0;
}

/* Whether nothing flows through a device, or it is a terminal. */
static __always_inline int is_for_everybody(__u32 device)
{
	__u32 major = device >> 20;

	switch (device) {
	case DEVICE(1, 3): /* null */
	case DEVICE(1, 5): /* zero */
	case DEVICE(1, 7): /* full */
	case DEVICE(1, 8): /* random */
	case DEVICE(1, 9): /* urandom */
	case DEVICE(5, 0): /* tty */
	case DEVICE(5, 2): /* ptmx */
		return 1;
	}
	return is_line(major);
}

static __always_inline __u32 usual_of(const struct usher_mac_file *file)
{
	/* eventfd(2), pidfd_open(2) and their kind have no type. */
	if (!TYPE(file->mode) || file->flags & USHER_MAC_FOR_EVERYBODY)
		return USHER_MAC_LEVEL_EQUAL;
	if (TYPE(file->mode) == CHARACTER && is_for_everybody(file->special))
		return USHER_MAC_LEVEL_EQUAL;
	return USUAL;
}

static __always_inline __u32 usual_of_directory(const struct usher_mac_file *directory)
{
	return directory->flags & USHER_MAC_FOR_EVERYBODY ? USHER_MAC_LEVEL_EQUAL : USUAL;
}

static __always_inline __u32 ways_of(__u32 access)
{
	__u32 ways = 0;

	if (access & (USHER_MAC_READ | USHER_MAC_EXECUTE))
		ways |= READS;
	if (access & (USHER_MAC_WRITE | USHER_MAC_APPEND))
		ways |= WRITES;
	return ways;
}

#define CHANGES_NAME(point)                                                                        \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		int refused = may(subject_label, directory_label,                                  \
				  usual_of_directory(&request->directory), WRITES);                \
                                                                                                   \
		return refused                                                                     \
			   ? refused                                                               \
			   : may(subject_label, object_label, usual_of(&request->file), WRITES);   \
	}

CHANGES_NAME(inode_link)
CHANGES_NAME(inode_unlink)
CHANGES_NAME(inode_rmdir)
CHANGES_NAME(inode_rename)

MAC_CHECK(inode_rename_to)
{
	int refused =
	    may(subject_label, directory_label, usual_of_directory(&request->directory), WRITES);

	if (!refused && request->replaces)
		refused = may(subject_label, object_label, usual_of(&request->replaced), WRITES);
	return refused;
}

MAC_CHECK(inode_setattr)
{
	return may(subject_label, object_label, usual_of(&request->file), WRITES);
}

MAC_CHECK(inode_set_acl)
{
	return may(subject_label, object_label, usual_of(&request->file), WRITES);
}

MAC_CHECK(inode_remove_acl)
{
	return may(subject_label, object_label, usual_of(&request->file), WRITES);
}

/* Whether a process is at the top: with biba and lomac only such a process changes the system as a
 * whole. */
static __always_inline int is_high(const struct usher_mac_element *own)
{
	return has_level(own) && levels_of(own)->effective.kind == USHER_MAC_LEVEL_HIGH;
}

/* Whether the module protects integrity: then some acts need the level `high`, whatever the object.
 */
#define PROTECTS_INTEGRITY (USUAL == USHER_MAC_LEVEL_HIGH)

/* ioctl(2), by what it does. */
static __always_inline int controls(const struct usher_mac_element *own,
				    const struct usher_mac_element *object,
				    const struct usher_mac_file *file, __u32 command)
{
	__u32 usual = usual_of(file);

	switch (effect_of(command, file)) {
	case IOCTL_NOTHING:
		return 0;
	case IOCTL_ASKS:
		return may(own, object, usual, ATTRIBUTES);
	case IOCTL_CHANGES:
		return may(own, object, usual, WRITES);
	case IOCTL_TYPES:
		return is_exempt(own) || (PROTECTS_INTEGRITY && is_high(own)) ? 0 : -EACCES;
	case IOCTL_CHANGES_SYSTEM:
		break;
	}
	if (PROTECTS_INTEGRITY && !is_exempt(own) && !is_high(own))
		return -EACCES;
	return may(own, object, usual, READS | WRITES);
}

#define CONTROLS(point)                                                                            \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return controls(subject_label, object_label, &request->file, request->command);    \
	}

CONTROLS(file_ioctl)
CONTROLS(file_ioctl_compat)

#define WRITES_PROCESS(point)                                                                      \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, object_label, USUAL, WRITES);                            \
	}

WRITES_PROCESS(task_kill)
WRITES_PROCESS(task_setscheduler)
WRITES_PROCESS(task_setnice)

/* The hook has no label of the other process. 2: sets its limits. */
MAC_CHECK(task_prlimit)
{
	return is_exempt(subject_label) || !(request->argument & 2) ? 0 : -EACCES;
}

/* The tracer reads and writes: the levels have to be the same. */
MAC_CHECK(ptrace_traceme)
{
	return may(subject_label, object_label, USUAL, READS | WRITES);
}

/* Whether modules decide about all that a socket carries: not for SMC, a family and a protocol of
 * IP. */
static __always_inline int is_decided(const struct usher_mac_socket_call *socket)
{
	switch (socket->family) {
	case AF_UNIX:
	case AF_NETLINK:
		return 1;
	case AF_INET:
	case AF_INET6:
		return socket->protocol != IPPROTO_SMC;
	}
	return 0;
}

/* Other families of sockets (TIPC, RDS, vsock, packet sockets) carry data past every check.
 * Processes with a level may make one only if the policy says so. */
MAC_CHECK(socket_create)
{
	return is_exempt(subject_label) || is_decided(request) || request->argument ? 0 : -EACCES;
}

/* An option may not make a socket one of those families later. */
MAC_CHECK(socket_setsockopt)
{
	return is_exempt(subject_label) || !request->argument ? 0 : -EACCES;
}

/* Everybody may use the sockets that exempt processes have made. */
#define USES_SOCKET(point, ways)                                                                   \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, object_label, USHER_MAC_LEVEL_EQUAL, ways);              \
	}

USES_SOCKET(socket_sendmsg, WRITES)
USES_SOCKET(unix_stream_connect, READS | WRITES)
USES_SOCKET(unix_may_send, WRITES)

/* Networks without a level have the lowest one, and `lo` without a level is for everybody. */
static __always_inline __u32 usual_of_packet(const struct usher_mac_packet *packet)
{
	return packet->interface.number > LOOPBACK_INTERFACE ? USHER_MAC_LEVEL_LOW
							     : USHER_MAC_LEVEL_EQUAL;
}

MAC_CHECK(socket_deliver)
{
	return may(subject_label, object_label, usual_of_packet(request), READS);
}

/* Whether a level lies in a range. */
static __always_inline int is_within(const struct usher_mac_level *level,
				     const struct usher_mac_levels *range)
{
	return usher_mac_dominates(&range->high, level) && usher_mac_dominates(level, &range->low);
}

/* An interface with a range takes only packets whose level lies in it. */
MAC_CHECK(interface_transmit)
{
	if (object_label->kind == KIND && levels_of(object_label)->low.kind &&
	    has_level(subject_label))
		return is_within(&levels_of(subject_label)->effective, levels_of(object_label))
			   ? 0
			   : -EACCES;
	return may(subject_label, object_label, usual_of_packet(request), WRITES);
}

#define USES_IPC(point, ways)                                                                      \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, object_label, USUAL, ways);                              \
	}

/* `one`, `other`: the commands of a kind that change something, beside those of all kinds. */
static __always_inline __u32 ways_of_control(__u32 command, __u32 one, __u32 other)
{
	command &= 0xff;
	return command == IPC_RMID || command == IPC_SET || command == one || command == other
		   ? READS | WRITES
		   : READS;
}

USES_IPC(msg_queue_msgctl, ways_of_control(request->argument, IPC_SET, IPC_SET))
USES_IPC(msg_queue_msgsnd, WRITES)
USES_IPC(sem_semctl, ways_of_control(request->argument, SETVAL, SETALL))
USES_IPC(sem_semop, request->argument ? READS | WRITES : READS)
USES_IPC(shm_shmctl, ways_of_control(request->argument, SHM_LOCK, SHM_UNLOCK))

/* Whether an element is a level and, if it has a range, lies in it. */
static __always_inline int is_sound(const struct usher_mac_element *element)
{
	const struct usher_mac_levels *levels = levels_of(element);

	return has_level(element) && !levels->auxiliary.kind &&
	       (!levels->low.kind || is_within(&levels->effective, levels));
}

static __always_inline int has_equal(const struct usher_mac_levels *levels)
{
	return levels->effective.kind == USHER_MAC_LEVEL_EQUAL ||
	       levels->low.kind == USHER_MAC_LEVEL_EQUAL ||
	       levels->high.kind == USHER_MAC_LEVEL_EQUAL;
}

/* The levels that a process may take: without a range, its own. */
static __always_inline void read_range(struct usher_mac_levels *range,
				       const struct usher_mac_element *own)
{
	*range = *levels_of(own);
	if (range->low.kind)
		return;
	range->low = range->effective;
	range->high = range->effective;
}

/* A process may move within its range, and narrow it. */
MAC_RELABEL(relabel_process)
{
	struct usher_mac_levels range, next;

	if (!is_sound(wanted))
		return -EINVAL;
	if (is_exempt(former))
		return 0;
	if (!has_level(former))
		return -EPERM;
	read_range(&range, former);
	read_range(&next, wanted);
	/* `equal` lies in every range. */
	if (has_equal(&next) && !has_equal(&range))
		return -EPERM;
	return is_within(&next.effective, &range) && is_within(&next.low, &range) &&
		       is_within(&next.high, &range)
		   ? 0
		   : -EPERM;
}

/* Whether a process with this range may give files this level. */
static __always_inline int may_give(const struct usher_mac_level *level,
				    const struct usher_mac_levels *range)
{
	if (level->kind == USHER_MAC_LEVEL_EQUAL && !has_equal(range))
		return 0;
	return is_within(level, range);
}

/* A file moves from one level to another within the process's range, and has no range itself. Only
 * `lomac` has auxiliary levels. */
MAC_RELABEL(relabel_file)
{
	struct usher_mac_level of_usual = { .kind = USUAL }, auxiliary = {};
	const struct usher_mac_level *level, *next = &of_usual;
	struct usher_mac_levels range;

	if (wanted->kind != USHER_MAC_NONE) {
		next = &levels_of(wanted)->effective;
		if (!has_level(wanted) || levels_of(wanted)->low.kind)
			return -EINVAL;
		auxiliary.kind = levels_of(wanted)->auxiliary.kind;
		auxiliary.grade = levels_of(wanted)->auxiliary.grade;
	}
	if (is_exempt(subject_label))
		return 0;
	level = level_of(former, &of_usual);
	if (!has_level(subject_label) || !level)
		return -EPERM;
	read_range(&range, subject_label);
	if (!is_within(level, &range) || !may_give(next, &range))
		return -EPERM;
	return !auxiliary.kind || may_give(&auxiliary, &range) ? 0 : -EPERM;
}

#endif
