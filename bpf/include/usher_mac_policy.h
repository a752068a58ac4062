/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface of policy modules for mandatory access control. A module is one C file:
 *
 *     MAC_POLICY(example);
 *     MAC_SETTINGS(struct usher_mac_example);
 *
 *     MAC_CHECK(file_open)
 *     {
 *         return subject->uid == request->file.uid ? 0 : -EACCES;
 *     }
 *
 * A check gets the process (`subject`), what the process wants (`request`), and its module's
 * elements of three labels: that of the process (`subject_label`); that of the file, process,
 * socket, object of IPC or file system that the request is about (`object_label`); that of the
 * directory in the request, or of the file system around it (`directory_label`). All are plain
 * numbers, never a pointer of the kernel. A packet has no process as its subject: see struct
 * usher_mac_packet. A missing element has the kind USHER_MAC_NONE. A check returns 0, or the
 * negative number of an error. So the same file is compiled for the kernel, where each check
 * replaces a slot of the framework (bpf/mac), and for user space, where it is tested.
 *
 * A module may declare the kind of its elements: MAC_POLICY(example, .label = USHER_MAC_LEVELS).
 * Then the framework keeps its elements: of processes, of files on multilabel file systems, and of
 * network interfaces as the policy has them. Sockets, pipes, IPC and mounted file systems have the
 * elements of their maker. Two further forms of functions are for such modules:
 *
 *     MAC_RELABEL(relabel_file)   may the element become `wanted` instead of `former`?
 *     MAC_DECISION(new_file)      writes `element`, which has the default, or refuses
 *
 * A check by which a process takes something in may permit it on condition that the process gets
 * another element:
 *
 *     MAC_DEMOTING(file_permission)   writes `element`, and returns MAC_DEMOTES
 *
 * The framework changes the label if all modules permit the access, and refuses it (EACCES) if the
 * label cannot be changed.
 *
 * With .exempts_without_element = 1 a module's checks are asked only about processes, and packets
 * of sockets, that have its element. All others are permitted, also where a file's label is not
 * known.
 *
 * With .decides_by_labels = 1 the framework remembers what it has permitted at the entry points of
 * most accesses. While both labels are the same, it rarely asks again:
 *
 *     inode_permission, file_open, file_permission   by `access` and the type of the file
 *     inode_getattr                                  by the type of the file
 *     mmap_file                                      by `permitted` and the type of the file
 *     socket_sendmsg, socket_recvmsg                 whatever the request
 *     socket_deliver, interface_transmit             by whether interface.number is above 1
 *
 * There, its permission depends on its elements of the two labels and on nothing else: not on the
 * subject, and on no other part of the request. About a character device it is asked each time.
 * Such a module exempts processes without an element, and has no settings.
 *
 * A module may have settings, which an administrator writes in the policy (`mac example { ... }`):
 *
 *     struct example_settings { __u32 exempt_count; __u32 exempt[16]; __u32 libraries; };
 *
 *     MAC_SETTINGS(struct example_settings);
 *     MAC_STATEMENTS(MAC_USERS(exempt), MAC_SWITCH(libraries, 1));
 *
 * Each statement has the name of the member that it sets. mac_settings() returns those in force.
 *
 * If a module declares no relabel_process, no process changes the module's elements of processes.
 * The same holds for relabel_file and files.
 *
 * The table of entry points below is the only declaration of them: the slots, the Rust side and
 * docs/mac-entry-points.md are made from it. USHER_MAC_INTERFACE goes up with every change of a
 * size, an offset or a meaning.
 */
#ifndef USHER_MAC_POLICY_H
#define USHER_MAC_POLICY_H

#include <linux/types.h>

#include "usher_mac_label.h"
#include "usher_mac_requests.h"

#define USHER_MAC_INTERFACE 10

/*
 * name: that of the function. form: of MAC_CHECK, MAC_RELABEL, MAC_DECISION; DEMOTING is of
 * MAC_DEMOTING or MAC_CHECK. hook: the kernel's, whose dispatcher (bpf/mac) asks. Three are not
 * hooks of LSMs: cgroup_egress is the place of programs for packets that leave
 * (BPF_CGROUP_INET_EGRESS), at the root of control groups; tc_ingress and tc_egress are those of
 * traffic control (tcx) at each network interface. request: the structure that the function gets.
 * class: that of the paper. kernel: the first one with this hook and LSM programs at it. The last
 * column says when the module is asked. New entry points are added at the end.
 */
