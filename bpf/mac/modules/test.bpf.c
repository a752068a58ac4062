// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* clang-format off */
/*
 * The module `test` declares every entry point and checks what the framework promises about
 * requests. For one user it refuses with the errors of its settings, which shows how answers are
 * composed.
 *
 * It labels objects with names, some of which mean something, in every process:
 *
 *   closed      a file, socket, pipe, object of IPC or mounted file system that only a process with
 *               this name opens or uses; an interface by which only a socket with this name gets
 *               and sends packets
 *   unsent      a file that only a process with this name receives
 *   stays       a process, or a file, that keeps this name
 *   forbid      a name that no process and no file gets
 *   entry       a program of a file with this name runs under the name `entered`
 *   shared      files that are made in such a directory get its name, and not the process's
 *
 * The call 1 (mac_syscall) refuses with the error of its argument.
 */
/* clang-format on */
#include "kernel_numbers.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

MAC_POLICY(test, .label = USHER_MAC_NAME);
MAC_SETTINGS(struct usher_mac_test);

/* An error that no setting should have: the framework has broken a promise. */
#define BROKEN (-EPROTO)

/* Files of pidfs and anonymous ones have no type. */
static __always_inline int is_whole(const struct usher_mac_file *file)
{
	return file->inode != 0;
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

/* Whether an element is this name, of at most eight letters. */
static __always_inline int is_named(const struct usher_mac_element *element, const char name[8])
{
	const __u64 *found = (const __u64 *)element->value;
	__u64 wanted = 0;

	for (int i = 0; i < 8 && name[i]; i++)
		wanted |= (__u64)(__u8)name[i] << 8 * i;
	return element->kind == USHER_MAC_NAME && found[0] == wanted && !found[1];
}

#define IS(element, text) is_named(element, (const char[8]){ text })

static __always_inline int is_refused(const struct usher_mac_element *own,
				      const struct usher_mac_element *object)
{
	return IS(object, "closed") && !IS(own, "closed");
}

static __always_inline int relabels(const struct usher_mac_element *former,
				    const struct usher_mac_element *wanted)
{
	if (former->reserved || wanted->reserved || former->kind > USHER_MAC_UNKNOWN ||
	    wanted->kind > USHER_MAC_NAME)
		return BROKEN;
	if (IS(former, "stays"))
		return -EPERM;
	return IS(wanted, "forbid") ? -EACCES : 0;
}

#define ANSWER(name) answer(subject, MAC_POINT_##name)
#define IF(promise, name) ((promise) ? ANSWER(name) : BROKEN)

/* The answer where a promise has been kept, and the label of the object permits the access. */
#define IF_OPEN(promise, name)                                                                     \
	(is_refused(subject_label, object_label) ? -EACCES : IF(promise, name))

MAC_CHECK(file_open)
{
	if (is_refused(subject_label, object_label))
		return -EACCES;
	return is_whole(&request->file) && !request->reserved ? ANSWER(file_open) : BROKEN;
}

MAC_CHECK(inode_permission)
{
	return is_whole(&request->file) && request->access ? ANSWER(inode_permission) : BROKEN;
}

MAC_CHECK(inode_getattr)
{
	if (is_refused(subject_label, object_label))
		return -EACCES;
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
	return IF_OPEN(request->family, socket_bind);
}

MAC_CHECK(socket_connect)
{
	return IF_OPEN(request->family, socket_connect);
}

MAC_CHECK(inode_mkdir)
{
	return IF(is_directory(&request->directory) && TYPE(request->mode) == DIRECTORY,
		  inode_mkdir);
}

MAC_CHECK(inode_rmdir)
{
	return IF(is_directory(&request->directory) && is_directory(&request->file), inode_rmdir);
}

MAC_CHECK(inode_symlink)
{
	return IF(is_directory(&request->directory) && TYPE(request->mode) == LINK, inode_symlink);
}

MAC_CHECK(inode_mknod)
{
	return IF(is_directory(&request->directory), inode_mknod);
}

MAC_CHECK(inode_readlink)
{
	return IF(is_whole(request), inode_readlink);
}

MAC_CHECK(inode_follow_link)
{
	return IF(TYPE(request->mode) == LINK, inode_follow_link);
}

MAC_CHECK(inode_getxattr)
{
	return IF(is_whole(&request->file) && request->name[0], inode_getxattr);
}

MAC_CHECK(inode_setxattr)
{
	return IF(is_whole(&request->file) && request->name[0], inode_setxattr);
}

MAC_CHECK(inode_removexattr)
{
	return IF(is_whole(&request->file) && request->name[0], inode_removexattr);
}

MAC_CHECK(inode_set_acl)
{
	return IF_OPEN(is_whole(&request->file) && request->name[0], inode_set_acl);
}

MAC_CHECK(inode_remove_acl)
{
	return IF_OPEN(is_whole(&request->file) && request->name[0], inode_remove_acl);
}

MAC_CHECK(inode_listxattr)
{
	return IF(is_whole(request), inode_listxattr);
}

MAC_CHECK(file_ioctl)
{
	return IF(request->file.device, file_ioctl);
}

MAC_CHECK(file_ioctl_compat)
{
	return IF(request->file.device, file_ioctl_compat);
}

MAC_CHECK(file_lock)
{
	return IF(request->file.device && request->command <= 2, file_lock);
}

MAC_CHECK(file_permission)
{
	return IF_OPEN(request->file.device && request->access, file_permission);
}

MAC_CHECK(file_receive)
{
	/* The label `unsent` decides first. */
	if (IS(object_label, "unsent") && !IS(subject_label, "unsent"))
		return -EACCES;
	return ANSWER(file_receive);
}

MAC_CHECK(file_mprotect)
{
	return IF(request->protection <= 7 && request->former <= 7, file_mprotect);
}

#define ABOUT_A_PROCESS(name)                                                                      \
	MAC_CHECK(name)                                                                            \
	{                                                                                          \
		return IF(request->process, name);                                                 \
	}

ABOUT_A_PROCESS(ptrace_access_check)
ABOUT_A_PROCESS(ptrace_traceme)
ABOUT_A_PROCESS(task_setpgid)
ABOUT_A_PROCESS(task_setscheduler)
ABOUT_A_PROCESS(task_setnice)

MAC_CHECK(task_prlimit)
{
	return IF(request->argument <= 3, task_prlimit);
}

MAC_CHECK(task_fix_setuid)
{
	return IF(request->call && request->gid == subject->gid, task_fix_setuid);
}

MAC_CHECK(task_fix_setgid)
{
	return IF(request->call && request->uid == subject->uid, task_fix_setgid);
}

#define ABOUT_A_SOCKET(name)                                                                       \
	MAC_CHECK(name)                                                                            \
	{                                                                                          \
		return IF_OPEN(request->family && request->kind, name);                            \
	}

ABOUT_A_SOCKET(socket_create)
ABOUT_A_SOCKET(socket_listen)
ABOUT_A_SOCKET(socket_accept)
ABOUT_A_SOCKET(socket_sendmsg)
ABOUT_A_SOCKET(socket_recvmsg)
ABOUT_A_SOCKET(socket_getsockname)
ABOUT_A_SOCKET(socket_setsockopt)
ABOUT_A_SOCKET(socket_getsockopt)
ABOUT_A_SOCKET(socket_getpeername)
ABOUT_A_SOCKET(socket_shutdown)

MAC_CHECK(unix_stream_connect)
{
	return IF_OPEN(request->kind, unix_stream_connect);
}

MAC_CHECK(unix_may_send)
{
	return IF_OPEN(request->kind, unix_may_send);
}

#define ABOUT_IPC(name)                                                                            \
	MAC_CHECK(name)                                                                            \
	{                                                                                          \
		return IF_OPEN(request->mode <= 07777, name);                                      \
	}

ABOUT_IPC(msg_queue_associate)
ABOUT_IPC(msg_queue_msgctl)
ABOUT_IPC(msg_queue_msgsnd)
ABOUT_IPC(msg_queue_msgrcv)
ABOUT_IPC(sem_associate)
ABOUT_IPC(sem_semctl)
ABOUT_IPC(sem_semop)
ABOUT_IPC(shm_associate)
ABOUT_IPC(shm_shmctl)
ABOUT_IPC(shm_shmat)

#define ABOUT_A_MOUNT(name)                                                                        \
	MAC_CHECK(name)                                                                            \
	{                                                                                          \
		if (is_refused(subject_label, directory_label))                                    \
			return -EACCES;                                                            \
		return IF_OPEN(is_whole(&request->place), name);                                   \
	}

ABOUT_A_MOUNT(sb_mount)
ABOUT_A_MOUNT(sb_umount)
ABOUT_A_MOUNT(sb_remount)
ABOUT_A_MOUNT(move_mount)

MAC_CHECK(sb_statfs)
{
	return IF_OPEN(request->device, sb_statfs);
}

MAC_CHECK(path_chroot)
{
	return IF(is_directory(request), path_chroot);
}

MAC_CHECK(kernel_read_file)
{
	return IF(is_whole(&request->file), kernel_read_file);
}

MAC_CHECK(kernel_module_request)
{
	return IF(request->name[0], kernel_module_request);
}

MAC_CHECK(bpf)
{
	return ANSWER(bpf);
}

MAC_CHECK(perf_event_open)
{
	return ANSWER(perf_event_open);
}

MAC_CHECK(settime)
{
	return ANSWER(settime);
}

MAC_CHECK(syslog)
{
	return ANSWER(syslog);
}

MAC_CHECK(quotactl)
{
	return ANSWER(quotactl);
}

MAC_CHECK(capable)
{
	return IF(request->argument <= 1 && request->command < 64, capable);
}

MAC_RELABEL(relabel_process)
{
	int refused = relabels(former, wanted);

	return refused ? refused : ANSWER(relabel_process);
}

MAC_RELABEL(relabel_file)
{
	int refused = relabels(former, wanted);

	return refused ? refused : ANSWER(relabel_file);
}

MAC_DECISION(new_program)
{
	if (!is_whole(&request->file))
		return BROKEN;
	if (IS(object_label, "entry")) {
		__builtin_memset(element, 0, sizeof(*element));
		element->kind = USHER_MAC_NAME;
		__builtin_memcpy(element->value, "entered", 7);
	}
	return ANSWER(new_program);
}

MAC_DECISION(new_file)
{
	if (!is_directory(&request->directory))
		return BROKEN;
	if (IS(object_label, "shared"))
		*element = *object_label;
	return ANSWER(new_file);
}

MAC_CHECK(syscall)
{
	if (request->call != 1)
		return -EINVAL;
	return request->argument ? -(int)request->argument : ANSWER(syscall);
}

/* Checks packets for the owner of the socket, since no process acts. */
#define ABOUT_A_PACKET(name)                                                                       \
	MAC_CHECK(name)                                                                            \
	{                                                                                          \
		const struct usher_mac_test *now = mac_settings();                                 \
                                                                                                   \
		if (!now || subject->uid != USHER_MAC_NOBODY || subject->process ||                \
		    subject->capabilities || !request->family || !request->kind)                   \
			return BROKEN;                                                             \
		if (is_refused(subject_label, object_label))                                       \
			return -EACCES;                                                            \
		return request->uid == now->uid ? -(int)now->errors[MAC_POINT_##name] : 0;         \
	}

ABOUT_A_PACKET(socket_deliver)
ABOUT_A_PACKET(interface_transmit)

/* As ABOUT_A_PACKET, for all packets, if the settings name no user: at an interface there is no
 * socket. */
#define ABOUT_PASSING(point)                                                                       \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		const struct usher_mac_test *now = mac_settings();                                 \
                                                                                                   \
		if (!now || subject->uid != USHER_MAC_NOBODY || subject->process ||                \
		    request->family || request->uid || !request->interface.number ||               \
		    !request->interface.network || !request->interface.name[0])                    \
			return BROKEN;                                                             \
		return now->uid == USHER_MAC_NOBODY ? -(int)now->errors[MAC_POINT_##point] : 0;    \
	}

ABOUT_PASSING(interface_receive)
ABOUT_PASSING(interface_send)
