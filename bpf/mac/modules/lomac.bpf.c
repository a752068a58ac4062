// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `lomac`: integrity by low watermarks. A process does not change what is more
 * trustworthy than itself, as with `biba`. But it may read what is less so, and is at that level
 * from then on, as in T. Fraser's LOMAC and FreeBSD's mac_lomac(4).
 *
 * Names, attributes and links are read freely, as on FreeBSD: what is in a file is what counts.
 * Where the module cannot lower a process, it refuses what `biba` refuses: no process acts at
 * packets, and an open stream carries data both ways without a question.
 */
#include "usher_mac_levels.h"
#include "usher_mac_policy.h"

MAC_POLICY(lomac, .label = USHER_MAC_AUXILIARY, .exempts_without_element = 1,
	   .decides_by_labels = 1);

#define KIND USHER_MAC_AUXILIARY
#define MAY_FLOW(from, to) usher_mac_dominates(from, to)
#define USUAL USHER_MAC_LEVEL_HIGH
#define ATTRIBUTES 0

#include "levels.h"

#include "privileges.h"

/* The auxiliary level of an object. The kind of the result is USHER_MAC_LEVEL_NONE if the object
 * has none. */
static __always_inline struct usher_mac_level auxiliary_of(const struct usher_mac_element *object)
{
	struct usher_mac_level level = {};

	if (object->kind == KIND) {
		level.kind = levels_of(object)->auxiliary.kind;
		level.grade = levels_of(object)->auxiliary.grade;
	}
	return level;
}

/* Lowers a process to a level, and its range to what lies below: it does not rise again, and
 * `equal` is out of its reach. */
static __always_inline void lower(struct usher_mac_levels *levels,
				  const struct usher_mac_level *level)
{
	levels->effective = *level;
	if (!levels->low.kind)
		return;
	levels->high = *level;
	if (levels->low.kind == USHER_MAC_LEVEL_EQUAL || !usher_mac_dominates(level, &levels->low))
		levels->low = *level;
}

/* A process reads an object, and perhaps writes it: what it may not read lowers it. */
static __always_inline int take_in(const struct usher_mac_element *own,
				   const struct usher_mac_element *object, __u32 usual, __u32 ways,
				   struct usher_mac_element *element)
{
	struct usher_mac_level of_usual = { .kind = usual };
	const struct usher_mac_level *level;
	int refused = may(own, object, usual, ways & WRITES);

	if (refused || !(ways & READS) || is_exempt(own))
		return refused;
	level = level_of(object, &of_usual);
	if (!level)
		return -EACCES;
	if (usher_mac_dominates(level, &levels_of(own)->effective))
		return 0;
	*element = *own;
	lower((struct usher_mac_levels *)element->value, level);
	return MAC_DEMOTES;
}

/* A name is looked up, and a file opened, without reading what is in it. */
#define OPENS(point)                                                                               \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		__u32 ways = ways_of(request->access) & WRITES;                                    \
                                                                                                   \
		return ways ? may(subject_label, object_label, usual_of(&request->file), ways)     \
			    : 0;                                                                   \
	}

OPENS(inode_permission)
OPENS(file_open)

/* Asked at each use. A directory has names only. */
MAC_DEMOTING(file_permission)
{
	__u32 usual = usual_of(&request->file), ways = ways_of(request->access);

	if (TYPE(request->file.mode) == PIPE || TYPE(request->file.mode) == SOCKET)
		usual = USHER_MAC_LEVEL_EQUAL;
	if (TYPE(request->file.mode) == DIRECTORY)
		ways &= WRITES;
	return take_in(subject_label, object_label, usual, ways, element);
}

/* Decides about every access that the mapping may permit later: the check of mprotect(2) does not
 * get the file's label. */
MAC_DEMOTING(mmap_file)
{
	__u32 ways = 0;

	if (request->permitted & PROT_READ)
		ways |= READS;
	if (request->permitted & PROT_WRITE)
		ways |= WRITES;
	return take_in(subject_label, object_label, usual_of(&request->file), ways, element);
}

MAC_DEMOTING(socket_recvmsg)
{
	return take_in(subject_label, object_label, USHER_MAC_LEVEL_EQUAL, READS, element);
}

/* Receiving a message removes it. */
MAC_DEMOTING(msg_queue_msgrcv)
{
	return take_in(subject_label, object_label, USUAL, READS | WRITES, element);
}

MAC_DEMOTING(shm_shmat)
{
	__u32 ways = request->argument & SHM_RDONLY ? READS : READS | WRITES;

	return take_in(subject_label, object_label, USUAL, ways, element);
}

/* Other options return nothing that was sent. */
MAC_CHECK(socket_getsockopt)
{
	if (request->level != IPPROTO_TCP || request->option != TCP_ZEROCOPY_RECEIVE)
		return 0;
	return may(subject_label, object_label, USHER_MAC_LEVEL_EQUAL, READS);
}

/* A new file in a directory with an auxiliary level gets that level. */
#define MAKES_FILE(point)                                                                          \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		struct usher_mac_level level = auxiliary_of(directory_label);                      \
		int refused = may(subject_label, directory_label,                                  \
				  usual_of_directory(&request->directory), WRITES);                \
                                                                                                   \
		if (refused || !level.kind || is_exempt(subject_label))                            \
			return refused;                                                            \
		return MAY_FLOW(&levels_of(subject_label)->effective, &level) ? 0 : -EACCES;       \
	}

MAKES_FILE(inode_create)
MAKES_FILE(inode_mkdir)
MAKES_FILE(inode_symlink)
MAKES_FILE(inode_mknod)

/* Reading what a process shows of itself is not reading its memory. */
MAC_CHECK(ptrace_access_check)
{
	return request->argument & PTRACE_MODE_ATTACH
		   ? may(subject_label, object_label, USUAL, READS | WRITES)
		   : 0;
}

/* Lowers a new program to the level of its file, and to the file's auxiliary level, where these do
 * not dominate its own. */
MAC_DECISION(new_program)
{
	struct usher_mac_levels *levels = (struct usher_mac_levels *)element->value;
	struct usher_mac_level of_usual = { .kind = USUAL }, auxiliary = auxiliary_of(object_label);
	const struct usher_mac_level *level = level_of(object_label, &of_usual);

	if (is_exempt(element))
		return 0;
	if (!has_level(element) || !level)
		return -EACCES;
	if (!usher_mac_dominates(level, &levels->effective))
		lower(levels, level);
	if (auxiliary.kind && !usher_mac_dominates(&auxiliary, &levels->effective))
		lower(levels, &auxiliary);
	return 0;
}

/* A new file has the auxiliary level of its directory, if its maker dominates that, or else the
 * level of its maker; the file of an exempt maker has the usual level. */
MAC_DECISION(new_file)
{
	struct usher_mac_levels *levels = (struct usher_mac_levels *)element->value;
	struct usher_mac_level auxiliary = auxiliary_of(object_label);

	__builtin_memset(element, 0, sizeof(*element));
	element->kind = KIND;
	if (has_level(subject_label) && !is_exempt(subject_label))
		levels->effective = levels_of(subject_label)->effective;
	else
		levels->effective.kind = USUAL;
	if (auxiliary.kind && usher_mac_dominates(&levels->effective, &auxiliary))
		levels->effective = auxiliary;
	return 0;
}