/* clang-format off */
#define USHER_MAC_ENTRY_POINTS(ENTRY) \
	ENTRY(file_open, CHECK, file_open, usher_mac_file_access, "files", "5.7", "a file is opened, by name or handle") \
	ENTRY(inode_permission, CHECK, inode_permission, usher_mac_file_access, "files", "5.7", "a name is looked up in a directory; a file is opened, executed or truncated; access(2)") \
	ENTRY(inode_getattr, CHECK, inode_getattr, usher_mac_file, "files", "5.7", "the attributes of a file are read (stat)") \
	ENTRY(inode_create, CHECK, inode_create, usher_mac_creation, "files", "5.7", "a regular file is made in a directory") \
	ENTRY(inode_link, CHECK, inode_link, usher_mac_naming, "files", "5.7", "a file gets another name (a hard link)") \
	ENTRY(inode_unlink, CHECK, inode_unlink, usher_mac_naming, "files", "5.7", "a name of a file is removed") \
	ENTRY(inode_rename, CHECK, inode_rename, usher_mac_naming, "files", "5.7", "a file is renamed, or exchanged with another one: then asked for both") \
	ENTRY(inode_rename_to, CHECK, inode_rename, usher_mac_replacing, "files", "5.7", "a file gets this name by renaming: asked after inode_rename") \
	ENTRY(inode_setattr, CHECK, inode_setattr, usher_mac_attributes, "files", "5.7", "owner, group, mode, size or times of a file are changed") \
	ENTRY(bprm_check_security, CHECK, bprm_check_security, usher_mac_execution, "processes", "5.7", "a program, and each of its interpreters, is executed") \
	ENTRY(mmap_file, DEMOTING, mmap_file, usher_mac_mapping, "processes", "5.7", "a file is mapped; memory without a file is not asked about") \
	ENTRY(task_kill, CHECK, task_kill, usher_mac_signal, "processes", "5.7", "a process sends another one a signal; ESRCH is returned as EPERM") \
	ENTRY(socket_bind, CHECK, socket_bind, usher_mac_socket_address, "sockets", "5.7", "a socket is bound to an address") \
	ENTRY(socket_connect, CHECK, socket_connect, usher_mac_socket_address, "sockets", "5.7", "a socket is connected to an address") \
	ENTRY(inode_mkdir, CHECK, inode_mkdir, usher_mac_creation, "files", "5.7", "a directory is made") \
	ENTRY(inode_rmdir, CHECK, inode_rmdir, usher_mac_naming, "files", "5.7", "a directory is removed") \
	ENTRY(inode_symlink, CHECK, inode_symlink, usher_mac_creation, "files", "5.7", "a symbolic link is made") \
	ENTRY(inode_mknod, CHECK, inode_mknod, usher_mac_node, "files", "5.7", "a device, a pipe or the name of a socket is made") \
	ENTRY(inode_readlink, CHECK, inode_readlink, usher_mac_file, "files", "5.7", "a symbolic link is read (readlink)") \
	ENTRY(inode_follow_link, CHECK, inode_follow_link, usher_mac_file, "files", "5.7", "a symbolic link is followed to look up a name") \
	ENTRY(inode_getxattr, CHECK, inode_getxattr, usher_mac_attribute, "files", "5.7", "an extended attribute is read") \
	ENTRY(inode_setxattr, CHECK, inode_setxattr, usher_mac_attribute, "files", "5.7", "an extended attribute is set; of access control lists see inode_set_acl") \
	ENTRY(inode_removexattr, CHECK, inode_removexattr, usher_mac_attribute, "files", "5.7", "an extended attribute is removed") \
	ENTRY(inode_listxattr, CHECK, inode_listxattr, usher_mac_file, "files", "5.7", "the names of extended attributes are listed") \
	ENTRY(file_ioctl, CHECK, file_ioctl, usher_mac_file_command, "files", "5.7", "ioctl(2) of an open file") \
	ENTRY(file_ioctl_compat, CHECK, file_ioctl_compat, usher_mac_file_command, "files", "6.8", "ioctl(2) of an open file, by a 32-bit program") \
	ENTRY(file_lock, CHECK, file_lock, usher_mac_file_command, "files", "5.7", "a lock of an open file is taken or released") \
	ENTRY(file_receive, CHECK, file_receive, usher_mac_file_access, "files", "5.7", "an open file is received from another process; refused, it is left out") \
	ENTRY(file_mprotect, CHECK, file_mprotect, usher_mac_protection, "processes", "5.7", "the protection of memory is changed, with or without a file") \
	ENTRY(ptrace_access_check, CHECK, ptrace_access_check, usher_mac_process_access, "processes", "5.7", "another process is traced, or its memory or /proc files are read") \
	ENTRY(ptrace_traceme, CHECK, ptrace_traceme, usher_mac_process_access, "processes", "5.7", "a process asks its parent to trace it") \
	ENTRY(task_setpgid, CHECK, task_setpgid, usher_mac_process_access, "processes", "5.7", "the process group of a process is set") \
	ENTRY(task_setscheduler, CHECK, task_setscheduler, usher_mac_process_access, "processes", "5.7", "scheduling or processors of a process are set") \
	ENTRY(task_setnice, CHECK, task_setnice, usher_mac_process_access, "processes", "5.7", "the nice value of a process is set") \
	ENTRY(task_prlimit, CHECK, task_prlimit, usher_mac_process_access, "processes", "5.7", "limits of another process are read or set") \
	ENTRY(task_fix_setuid, CHECK, task_fix_setuid, usher_mac_identity, "processes", "5.7", "a process changes its user ids by setuid(2) and its kind") \
	ENTRY(task_fix_setgid, CHECK, task_fix_setgid, usher_mac_identity, "processes", "5.7", "a process changes its group ids by setgid(2) and its kind") \
	ENTRY(socket_create, CHECK, socket_create, usher_mac_socket_call, "sockets", "5.7", "a socket is made") \
	ENTRY(socket_listen, CHECK, socket_listen, usher_mac_socket_call, "sockets", "5.7", "a socket begins to listen") \
	ENTRY(socket_accept, CHECK, socket_accept, usher_mac_socket_call, "sockets", "5.7", "a connection is accepted") \
	ENTRY(socket_sendmsg, CHECK, socket_sendmsg, usher_mac_socket_address, "sockets", "5.7", "something is sent; with the address, if one is named") \
	ENTRY(socket_recvmsg, DEMOTING, socket_recvmsg, usher_mac_socket_call, "sockets", "5.7", "something is received; splice(2) is not asked about") \
	ENTRY(socket_getsockname, CHECK, socket_getsockname, usher_mac_socket_call, "sockets", "5.7", "the address of a socket is read") \
	ENTRY(socket_setsockopt, CHECK, socket_setsockopt, usher_mac_socket_call, "sockets", "5.7", "an option of a socket is set") \
	ENTRY(socket_shutdown, CHECK, socket_shutdown, usher_mac_socket_call, "sockets", "5.7", "a connection is shut down") \
	ENTRY(unix_stream_connect, CHECK, unix_stream_connect, usher_mac_peer, "sockets", "5.7", "a UNIX stream is connected to another socket") \
	ENTRY(unix_may_send, CHECK, unix_may_send, usher_mac_peer, "sockets", "5.7", "a UNIX datagram is sent, or its socket connected, to another socket") \
	ENTRY(msg_queue_associate, CHECK, msg_queue_associate, usher_mac_ipc, "ipc", "5.7", "an existing message queue is found by its key") \
	ENTRY(msg_queue_msgctl, CHECK, msg_queue_msgctl, usher_mac_ipc, "ipc", "5.7", "msgctl(2)") \
	ENTRY(msg_queue_msgsnd, CHECK, msg_queue_msgsnd, usher_mac_ipc, "ipc", "5.7", "a message is sent to a queue") \
	ENTRY(msg_queue_msgrcv, DEMOTING, msg_queue_msgrcv, usher_mac_ipc, "ipc", "5.7", "a message is received from a queue; refused, it stays there") \
	ENTRY(sem_associate, CHECK, sem_associate, usher_mac_ipc, "ipc", "5.7", "existing semaphores are found by their key") \
	ENTRY(sem_semctl, CHECK, sem_semctl, usher_mac_ipc, "ipc", "5.7", "semctl(2)") \
	ENTRY(sem_semop, CHECK, sem_semop, usher_mac_ipc, "ipc", "5.7", "semaphores are waited for or changed") \
	ENTRY(shm_associate, CHECK, shm_associate, usher_mac_ipc, "ipc", "5.7", "existing shared memory is found by its key") \
	ENTRY(shm_shmctl, CHECK, shm_shmctl, usher_mac_ipc, "ipc", "5.7", "shmctl(2)") \
	ENTRY(shm_shmat, DEMOTING, shm_shmat, usher_mac_ipc, "ipc", "5.7", "shared memory is attached") \
	ENTRY(sb_mount, CHECK, sb_mount, usher_mac_mount, "mounts", "5.7", "mount(2): a file system is mounted, bound, moved or changed") \
	ENTRY(sb_umount, CHECK, sb_umount, usher_mac_mount, "mounts", "5.7", "a file system is unmounted") \
	ENTRY(sb_remount, CHECK, sb_remount, usher_mac_mount, "mounts", "5.7", "options of a mounted file system are changed") \
	ENTRY(move_mount, CHECK, move_mount, usher_mac_mount, "mounts", "5.7", "a file system is mounted or moved by move_mount(2)") \
	ENTRY(sb_statfs, CHECK, sb_statfs, usher_mac_file, "mounts", "5.7", "the state of a file system is read") \
	ENTRY(path_chroot, CHECK, path_chroot, usher_mac_file, "mounts", "5.7", "a process changes its root directory") \
	ENTRY(kernel_read_file, CHECK, kernel_read_file, usher_mac_file_command, "system", "5.7", "the kernel reads a module, firmware or another kernel from a file") \
	ENTRY(kernel_module_request, CHECK, kernel_module_request, usher_mac_kernel_module, "system", "5.7", "an access makes the kernel ask for a module; refused, it does without") \
	ENTRY(bpf, CHECK, bpf, usher_mac_operation, "system", "5.7", "bpf(2)") \
	ENTRY(perf_event_open, CHECK, perf_event_open, usher_mac_operation, "system", "5.7", "perf_event_open(2)") \
	ENTRY(settime, CHECK, settime, usher_mac_operation, "system", "5.7", "the clock or the time zone is set") \
	ENTRY(syslog, CHECK, syslog, usher_mac_operation, "system", "5.7", "the log of the kernel is read or controlled") \
	ENTRY(quotactl, CHECK, quotactl, usher_mac_operation, "system", "5.7", "quotas are read or set") \
	ENTRY(relabel_process, RELABEL, setselfattr, usher_mac_relabelling, "labels", "6.8", "a process sets its own element, now or for the next program (mac_set_proc, mac_execve)") \
	ENTRY(new_program, DECISION, bprm_creds_from_file, usher_mac_execution, "labels", "5.9", "a process executes a program: `element` is the one that it has then") \
	ENTRY(relabel_file, RELABEL, inode_setxattr, usher_mac_file, "labels", "5.7", "an element of a file is set, or left out of its label") \
	ENTRY(new_file, DECISION, inode_init_security, usher_mac_creation, "labels", "5.7", "a file of any type is made: `element` is the new file's") \
	ENTRY(syscall, CHECK, setselfattr, usher_mac_module_call, "labels", "6.8", "a process calls this module (mac_syscall)") \
	ENTRY(file_permission, DEMOTING, file_permission, usher_mac_file_access, "files", "5.7", "an open file, pipe or socket is read or written: each time, but for send(2), recv(2) and mappings; splice(2) and sendfile(2) ask about the file or socket and not about the pipe, tee(2) and vmsplice(2) about nothing") \
	ENTRY(socket_getsockopt, CHECK, socket_getsockopt, usher_mac_socket_call, "sockets", "5.7", "an option of a socket is read; one receives what was sent (TCP_ZEROCOPY_RECEIVE)") \
	ENTRY(socket_getpeername, CHECK, socket_getpeername, usher_mac_socket_call, "sockets", "5.7", "the address at the other end is read") \
	ENTRY(socket_deliver, CHECK, socket_sock_rcv_skb, usher_mac_packet, "packets", "5.7", "a packet is delivered to a socket, by no process; refused, it is dropped; streams of UNIX sockets and packet sockets are not asked about") \
	ENTRY(interface_transmit, CHECK, cgroup_egress, usher_mac_packet, "packets", "6.2", "a packet of a socket of IP leaves by an interface, by no process; refused, it is dropped, and the call may fail with EPERM") \
	ENTRY(capable, CHECK, capable, usher_mac_operation, "system", "5.7", "a process that has a capability uses it, or the kernel looks whether it could") \
	ENTRY(inode_set_acl, CHECK, inode_set_acl, usher_mac_attribute, "files", "6.2", "an access control list of a file is set") \
	ENTRY(inode_remove_acl, CHECK, inode_remove_acl, usher_mac_attribute, "files", "6.2", "an access control list of a file is removed") \
	ENTRY(interface_receive, CHECK, tc_ingress, usher_mac_packet, "packets", "6.6", "a packet arrives by an interface, for whatever receiver, by no process and of no socket; refused, it is dropped; packet sockets and XDP get it before") \
	ENTRY(interface_send, CHECK, tc_egress, usher_mac_packet, "packets", "6.6", "a packet leaves by an interface, of whatever sender: a socket, the kernel, a router or bridge; refused, it is dropped; what passes by queueing (PACKET_QDISC_BYPASS, XDP) is not asked about")
