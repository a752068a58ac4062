/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The arguments of checks of policy modules: the process that wants something, and a request for
 * each kind of entry point, both as plain numbers. Part of the interface of modules
 * (USHER_MAC_INTERFACE), with usher_mac_policy.h, which includes this.
 */
#ifndef USHER_MAC_REQUESTS_H
#define USHER_MAC_REQUESTS_H

#include <linux/types.h>

#include "usher_mac_label.h"

/* Bits of `access`. Truncating is writing. */
enum usher_mac_access {
	USHER_MAC_EXECUTE = 1, /* execute a file, look up a name in a directory */
	USHER_MAC_WRITE = 2,
	USHER_MAC_READ = 4,
	USHER_MAC_APPEND = 8,
};

/* Bits of `changes`: what is changed of a file. */
enum usher_mac_change {
	USHER_MAC_CHANGES_MODE = 1,
	USHER_MAC_CHANGES_UID = 2,
	USHER_MAC_CHANGES_GID = 4,
	USHER_MAC_CHANGES_SIZE = 8,
	USHER_MAC_CHANGES_TIMES = 16, /* to given ones */
};

/*
 * The process that wants something. Numbers of users and groups, here and below, are those of the
 * initial user namespace.
 */
struct usher_mac_subject {
	__u32 uid; /* the real one */
	__u32 euid;
	__u32 suid;
	__u32 fsuid;
	__u32 gid; /* the real one */
	__u32 egid;
	__u32 sgid;
	__u32 fsgid;
	__u64 capabilities; /* the effective ones; none in other user namespaces than the initial
			       one */
	__u32 process; /* its number in the initial namespace */
	__u32 reserved; /* 0 */
};

/* Bits of `flags`. */
enum usher_mac_file_flags {
	/* each process has its own content there: the name of another thread of the process
	 * (/proc/self/task/N/comm), the directory of POSIX message queues */
	USHER_MAC_FOR_EVERYBODY = 1,
	/* on a BPF file system: a pin or a directory of pins. Modules that are asked about
	 * processes without an element are not asked here about those with CAP_SYS_ADMIN */
	USHER_MAC_ON_BPF_FS = 2,
};

/* A file. */
struct usher_mac_file {
	__u64 inode;
	__u32 device; /* of its file system: major << 20 | minor */
	__u32 uid;
	__u32 gid;
	__u32 mode; /* type and permissions, as in stat(2): eventfd(2), pidfd_open(2) and their
		     * kind have no type */
	__u32 special; /* of a device's file: the device, major << 20 | minor; else 0 */
	__u32 flags; /* enum usher_mac_file_flags */
};

struct usher_mac_file_access {
	struct usher_mac_file file;
	__u32 access; /* enum usher_mac_access */
	__u32 reserved; /* 0 */
};

struct usher_mac_creation {
	struct usher_mac_file directory;
	__u32 mode; /* of the new file */
	__u32 reserved; /* 0 */
};

struct usher_mac_naming {
	struct usher_mac_file file;
	struct usher_mac_file directory; /* of the name */
};

struct usher_mac_replacing {
	struct usher_mac_file directory; /* where the new name is */
	struct usher_mac_file replaced;
	__u32 replaces; /* 1: `replaced` is a file that had the new name, and has object_label */
	__u32 reserved; /* 0 */
};

struct usher_mac_attributes {
	struct usher_mac_file file;
	__u32 changes; /* enum usher_mac_change */
	__u32 uid; /* the new one, if it changes */
	__u32 gid; /* the new one, if it changes */
	__u32 mode; /* the new one, if it changes */
};

struct usher_mac_execution {
	struct usher_mac_file file;
	__u32 euid; /* the new program's */
	__u32 egid; /* the new program's */
};

struct usher_mac_mapping {
	struct usher_mac_file file;
	__u32 protection; /* as in mmap(2) */
	__u32 flags; /* as in mmap(2) */
	/* the protections that mprotect(2) can give it later, without another question: reading
	 * stands for executing, and writing is that of the file */
	__u32 permitted;
	__u32 reserved; /* 0 */
};

struct usher_mac_signal {
	__u32 uid; /* the other process's real one */
	__u32 suid; /* the other process's saved one */
	__u32 process; /* the other process's number in the initial namespace */
	__u32 signal; /* 0: asks whether it exists */
	__u32 gid; /* the other process's real one */
	__u32 reserved; /* 0 */
};

/* A network interface. Zeros: none. */
struct usher_mac_device {
	__u32 number; /* in its network namespace, where 1 is `lo` */
	__u32 network; /* the number of its network namespace: the inode of /proc/PID/ns/net */
	char name[USHER_MAC_INTERFACE_NAME]; /* padded with zeros */
};

