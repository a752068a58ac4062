// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Runs the functions of the module ubns in user space. Reads from standard input: the settings;
 * then questions until it ends. Writes an answer and the last element to each.
 */
#include <stdio.h>

#include "modules/ubns.bpf.c"

struct question {
	__u32 point; /* enum mac_point */
	__u32 reserved;
	struct usher_mac_subject subject;
	__u64 request[16];
	struct usher_mac_element own;
	struct usher_mac_element object;
	struct usher_mac_element last; /* of the directory; wanted; decided */
};

int mac_is_in_groups(__u32 first, __u32 last)
{
	return 0;
}

#define ASK(point)                                                                                 \
	case MAC_POINT_##point:                                                                    \
		return check_##point(&asked->subject, (const void *)asked->request, &asked->own,   \
				     &asked->object, &asked->last);

static int answer(struct question *asked)
{
	switch (asked->point) {
		ASK(socket_bind)
		ASK(socket_connect)
		ASK(socket_sendmsg)
		ASK(socket_create)
		ASK(socket_listen)
		ASK(socket_accept)
		ASK(ptrace_access_check)
		ASK(ptrace_traceme)
		ASK(file_open)
		ASK(inode_create)
		ASK(inode_mkdir)
		ASK(inode_symlink)
		ASK(inode_mknod)
		ASK(inode_link)
		ASK(inode_unlink)
		ASK(inode_rmdir)
		ASK(inode_rename)
		ASK(inode_rename_to)
		ASK(inode_setattr)
		ASK(relabel_process)
		ASK(new_program)
		ASK(relabel_file)
		ASK(new_file)
	}
	return 1;
}

int main(void)
{
	static struct usher_mac_ubns settings;
	struct question asked;

	if (fread(&settings, sizeof(settings), 1, stdin) != 1)
		return 1;
	mac_current_settings = &settings;
	while (fread(&asked, sizeof(asked), 1, stdin) == 1) {
		int given = answer(&asked);

		if (fwrite(&given, sizeof(given), 1, stdout) != 1 ||
		    fwrite(&asked.last, sizeof(asked.last), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