/* clang-format on */

/* Returned by MAC_DEMOTING: permits the access if the process gets `element`. From any other
 * function it is EACCES. */
#define MAC_DEMOTES 0x4d44

/*
 * The declaration of a module, in the section MAC_DECLARATION of its object file. User space reads
 * it before the kernel gets anything of the module. The first two members keep their places.
 */
struct usher_mac_declaration {
	__u32 interface; /* USHER_MAC_INTERFACE of the headers that it was compiled with */
	__u32 size; /* of this structure */
	char name[USHER_MAC_NAME_SIZE]; /* padded with zeros */
	__u32 label; /* enum usher_mac_kind: of its elements; USHER_MAC_NONE: it labels nothing */
	__u32 exempts_without_element; /* 1: is not asked about processes without an element */
	__u32 decides_by_labels; /* 1: what it has permitted by two labels is remembered */
	__u32 reserved; /* 0 */
};

/* Values of a statement, in `kind`. */
enum usher_mac_statement_kind {
	USHER_MAC_VALUE_NUMBER = 1, /* decimal numbers from `least` to `most` */
	USHER_MAC_VALUE_SWITCH = 2, /* `yes`, which sets 1, or `no`, 0 */
	USHER_MAC_VALUE_USER = 3, /* users by name or number */
	USHER_MAC_VALUE_GROUP = 4, /* groups by name or number */
};