struct usher_mac_socket_address {
	__u32 family; /* of the socket */
	__u32 kind; /* SOCK_STREAM, ... */
	__u32 protocol;
	__u32 port; /* 0 but for AF_INET, AF_INET6, and AF_UNSPEC at a socket of AF_INET */
	__u8 address[16]; /* as ::ffff:a.b.c.d for AF_INET; 0 but for AF_INET and AF_INET6 */
	__u32 address_family; /* of the address; AF_UNSPEC dissolves a connection */
	__u32 receives; /* 1: this is a packet socket, and gets packets already */
	/* the interface that the address of AF_PACKET or AF_XDP names; for a packet socket
	 * (AF_PACKET) without an address, the one to which it is bound */
	struct usher_mac_device interface;
	struct usher_mac_device bound; /* to which a packet socket is bound already */
};

struct usher_mac_node {
	struct usher_mac_file directory;
	__u32 mode; /* of the new file: type and permissions */
	__u32 device; /* of a device: major << 20 | minor */
};

/* Bytes of the name of an extended attribute, with a zero at its end; a longer one is cut off. */
#define USHER_MAC_ATTRIBUTE_NAME 64

struct usher_mac_attribute {
	struct usher_mac_file file;
	char name[USHER_MAC_ATTRIBUTE_NAME]; /* with its prefix, padded with zeros */
	__u32 size; /* of the value that is set */
	__u32 flags; /* as in setxattr(2) */
};

struct usher_mac_file_command {
	struct usher_mac_file file;
	/* of ioctl(2); the kind of lock, F_RDLCK, F_WRLCK or F_UNLCK; for kernel_read_file enum
	 * kernel_read_file_id of the kernel */
	__u32 command;
	__u32 reserved; /* 0 */
};

struct usher_mac_protection {
	struct usher_mac_file file; /* zeros for memory without a file */
	__u32 protection; /* as in mmap(2) */
	__u32 former; /* what it was */
};

/* Another process, and what is done to it. */
struct usher_mac_process_access {
	__u32 uid; /* its real one */
	__u32 euid;
	__u32 suid;
	__u32 gid; /* its real one */
	__u32 process; /* its number in the initial namespace; 0 in task_prlimit */
	/* ptrace_access_check: PTRACE_MODE_... of the kernel; task_setpgid: the group;
	 * task_setnice: the value, signed; task_prlimit: 1 reads, 2 sets */
	__u32 argument;
};

/* The ids that a process is to have. */
struct usher_mac_identity {
	__u32 uid; /* the real one */
	__u32 euid;
	__u32 suid;
	__u32 fsuid;
	__u32 gid; /* the real one */
	__u32 egid;
	__u32 sgid;
	__u32 fsgid;
	__u32 call; /* 1: setuid, 2: setreuid, 4: setresuid, 8: setfsuid, or those of groups */
	__u32 reserved; /* 0 */
};

struct usher_mac_socket_call {
	__u32 family; /* AF_INET, ... */
	__u32 kind; /* SOCK_STREAM, ... */
	__u32 protocol;
	/* listen(2): backlog; recvmsg(2): flags; shutdown(2): how; socket(2): 1 if the policy
	 * permits the family to processes with a level; setsockopt(2): 1 if the option may make a
	 * socket of another family (TCP_ULP: SMC) that the policy does not permit to them */
	__u32 argument;
	__u32 level; /* of an option */
	__u32 option;
	struct usher_mac_device interface; /* to which a packet socket (AF_PACKET) is bound */
};

/* The UNIX socket at the other end. */
struct usher_mac_peer {
	__u32 kind; /* SOCK_STREAM, ... */
	__u32 uid; /* of its owner, who made it */
};

/* The ids of the subject where no process acts. */
#define USHER_MAC_NOBODY 4294967295U

/*
 * A packet, and the socket that gets it or has sent it. No process acts: each id of the subject is
 * USHER_MAC_NOBODY, its process is 0, and it has no capability. `subject_label` is the socket's
 * element. In socket_deliver `object_label` is the packet's: that of the interface by which it
 * arrived, or that of the process that sends a UNIX datagram; in interface_transmit it is the
 * interface's.
 *
 * In interface_receive and interface_send there is no socket: the first four members are 0,
 * `subject_label` is none, and `object_label` is the interface's.
 */
struct usher_mac_packet {
	__u32 family; /* of the socket */
	__u32 kind; /* SOCK_STREAM, ... */
	__u32 protocol; /* of the socket */
	__u32 uid; /* of the socket's owner, who made it */
	struct usher_mac_device interface; /* by which it arrived or leaves */
};

