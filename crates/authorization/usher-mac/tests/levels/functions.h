/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The functions that biba, mls and lomac have. */
#define LEVELS                                                                                     \
	ASK(inode_permission)                                                                      \
	ASK(file_open)                                                                             \
	ASK(file_permission)                                                                       \
	ASK(mmap_file)                                                                             \
	ASK(inode_create)                                                                          \
	ASK(inode_rmdir)                                                                           \
	ASK(inode_link)                                                                            \
	ASK(inode_rename_to)                                                                       \
	ASK(inode_setattr)                                                                         \
	ASK(inode_set_acl)                                                                         \
	ASK(inode_remove_acl)                                                                      \
	ASK(task_kill)                                                                             \
	ASK(ptrace_access_check)                                                                   \
	ASK(ptrace_traceme)                                                                        \
	ASK(socket_sendmsg)                                                                        \
	ASK(socket_recvmsg)                                                                        \
	ASK(unix_stream_connect)                                                                   \
	ASK(socket_deliver)                                                                        \
	ASK(interface_transmit)                                                                    \
	ASK(task_prlimit)                                                                          \
	ASK(msg_queue_msgctl)                                                                      \
	ASK(sem_semctl)                                                                            \
	ASK(shm_shmctl)                                                                            \
	ASK(file_ioctl)                                                                            \
	ASK(file_ioctl_compat)                                                                     \
	ASK(socket_create)                                                                         \
	ASK(socket_setsockopt)                                                                     \
	ASK(inode_mkdir)                                                                           \
	ASK(inode_symlink)                                                                         \
	ASK(inode_mknod)                                                                           \
	ASK(inode_unlink)                                                                          \
	ASK(inode_rename)                                                                          \
	ASK(task_setscheduler)                                                                     \
	ASK(task_setnice)                                                                          \
	ASK(socket_getsockopt)                                                                     \
	ASK(unix_may_send)                                                                         \
	ASK(msg_queue_msgsnd)                                                                      \
	ASK(msg_queue_msgrcv)                                                                      \
	ASK(sem_semop)                                                                             \
	ASK(shm_shmat)                                                                             \
	ASK(relabel_process)                                                                       \
	ASK(relabel_file)                                                                          \
	ASK(new_file)

/* LEVELS, and the entry points that only biba and mls have. */
#define FIXED_LEVELS                                                                               \
	LEVELS                                                                                     \
	ASK(inode_getattr)                                                                         \
	ASK(bprm_check_security)