/* Bytes of a keyword, padded with zeros. */
#define USHER_MAC_KEYWORD_SIZE 32
/* Limit of the statements of a module. */
#define USHER_MAC_MOST_STATEMENTS 64
/* Limit of the size of a module's settings, in bytes. */
#define USHER_MAC_MOST_SETTINGS 65536

/*
 * A statement of a module's block in the policy, in the section MAC_STATEMENT_SECTION of its object
 * file: which members of the settings it sets. All of them are __u32.
 */
struct usher_mac_statement {
	char keyword[USHER_MAC_KEYWORD_SIZE];
	__u32 kind; /* enum usher_mac_statement_kind */
	__u32 size; /* of the settings, in bytes */
	__u32 offset; /* of the member, or of the first of its elements, in bytes */
	__u32 limit; /* of values */
	__u32 count_offset; /* of the number of values, in bytes; for a list only */
	__u32 is_list; /* 1: as many values as the limit, with commas; 0: one */
	__u32 least; /* the lowest number */
	__u32 most; /* the highest one */
	__u32 by_default; /* the value where the policy has no statement; for one value only */
	__u32 reserved; /* 0 */
};

_Static_assert(sizeof(struct usher_mac_statement) == 72, "usher_mac_statement");

_Static_assert(sizeof(struct usher_mac_declaration) == 56, "usher_mac_declaration");