/* A message queue, semaphores or shared memory of System V. All members of the object are 0 if the
 * question is about all objects. */
struct usher_mac_ipc {
	__u32 id;
	__u32 key; /* 0: IPC_PRIVATE */
	__u32 uid;
	__u32 gid;
	__u32 creator_uid;
	__u32 creator_gid;
	__u32 mode;
	/* of ...get(2), msgsnd(2), shmat(2): flags; of ...ctl(2): the command; msgrcv(2): the
	 * kernel's way of choosing; semop(2): 1 if it changes something */
	__u32 argument;
};

struct usher_mac_mount {
	struct usher_mac_file place; /* the directory; the root of what is unmounted or changed */
	struct usher_mac_file moved; /* the root of what is moved there, for move_mount */
	__u32 flags; /* as in mount(2), umount2(2) */
	__u32 reserved; /* 0 */
};

/* Bytes of the name of a module of the kernel, with the zero that ends it. */
#define USHER_MAC_KERNEL_MODULE_NAME 64

struct usher_mac_kernel_module {
	char name[USHER_MAC_KERNEL_MODULE_NAME]; /* or an alias, padded with zeros */
};

struct usher_mac_operation {
	/* bpf(2): the command; perf_event_open(2): the kernel's kind; syslog(2): the action;
	 * quotactl(2): the operation; capable: the capability */
	__u32 command;
	/* quotactl(2): the type of quota; capable: 1 if it is used in the initial user namespace */
	__u32 argument;
	__u64 value; /* quotactl(2): the id; settime: seconds, 0 if only the zone is set */
};

struct usher_mac_relabelling {
	__u32 at_exec; /* 1: for the next program that this thread executes */
	__u32 reserved; /* 0 */
};

/* A call of this module. */
struct usher_mac_module_call {
	__u32 call; /* its number, which the module defines */
	__u32 reserved; /* 0 */
	__u64 argument;
};

_Static_assert(sizeof(struct usher_mac_subject) == 48, "usher_mac_subject");
_Static_assert(sizeof(struct usher_mac_file) == 32, "usher_mac_file");
_Static_assert(sizeof(struct usher_mac_file_access) == 40, "usher_mac_file_access");
_Static_assert(sizeof(struct usher_mac_creation) == 40, "usher_mac_creation");
_Static_assert(sizeof(struct usher_mac_naming) == 64, "usher_mac_naming");
_Static_assert(sizeof(struct usher_mac_replacing) == 72, "usher_mac_replacing");
_Static_assert(sizeof(struct usher_mac_attributes) == 48, "usher_mac_attributes");
_Static_assert(sizeof(struct usher_mac_execution) == 40, "usher_mac_execution");
_Static_assert(sizeof(struct usher_mac_mapping) == 48, "usher_mac_mapping");
_Static_assert(sizeof(struct usher_mac_signal) == 24, "usher_mac_signal");
_Static_assert(sizeof(struct usher_mac_socket_address) == 88, "usher_mac_socket_address");
_Static_assert(sizeof(struct usher_mac_device) == 24, "usher_mac_device");
_Static_assert(sizeof(struct usher_mac_node) == 40, "usher_mac_node");
_Static_assert(sizeof(struct usher_mac_attribute) == 104, "usher_mac_attribute");
_Static_assert(sizeof(struct usher_mac_file_command) == 40, "usher_mac_file_command");
_Static_assert(sizeof(struct usher_mac_protection) == 40, "usher_mac_protection");
_Static_assert(sizeof(struct usher_mac_process_access) == 24, "usher_mac_process_access");
_Static_assert(sizeof(struct usher_mac_identity) == 40, "usher_mac_identity");
_Static_assert(sizeof(struct usher_mac_socket_call) == 48, "usher_mac_socket_call");
_Static_assert(sizeof(struct usher_mac_peer) == 8, "usher_mac_peer");
_Static_assert(sizeof(struct usher_mac_packet) == 40, "usher_mac_packet");
_Static_assert(sizeof(struct usher_mac_ipc) == 32, "usher_mac_ipc");
_Static_assert(sizeof(struct usher_mac_mount) == 72, "usher_mac_mount");
_Static_assert(sizeof(struct usher_mac_kernel_module) == 64, "usher_mac_kernel_module");
_Static_assert(sizeof(struct usher_mac_relabelling) == 8, "usher_mac_relabelling");
_Static_assert(sizeof(struct usher_mac_module_call) == 16, "usher_mac_module_call");
_Static_assert(sizeof(struct usher_mac_operation) == 16, "usher_mac_operation");

#endif
