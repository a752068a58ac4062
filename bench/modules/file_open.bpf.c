// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A module that declares only what it needs: one user may not open another user's files. The
 * measuring guest has neither user.
 */
#include "usher_mac_policy.h"

MAC_POLICY(file_open);

#define USER 4711
#define OTHER 4712

MAC_CHECK(file_open)
{
	return subject->euid == USER && request->file.uid == OTHER ? -EACCES : 0;
}