/* The numbers of entry points, and mac_NAME_request for each. */
enum mac_point {
#define ENTRY(name, request, ...) MAC_POINT_##name,
	USHER_MAC_ENTRY_POINTS(ENTRY)
#undef ENTRY
	    MAC_POINTS,
};

/* The type to which a function's last argument points, by its form. */
#define MAC_LAST_CHECK const struct usher_mac_element
#define MAC_LAST_DEMOTING struct usher_mac_element
#define MAC_LAST_RELABEL const struct usher_mac_element
#define MAC_LAST_DECISION struct usher_mac_element

#define ENTRY(name, form, hook, request, ...)                                                      \
	typedef const struct request mac_##name##_request;                                         \
	typedef MAC_LAST_##form mac_##name##_last;
USHER_MAC_ENTRY_POINTS(ENTRY)
#undef ENTRY

#ifdef __bpf__

#include "usher_kernel.h"
#include "usher_maps.h"

/* The section names a slot of the first module; user space chooses the free one. */
#define MAC_SECTION(point) SEC("freplace/mac_slot_" #point "_0")
#define MAC_DECLARATION SEC("usher_mac_module")
#define MAC_STATEMENT_SECTION SEC("usher_mac_statements")
/* The kernel runs programs of a free license only; this one is the framework's. */
#define MAC_LICENSE char LICENSE[] SEC("license") = "Dual BSD/GPL"

