// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/partition.bpf.c"

#define ANSWERS                                                                                    \
	ASK(task_kill)                                                                             \
	ASK(ptrace_access_check)                                                                   \
	ASK(ptrace_traceme)                                                                        \
	ASK(task_setscheduler)                                                                     \
	ASK(task_setnice)                                                                          \
	ASK(task_setpgid)                                                                          \
	ASK(task_prlimit)                                                                          \
	ASK(unix_stream_connect)                                                                   \
	ASK(unix_may_send)                                                                         \
	ASK(msg_queue_associate)                                                                   \
	ASK(msg_queue_msgctl)                                                                      \
	ASK(msg_queue_msgsnd)                                                                      \
	ASK(msg_queue_msgrcv)                                                                      \
	ASK(sem_associate)                                                                         \
	ASK(sem_semctl)                                                                            \
	ASK(sem_semop)                                                                             \
	ASK(shm_associate) ASK(shm_shmctl) ASK(shm_shmat) ASK(relabel_process) ASK(new_file)

#include "asked.h"
