// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Runs the functions of the module te in user space. Reads from standard input: the settings; then
 * questions until it ends. Writes an answer and the last element to each, then the settings as they
 * are then.
 */
#include <stdio.h>

#include "modules/te.bpf.c"

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
		ASK(inode_permission)
		ASK(file_open)
		ASK(file_permission)
		ASK(mmap_file)
		ASK(file_mprotect)
		ASK(file_ioctl)
		ASK(file_ioctl_compat)
		ASK(inode_getattr)
		ASK(inode_setattr)
		ASK(inode_set_acl)
		ASK(inode_remove_acl)
		ASK(inode_create)
		ASK(inode_mkdir)
		ASK(inode_symlink)
		ASK(inode_mknod)
		ASK(inode_rmdir)
		ASK(inode_link)
		ASK(inode_unlink)
		ASK(inode_rename)
		ASK(inode_rename_to)
		ASK(bprm_check_security)
		ASK(task_kill)
		ASK(task_setscheduler)
		ASK(task_setnice)
		ASK(ptrace_access_check)
		ASK(ptrace_traceme)
		ASK(task_prlimit)
		ASK(socket_sendmsg)
		ASK(socket_recvmsg)
		ASK(socket_getsockopt)
		ASK(socket_bind)
		ASK(socket_listen)
		ASK(socket_accept)
		ASK(socket_connect)
		ASK(unix_stream_connect)
		ASK(unix_may_send)
		ASK(socket_create)
		ASK(socket_deliver)
		ASK(interface_transmit)
		ASK(msg_queue_msgctl)
		ASK(msg_queue_msgsnd)
		ASK(msg_queue_msgrcv)
		ASK(sem_semctl)
		ASK(sem_semop)
		ASK(shm_shmctl)
		ASK(shm_shmat)
		ASK(capable)
		ASK(relabel_process)
		ASK(new_program)
		ASK(relabel_file)
		ASK(new_file)
	}
	return 1;
}

int main(void)
{
	static struct usher_mac_te settings;
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
	return fwrite(&settings, sizeof(settings), 1, stdout) != 1;
}
