/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Dispatchers of hooks about System V message queues, semaphores and shared memory. */
#ifndef USHER_MAC_IPC_H
#define USHER_MAC_IPC_H

#include "accesses.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kern_ipc_perm {
	int id;
	int key;
	kuid_t uid;
	kgid_t gid;
	kuid_t cuid;
	kgid_t cgid;
	unsigned short mode;
};

#pragma clang attribute pop

struct msg_msg;
struct sembuf;

/* Reads an object, which is NULL for questions about all of them: zeros then. */
static __always_inline void read_ipc(struct usher_mac_ipc *wanted, struct kern_ipc_perm *of)
{
	const struct kern_ipc_perm *object = bpf_core_cast(of, struct kern_ipc_perm);

	wanted->id = object->id;
	wanted->key = object->key;
	wanted->uid = object->uid.val;
	wanted->gid = object->gid.val;
	wanted->creator_uid = object->cuid.val;
	wanted->creator_gid = object->cgid.val;
	wanted->mode = object->mode;
}

/* Asks the modules about an object. */
#define MAC_ASK_ABOUT_IPC(name, asked, caller, wanted, of)                                         \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		if (begin_labels(&labels, asked, caller))                                          \
			read_ipc_label(&labels.object, of);                                        \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* Hook: msg_queue_associate, because msgget(2) finds an existing queue there. */
SEC("lsm/msg_queue_associate")
int BPF_PROG(dispatch_msg_queue_associate, struct kern_ipc_perm *object, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_msg_queue_associate, &caller);
	struct usher_mac_ipc wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(msg_queue_associate, asked, &caller, &wanted, object);
}

/* Hook: msg_queue_msgctl, because msgctl(2) passes it. */
SEC("lsm/msg_queue_msgctl")
int BPF_PROG(dispatch_msg_queue_msgctl, struct kern_ipc_perm *object, int command)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_msg_queue_msgctl, &caller);
	struct usher_mac_ipc wanted = { .argument = command };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(msg_queue_msgctl, asked, &caller, &wanted, object);
}

/* Hook: msg_queue_msgsnd, because msgsnd(2) passes it. */
SEC("lsm/msg_queue_msgsnd")
int BPF_PROG(dispatch_msg_queue_msgsnd, struct kern_ipc_perm *object, struct msg_msg *message,
	     int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_msg_queue_msgsnd, &caller);
	struct usher_mac_ipc wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(msg_queue_msgsnd, asked, &caller, &wanted, object);
}

/*
 * Hook: msg_queue_msgrcv, because msgrcv(2) passes it for each message that it looks at. The
 * receiving process is the subject. It may be another one than the caller, which then sends.
 */
SEC("lsm/msg_queue_msgrcv")
int BPF_PROG(dispatch_msg_queue_msgrcv, struct kern_ipc_perm *object, struct msg_msg *message,
	     struct task_struct *receiver, long kind, int mode)
{
	usher_mac_slots asked = modules_at(MAC_POINT_msg_queue_msgrcv);
	struct usher_mac_ipc wanted = { .argument = mode };
	struct usher_mac_subject subject;
	struct mac_asker taker;
	struct mac_labels labels;

	asked = those_about(asked, receiver, &taker);
	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	read_subject(&subject);
	read_credentials(&subject, task_of(receiver)->cred);
	subject.process = task_of(receiver)->tgid;
	if (begin_labels(&labels, asked, &taker))
		read_ipc_label(&labels.object, object);
	return mac_ask_msg_queue_msgrcv(asked, &subject, &wanted, &labels);
}

/* Hook: sem_associate, because semget(2) finds an existing set there. */
SEC("lsm/sem_associate")
int BPF_PROG(dispatch_sem_associate, struct kern_ipc_perm *object, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sem_associate, &caller);
	struct usher_mac_ipc wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(sem_associate, asked, &caller, &wanted, object);
}

/* Hook: sem_semctl, because semctl(2) passes it. */
SEC("lsm/sem_semctl")
int BPF_PROG(dispatch_sem_semctl, struct kern_ipc_perm *object, int command)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sem_semctl, &caller);
	struct usher_mac_ipc wanted = { .argument = command };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(sem_semctl, asked, &caller, &wanted, object);
}

/* Hook: sem_semop, because semop(2) passes it. */
SEC("lsm/sem_semop")
int BPF_PROG(dispatch_sem_semop, struct kern_ipc_perm *object, struct sembuf *operations,
	     unsigned int count, int alters)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_sem_semop, &caller);
	struct usher_mac_ipc wanted = { .argument = alters };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(sem_semop, asked, &caller, &wanted, object);
}

/* Hook: shm_associate, because shmget(2) finds an existing segment there. */
SEC("lsm/shm_associate")
int BPF_PROG(dispatch_shm_associate, struct kern_ipc_perm *object, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_shm_associate, &caller);
	struct usher_mac_ipc wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(shm_associate, asked, &caller, &wanted, object);
}

/* Hook: shm_shmctl, because shmctl(2) passes it. */
SEC("lsm/shm_shmctl")
int BPF_PROG(dispatch_shm_shmctl, struct kern_ipc_perm *object, int command)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_shm_shmctl, &caller);
	struct usher_mac_ipc wanted = { .argument = command };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(shm_shmctl, asked, &caller, &wanted, object);
}

/* Hook: shm_shmat, because shmat(2) passes it. */
SEC("lsm/shm_shmat")
int BPF_PROG(dispatch_shm_shmat, struct kern_ipc_perm *object, char *address, int flags)
{
	struct mac_asker caller;
	usher_mac_slots asked = modules_about_caller(MAC_POINT_shm_shmat, &caller);
	struct usher_mac_ipc wanted = { .argument = flags };

	if (!asked)
		return 0;
	read_ipc(&wanted, object);
	return MAC_ASK_ABOUT_IPC(shm_shmat, asked, &caller, &wanted, object);
}

#endif
