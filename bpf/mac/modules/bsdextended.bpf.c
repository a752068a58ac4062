// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `bsdextended`: rules on accesses to files, by the user and groups of the process and
 * the owner, group, type and file system of the file, as FreeBSD's mac_bsdextended(4) and ugidfw(8)
 * have them.
 *
 * The first rule that matches decides; an access that none matches is permitted. A rule permits
 * what its mode has. What it lacks is refused with EACCES, but a capability of the initial user
 * namespace makes up for it, as the superuser's privileges do on FreeBSD: CAP_DAC_OVERRIDE for all
 * but `a`, CAP_DAC_READ_SEARCH for reading, attributes, and looking up names, CAP_FOWNER for `a`.
 *
 * Open files stay open when the rules change. Removing, linking and renaming ask for writing
 * of the directory and of the file, as on FreeBSD.
 */
#include "kernel_numbers.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

MAC_POLICY(bsdextended);
MAC_SETTINGS(struct usher_mac_bsdextended);

#define DAC_OVERRIDE (1ULL << CAP_DAC_OVERRIDE)
#define DAC_READ_SEARCH (1ULL << CAP_DAC_READ_SEARCH)
#define FOWNER (1ULL << CAP_FOWNER)

/* An access that is compared with the rules. */
struct inspection {
	const struct usher_mac_bsdextended *now;
	const struct usher_mac_subject *subject;
	const struct usher_mac_file *file;
	__u32 wanted; /* enum usher_mac_rights */
	int answer;
};

static __always_inline int is_in(const struct usher_mac_range *range, __u32 number)
{
	return range->first <= number && number <= range->last;
}

static __always_inline int is_in_any(const struct usher_mac_range *ranges, __u32 number)
{
	return is_in(&ranges[0], number) || is_in(&ranges[1], number) ||
	       is_in(&ranges[2], number) || is_in(&ranges[3], number);
}

static __always_inline int has_uid(const struct usher_mac_range *ranges,
				   const struct usher_mac_subject *subject)
{
	return is_in_any(ranges, subject->uid) || is_in_any(ranges, subject->euid) ||
	       is_in_any(ranges, subject->suid) || is_in_any(ranges, subject->fsuid);
}

static __always_inline int groups_meet(const struct usher_mac_range *range)
{
	return range->first <= range->last && mac_is_in_groups(range->first, range->last);
}

static __always_inline int has_gid(const struct usher_mac_range *ranges,
				   const struct usher_mac_subject *subject)
{
	return is_in_any(ranges, subject->gid) || is_in_any(ranges, subject->egid) ||
	       is_in_any(ranges, subject->sgid) || is_in_any(ranges, subject->fsgid) ||
	       groups_meet(&ranges[0]) || groups_meet(&ranges[1]) || groups_meet(&ranges[2]) ||
	       groups_meet(&ranges[3]);
}

static __always_inline int owns(const struct usher_mac_subject *subject, __u32 uid)
{
	return subject->uid == uid || subject->euid == uid || subject->suid == uid ||
	       subject->fsuid == uid;
}

static __always_inline int is_member(const struct usher_mac_subject *subject, __u32 gid)
{
	return subject->gid == gid || subject->egid == gid || subject->sgid == gid ||
	       subject->fsgid == gid || mac_is_in_groups(gid, gid);
}

/* Whether the rule does not have the condition, or it is met. */
#define HOLDS(condition, met)                                                                      \
	(!(rule->has & (condition)) || !(rule->inverted & (condition)) == !!(met))

static __always_inline int matches(const struct usher_mac_rule *rule,
				   const struct usher_mac_subject *subject,
				   const struct usher_mac_file *file)
{
	return HOLDS(USHER_MAC_SUBJECT_UID, has_uid(rule->subject_uids, subject)) &&
	       HOLDS(USHER_MAC_SUBJECT_GID, has_gid(rule->subject_gids, subject)) &&
	       HOLDS(USHER_MAC_OBJECT_UID, is_in_any(rule->object_uids, file->uid)) &&
	       HOLDS(USHER_MAC_OBJECT_GID, is_in_any(rule->object_gids, file->gid)) &&
	       HOLDS(USHER_MAC_OBJECT_DEVICE, rule->device == file->device) &&
	       HOLDS(USHER_MAC_OBJECT_SUID, file->mode & S_ISUID) &&
	       HOLDS(USHER_MAC_OBJECT_SGID, file->mode & S_ISGID) &&
	       HOLDS(USHER_MAC_UID_OF_SUBJECT, owns(subject, file->uid)) &&
	       HOLDS(USHER_MAC_GID_OF_SUBJECT, is_member(subject, file->gid)) &&
	       HOLDS(USHER_MAC_OBJECT_TYPE, rule->types >> TYPE(file->mode) & 1);
}