/*
 * The settings in force, as an inner map that user space fills before it puts it in place: a check
 * sees the former ones or the new ones. Key: 0.
 */
#define MAC_SETTINGS(structure)                                                                    \
	typedef structure mac_settings_type;                                                       \
	struct mac_settings_table {                                                                \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, 1);                                                            \
		__uint(key_size, sizeof(__u32));                                                   \
		__uint(value_size, sizeof(structure));                                             \
	};                                                                                         \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                          \
		__uint(max_entries, 1);                                                            \
		__type(key, __u32);                                                                \
		__array(values, struct mac_settings_table);                                        \
	} settings SEC(".maps");                                                                   \
	static __always_inline const structure *mac_settings(void)                                 \
	{                                                                                          \
		void *now = first_of(&settings);                                                   \
                                                                                                   \
		return now ? first_of(now) : NULL;                                                 \
	}

/* Calls `step(index, context)` for 0 up to `count`, until it returns another number than 0. */
#define MAC_LOOP(count, step, context) bpf_loop(count, step, context, 0)

/* A search for groups between two numbers. The kernel keeps supplementary groups in order. */
struct mac_group_search {
	const struct group_info *groups;
	__u32 first; /* the number sought, or the next larger one */
	__u32 last;
	__u32 low; /* all before have smaller numbers */
	__u32 high; /* all from here on have `first` or larger numbers */
};

static long mac_halve_groups(__u32 index, struct mac_group_search *search)
{
	__u32 middle = search->low + (search->high - search->low) / 2;
	__u32 group;

	if (search->low >= search->high)
		return 1;
	if (bpf_probe_read_kernel(&group, sizeof(group), &search->groups->gid[middle]))
		return 1;
	if (group < search->first)
		search->low = middle + 1;
	else
		search->high = middle;
	return 0;
}

/* Whether a supplementary group of the calling process is one of these. Means nothing in checks of
 * packets, where no process calls. */
static __always_inline int mac_is_in_groups(__u32 first, __u32 last)
{
	/* The groups are not read directly: the verifier would search all types of the kernel by
	 * name, four times, each time that it comes by here. */
	const struct group_info *groups =
	    BPF_CORE_READ(bpf_get_current_task_btf(), cred, group_info);
	struct mac_group_search search = {
		.groups = groups,
		.first = first,
		.last = last,
	};
	__u32 count, group;

	count = BPF_CORE_READ(groups, ngroups);
	search.high = count;
	/* At most 65,536 groups (NGROUPS_MAX). */
	bpf_loop(17, mac_halve_groups, &search, 0);
	if (search.low >= count)
		return 0;
	if (bpf_probe_read_kernel(&group, sizeof(group), &groups->gid[search.low]))
		return 0;
	return group >= first && group <= last;
}

