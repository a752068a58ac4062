/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs the functions of biba or mls, which comes before this text, in user space. Reads questions
 * from standard input until it ends. Writes an answer and the last element to each.
 */
#include <stdio.h>

struct question {
	__u32 point; /* enum mac_point */
	__u32 reserved;
	struct usher_mac_subject subject;
	__u64 request[16];
	struct usher_mac_element own;
	struct usher_mac_element object; /* of the object; former */
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
		ASK(inode_permission)
		ASK(file_open)
		ASK(file_permission)
		ASK(mmap_file)
		ASK(inode_getattr)
		ASK(inode_create)
		ASK(inode_rmdir)
		ASK(inode_link)
		ASK(inode_rename_to)
		ASK(inode_setattr)
		ASK(bprm_check_security)
		ASK(task_kill)
		ASK(ptrace_access_check)
		ASK(ptrace_traceme)
		ASK(socket_sendmsg)
		ASK(socket_recvmsg)
		ASK(unix_stream_connect)
		ASK(socket_deliver)
		ASK(interface_transmit)
		ASK(msg_queue_msgsnd)
		ASK(msg_queue_msgrcv)
		ASK(sem_semop)
		ASK(shm_shmat)
		ASK(relabel_process)
		ASK(relabel_file)
		ASK(new_file)
#ifdef HAS_CAPABLE
		ASK(capable)
#endif
	}
	return 1;
}

int main(void)
{
	struct question asked;

	while (fread(&asked, sizeof(asked), 1, stdin) == 1) {
		int given = answer(&asked);

		if (fwrite(&given, sizeof(given), 1, stdout) != 1 ||
		    fwrite(&asked.last, sizeof(asked.last), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
