/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The checks of `biba` and `mls`, whose information flows between levels in opposite directions,
 * and whose processes keep their level: what they may not read is refused. See levels.h.
 */
#ifndef USHER_MAC_MODULE_FIXED_LEVELS_H
#define USHER_MAC_MODULE_FIXED_LEVELS_H

#define KIND USHER_MAC_LEVELS
#define ATTRIBUTES READS

#include "levels.h"

MAC_CHECK(inode_permission)
{
	return may(subject_label, object_label, usual_of(&request->file), ways_of(request->access));
}

MAC_CHECK(file_open)
{
	return may(subject_label, object_label, usual_of(&request->file), ways_of(request->access));
}

/* Asked at each use, because a process may have changed its level, or got the open file from
 * another one. */
MAC_CHECK(file_permission)
{
	__u32 usual = usual_of(&request->file);

	if (TYPE(request->file.mode) == PIPE || TYPE(request->file.mode) == SOCKET)
		usual = USHER_MAC_LEVEL_EQUAL;
	return may(subject_label, object_label, usual, ways_of(request->access));
}

/* Decides about every access that the mapping may permit later: the check of mprotect(2) does not
 * get the file's label. */
MAC_CHECK(mmap_file)
{
	__u32 ways = 0;

	if (request->permitted & PROT_READ)
		ways |= READS;
	if (request->permitted & PROT_WRITE)
		ways |= WRITES;
	return may(subject_label, object_label, usual_of(&request->file), ways);
}

MAC_CHECK(inode_getattr)
{
	return may(subject_label, object_label, usual_of(request), READS);
}

#define MAKES_NAME(point)                                                                          \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may(subject_label, directory_label,                                         \
			   usual_of_directory(&request->directory), WRITES);                       \
	}

MAKES_NAME(inode_create)
MAKES_NAME(inode_mkdir)
MAKES_NAME(inode_symlink)
MAKES_NAME(inode_mknod)

MAC_CHECK(bprm_check_security)
{
	return may(subject_label, object_label, USUAL, READS);
}

MAC_CHECK(ptrace_access_check)
{
	__u32 ways = request->argument & PTRACE_MODE_ATTACH ? READS | WRITES : READS;

	return may(subject_label, object_label, USUAL, ways);
}

USES_SOCKET(socket_recvmsg, READS)
USES_SOCKET(socket_getsockopt, READS)

/* Receiving a message removes it. */
USES_IPC(msg_queue_msgrcv, READS | WRITES)
USES_IPC(shm_shmat, request->argument &SHM_RDONLY ? READS : READS | WRITES)

/* A new file has the level of its maker. The file of an exempt maker has the usual level: not
 * everybody may change what root installs or restores. */
MAC_DECISION(new_file)
{
	struct usher_mac_levels *levels = (struct usher_mac_levels *)element->value;

	__builtin_memset(element, 0, sizeof(*element));
	element->kind = USHER_MAC_LEVELS;
	if (has_level(subject_label) && !is_exempt(subject_label))
		levels->effective = levels_of(subject_label)->effective;
	else
		levels->effective.kind = USUAL;
	return 0;
}

#endif
