// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include <usher_mac_policy.h>

MAC_POLICY(trusted_path);

#define WRITE_BY_OTHERS 022
#define EXECUTABLE 4 /* PROT_EXEC of mmap(2) */

static __always_inline int decide(const struct usher_mac_subject *subject,
				  const struct usher_mac_file *file)
{
	if (subject->euid == 0)
		return 0;
	if (file->uid == 0 && !(file->mode & WRITE_BY_OTHERS))
		return 0;
	return -EACCES;
}

MAC_CHECK(bprm_check_security)
{
	return decide(subject, &request->file);
}

MAC_CHECK(mmap_file)
{
	if (request->protection & EXECUTABLE)
		return decide(subject, &request->file);
	return 0;
}
