// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include <usher_mac_policy.h>

MAC_POLICY(exempting);

#define WRITE_BY_OTHERS 022
#define MOST_USERS 16

struct exempting_settings {
	__u32 exempt_count;
	__u32 exempt[MOST_USERS];
};

MAC_SETTINGS(struct exempting_settings);
MAC_STATEMENTS(MAC_USERS(exempt));

static __always_inline int is_exempt(__u32 uid)
{
	const struct exempting_settings *settings = mac_settings();

	for (__u32 i = 0; settings && i < MOST_USERS && i < settings->exempt_count; i++)
		if (settings->exempt[i] == uid)
			return 1;
	return 0;
}

MAC_CHECK(bprm_check_security)
{
	const struct usher_mac_file *file = &request->file;

	if (subject->euid == 0 || is_exempt(subject->uid))
		return 0;
	return file->uid == 0 && !(file->mode & WRITE_BY_OTHERS) ? 0 : -EACCES;
}