#else

#include <errno.h>
#include <stddef.h>

#define MAC_SECTION(point)
#define MAC_DECLARATION
#define MAC_STATEMENT_SECTION __attribute__((unused))
#define MAC_LICENSE struct mac_license

/* A test sets mac_current_settings. */
#define MAC_SETTINGS(structure)                                                                    \
	typedef structure mac_settings_type;                                                       \
	static structure *mac_current_settings;                                                    \
	static __always_inline const structure *mac_settings(void)                                 \
	{                                                                                          \
		return mac_current_settings;                                                       \
	}

#define MAC_LOOP(count, step, context)                                                             \
	do {                                                                                       \
		for (__u32 mac_index = 0; mac_index < (count); mac_index++)                        \
			if (step(mac_index, context))                                              \
				break;                                                             \
	} while (0)

/* The test defines this function. */
int mac_is_in_groups(__u32 first, __u32 last);

/* The answer of a check about a process and an object without labels, for a test. */
#define MAC_ANSWER(point, subject, request)                                                        \
	check_##point(subject, request, &(struct usher_mac_element){ 0 },                          \
		      &(struct usher_mac_element){ 0 }, &(struct usher_mac_element){ 0 })

#endif

/*
 * Declares the module: its name, which is that of its file as well (small letters, digits and `_`,
 * a letter first), and further members of struct usher_mac_declaration, as `.label =
 * USHER_MAC_LEVELS`.
 */
