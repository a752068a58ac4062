// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `test` declares every entry point and checks what the framework promises about
 * requests. For one user it refuses with the errors of its settings, which shows how answers are
 * composed.
 */
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

MAC_POLICY(test);
MAC_SETTINGS(struct usher_mac_test);

/* An error that no setting should have: the framework has broken a promise. */
#define BROKEN (-EPROTO)

/* Types of files. */
#define TYPE(mode) ((mode) >> 12 & 15)
#define DIRECTORY 4

static __always_inline int is_whole(const struct usher_mac_file *file)
{
	return file->inode && TYPE(file->mode);
}

static __always_inline int is_directory(const struct usher_mac_file *file)
{
	return is_whole(file) && TYPE(file->mode) == DIRECTORY;
}

static __always_inline int answer(const struct usher_mac_subject *subject, __u32 point)
{
	const struct usher_mac_test *now = mac_settings();

	if (!now)
		return -EACCES;
	if (subject->reserved || !subject->process)
		return BROKEN;
	if (subject->uid != now->uid || point >= sizeof(now->errors) / sizeof(now->errors[0]))
		return 0;
	return -(int)now->errors[point];
}

#define ANSWER(name) answer(subject, MAC_POINT_##name)

MAC_CHECK(file_open)
{
	return is_whole(&request->file) && !request->reserved ? ANSWER(file_open) : BROKEN;
}

MAC_CHECK(inode_permission)
{
	return is_whole(&request->file) && request->access ? ANSWER(inode_permission) : BROKEN;
}

MAC_CHECK(inode_getattr)
{
	return ANSWER(inode_getattr);
}

MAC_CHECK(inode_create)
{
	return is_directory(&request->directory) ? ANSWER(inode_create) : BROKEN;
}

MAC_CHECK(inode_link)
{
	return is_directory(&request->directory) && is_whole(&request->file) ? ANSWER(inode_link)
									     : BROKEN;
}

MAC_CHECK(inode_unlink)
{
	return is_directory(&request->directory) && is_whole(&request->file) ? ANSWER(inode_unlink)
									     : BROKEN;
}

MAC_CHECK(inode_rename)
{
	return is_directory(&request->directory) && is_whole(&request->file) ? ANSWER(inode_rename)
									     : BROKEN;
}

MAC_CHECK(inode_rename_to)
{
	if (!is_directory(&request->directory) ||
	    (request->replaces && !is_whole(&request->replaced)))
		return BROKEN;
	return ANSWER(inode_rename_to);
}

MAC_CHECK(inode_setattr)
{
	return ANSWER(inode_setattr);
}

MAC_CHECK(bprm_check_security)
{
	return is_whole(&request->file) ? ANSWER(bprm_check_security) : BROKEN;
}

MAC_CHECK(mmap_file)
{
	return ANSWER(mmap_file);
}

MAC_CHECK(task_kill)
{
	return request->process ? ANSWER(task_kill) : BROKEN;
}

MAC_CHECK(socket_bind)
{
	return request->family ? ANSWER(socket_bind) : BROKEN;
}

MAC_CHECK(socket_connect)
{
	return request->family ? ANSWER(socket_connect) : BROKEN;
}