/* The rights that capabilities stand for. */
static __always_inline __u32 privileges(const struct usher_mac_subject *subject,
					const struct usher_mac_file *file)
{
	__u32 rights = 0;

	if (subject->capabilities & DAC_OVERRIDE)
		rights |= USHER_MAC_RIGHT_READ | USHER_MAC_RIGHT_STAT | USHER_MAC_RIGHT_WRITE |
			  USHER_MAC_RIGHT_EXECUTE;
	if (subject->capabilities & DAC_READ_SEARCH) {
		rights |= USHER_MAC_RIGHT_READ | USHER_MAC_RIGHT_STAT;
		if (TYPE(file->mode) == DIRECTORY)
			rights |= USHER_MAC_RIGHT_EXECUTE;
	}
	if (subject->capabilities & FOWNER)
		rights |= USHER_MAC_RIGHT_ADMIN;
	return rights;
}

/* Asks one rule. Returns 1 when it has decided. */
static long ask_rule(__u32 index, struct inspection *access)
{
	const struct usher_mac_rule *rule;

	if (index >= USHER_MAC_RULES)
		return 1;
	rule = &access->now->rules[index];
	if (!matches(rule, access->subject, access->file))
		return 0;
	if (access->wanted & ~(rule->mode | privileges(access->subject, access->file)))
		access->answer = -EACCES;
	return 1;
}

static __always_inline int inspect(const struct usher_mac_subject *subject,
				   const struct usher_mac_file *file, __u32 wanted)
{
	struct inspection access = {
		.now = mac_settings(),
		.subject = subject,
		.file = file,
		.wanted = wanted,
	};

	if (!access.now)
		return -EACCES;
	if (!wanted)
		return 0;
	MAC_LOOP(access.now->count, ask_rule, &access);
	return access.answer;
}

/* The rights that an access needs. Appending is writing. */
static __always_inline __u32 rights(__u32 access)
{
	__u32 wanted = 0;

	if (access & USHER_MAC_READ)
		wanted |= USHER_MAC_RIGHT_READ;
	if (access & (USHER_MAC_WRITE | USHER_MAC_APPEND))
		wanted |= USHER_MAC_RIGHT_WRITE;
	if (access & USHER_MAC_EXECUTE)
		wanted |= USHER_MAC_RIGHT_EXECUTE;
	return wanted;
}

MAC_CHECK(inode_permission)
{
	return inspect(subject, &request->file, rights(request->access));
}

/* Asked as well, because the file system may not have asked inode_permission. */
MAC_CHECK(file_open)
{
	return inspect(subject, &request->file, rights(request->access));
}

MAC_CHECK(inode_getattr)
{
	return inspect(subject, request, USHER_MAC_RIGHT_STAT);
}

MAC_CHECK(inode_create)
{
	return inspect(subject, &request->directory, USHER_MAC_RIGHT_WRITE);
}

MAC_CHECK(inode_link)
{
	int refused = inspect(subject, &request->directory, USHER_MAC_RIGHT_WRITE);

	return refused ? refused : inspect(subject, &request->file, USHER_MAC_RIGHT_WRITE);
}

MAC_CHECK(inode_unlink)
{
	int refused = inspect(subject, &request->directory, USHER_MAC_RIGHT_WRITE);

	return refused ? refused : inspect(subject, &request->file, USHER_MAC_RIGHT_WRITE);
}

MAC_CHECK(inode_rename)
{
	int refused = inspect(subject, &request->directory, USHER_MAC_RIGHT_WRITE);

	return refused ? refused : inspect(subject, &request->file, USHER_MAC_RIGHT_WRITE);
}

MAC_CHECK(inode_rename_to)
{
	int refused = inspect(subject, &request->directory, USHER_MAC_RIGHT_WRITE);

	if (!refused && request->replaces)
		refused = inspect(subject, &request->replaced, USHER_MAC_RIGHT_WRITE);
	return refused;
}

/* Changing the size is writing, which the kernel has asked inode_permission about. */
MAC_CHECK(inode_setattr)
{
	__u32 admin = USHER_MAC_CHANGES_MODE | USHER_MAC_CHANGES_UID | USHER_MAC_CHANGES_GID |
		      USHER_MAC_CHANGES_TIMES;

	if (!(request->changes & admin))
		return 0;
	return inspect(subject, &request->file, USHER_MAC_RIGHT_ADMIN);
}

MAC_CHECK(bprm_check_security)
{
	return inspect(subject, &request->file, USHER_MAC_RIGHT_EXECUTE);
}

/* Access control lists change the mode as well. */
MAC_CHECK(inode_set_acl)
{
	return inspect(subject, &request->file, USHER_MAC_RIGHT_ADMIN);
}

MAC_CHECK(inode_remove_acl)
{
	return inspect(subject, &request->file, USHER_MAC_RIGHT_ADMIN);
}