#define MAC_POLICY(module, ...)                                                                    \
	_Static_assert(sizeof(#module) <= USHER_MAC_NAME_SIZE, "the name is too long");            \
	const struct usher_mac_declaration mac_declaration MAC_DECLARATION = {                     \
		.interface = USHER_MAC_INTERFACE,                                                  \
		.size = sizeof(struct usher_mac_declaration),                                      \
		.name = #module,                                                                   \
		__VA_ARGS__                                                                        \
	};                                                                                         \
	MAC_LICENSE

/*
 * The statements by which the policy fills the settings. MAC_SETTINGS must stand before this. At
 * most USHER_MAC_MOST_STATEMENTS.
 */
#define MAC_STATEMENTS(...)                                                                        \
	const struct usher_mac_statement mac_statements[] MAC_STATEMENT_SECTION = { __VA_ARGS__ }

/* One number from `lowest` to `highest`, and `value` where the policy has no statement. */
#define MAC_NUMBER(member, lowest, highest, value)                                                 \
	MAC_SINGLE(member, .kind = USHER_MAC_VALUE_NUMBER, .least = (lowest), .most = (highest),   \
		   .by_default = (value))
/* `yes` or `no`: 1 or 0, and `value` where the policy has no statement. */
#define MAC_SWITCH(member, value)                                                                  \
	MAC_SINGLE(member, .kind = USHER_MAC_VALUE_SWITCH, .by_default = (value))
/*
 * Users, or groups, or numbers: as many as the array `member` has room for. `member_count` gets
 * their number, 0 without the statement.
 */
#define MAC_USERS(member) MAC_LIST(member, .kind = USHER_MAC_VALUE_USER)
#define MAC_GROUPS(member) MAC_LIST(member, .kind = USHER_MAC_VALUE_GROUP)
#define MAC_NUMBERS(member, lowest, highest)                                                       \
	MAC_LIST(member, .kind = USHER_MAC_VALUE_NUMBER, .least = (lowest), .most = (highest))

/* Versions of clang-format indent these in different ways. */
/* clang-format off */
#define MAC_SINGLE(member, ...)                                                                    \
	{                                                                                          \
		.keyword = #member, .size = sizeof(mac_settings_type),                             \
		.offset = MAC_OFFSET(member, MAC_MEMBER(member)), .limit = 1, __VA_ARGS__          \
	}
#define MAC_LIST(member, ...)                                                                      \
	{                                                                                          \
		.keyword = #member, .size = sizeof(mac_settings_type),                             \
		.offset = MAC_OFFSET(member, MAC_MEMBER(member)[0]),                               \
		.limit = sizeof(MAC_MEMBER(member)) / sizeof(__u32),                               \
		.count_offset = MAC_OFFSET(member##_count, MAC_MEMBER(member##_count)),            \
		.is_list = 1, __VA_ARGS__                                                          \
	}
/* clang-format on */
#define MAC_MEMBER(member) (((mac_settings_type *)0)->member)
/* The offset of a member. `value` is one of its values. */
#define MAC_OFFSET(member, value)                                                                  \
	(__builtin_offsetof(mac_settings_type, member) +                                           \
	 0 * sizeof(struct {                                                                       \
		 _Static_assert(sizeof(value) == sizeof(__u32),                                    \
				"what a statement sets is a __u32");                               \
		 int unused;                                                                       \
	 }))

/* An answer in the form that the kernel takes: for a packet that leaves, 0 or 1. */
static __always_inline int mac_answer_at(__u32 point, int answer)
{
	return point == MAC_POINT_interface_transmit ? answer != 0 : answer;
}

/*
 * A function of an entry point, with names for the labels. The framework never passes NULL, but the
 * verifier does not know that.
 */
#define MAC_FUNCTION(point, fourth, last)                                                          \
	static __always_inline int mac_decide_##point(                                             \
	    const struct usher_mac_subject *subject, mac_##point##_request *request,               \
	    const struct usher_mac_element *subject_label, const struct usher_mac_element *fourth, \
	    mac_##point##_last *last);                                                             \
	MAC_SECTION(point)                                                                         \
	int check_##point(const struct usher_mac_subject *subject, mac_##point##_request *request, \
			  const struct usher_mac_element *subject_label,                           \
			  const struct usher_mac_element *fourth, mac_##point##_last *last)        \
	{                                                                                          \
		int answer = -EACCES;                                                              \
                                                                                                   \
		if (subject && request && subject_label && fourth && last)                         \
			answer =                                                                   \
			    mac_decide_##point(subject, request, subject_label, fourth, last);     \
		return mac_answer_at(MAC_POINT_##point, answer);                                   \
	}                                                                                          \
	static __always_inline int mac_decide_##point(                                             \
	    const struct usher_mac_subject *subject, mac_##point##_request *request,               \
	    const struct usher_mac_element *subject_label, const struct usher_mac_element *fourth, \
	    mac_##point##_last *last)

/*
 * A check that may lower the process. `element` is zeros at first; the framework heeds it after
 * MAC_DEMOTES only.
 */
#define MAC_DEMOTING(point)                                                                        \
	static __always_inline int mac_decide_##point(                                             \
	    const struct usher_mac_subject *subject, mac_##point##_request *request,               \
	    const struct usher_mac_element *subject_label,                                         \
	    const struct usher_mac_element *object_label, struct usher_mac_element *element);      \
	MAC_SECTION(point)                                                                         \
	int check_##point(const struct usher_mac_subject *subject, mac_##point##_request *request, \
			  const struct usher_mac_element *subject_label,                           \
			  const struct usher_mac_element *object_label, mac_##point##_last *last)  \
	{                                                                                          \
		struct usher_mac_element element = {};                                             \
		int answer = -EACCES;                                                              \
                                                                                                   \
		if (subject && request && subject_label && object_label && last)                   \
			answer = mac_decide_##point(subject, request, subject_label, object_label, \
						    &element);                                     \
		if (last && answer == MAC_DEMOTES)                                                 \
			*last = element;                                                           \
		return answer;                                                                     \
	}                                                                                          \
	static __always_inline int mac_decide_##point(                                             \
	    const struct usher_mac_subject *subject, mac_##point##_request *request,               \
	    const struct usher_mac_element *subject_label,                                         \
	    const struct usher_mac_element *object_label, struct usher_mac_element *element)

/* At a DEMOTING entry point there is no directory, and `directory_label` means nothing. */
#define MAC_CHECK(point) MAC_FUNCTION(point, object_label, directory_label)
#define MAC_RELABEL(point) MAC_FUNCTION(point, former, wanted)
#define MAC_DECISION(point) MAC_FUNCTION(point, object_label, element)

#endif
