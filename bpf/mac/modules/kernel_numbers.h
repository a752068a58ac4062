/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Numbers of the kernel's calls, by which modules decide. */
#ifndef USHER_MAC_MODULE_KERNEL_NUMBERS_H
#define USHER_MAC_MODULE_KERNEL_NUMBERS_H

/* Types of files, in the four bits of the mode. */
#define TYPE(mode) ((mode) >> 12 & 15)
#define PIPE 1
#define CHARACTER 2
#define DIRECTORY 4
#define BLOCK 6
#define REGULAR 8
#define LINK 10
#define SOCKET 12

#define DEVICE(major, minor) ((major) << 20 | (minor))

/* Of mmap(2). */
#define PROTECTION_READ 1
#define PROTECTION_WRITE 2
#define PROTECTION_EXECUTE 4

/* PTRACE_MODE_ATTACH: more than reading what a process shows of itself. */
#define ATTACH 2

/* Families of sockets about which there are checks, and a protocol of IP that has its own ways. */
#define FAMILY_UNIX 1
#define FAMILY_INET 2
#define FAMILY_INET6 10
#define FAMILY_NETLINK 16
#define PROTOCOL_SMC 256

/* Commands and flags of System V IPC. */
#ifndef IPC_RMID
#define IPC_RMID 0
#endif
#ifndef IPC_SET
#define IPC_SET 1
#endif
#ifndef SHM_LOCK
#define SHM_LOCK 11
#endif
#ifndef SHM_UNLOCK
#define SHM_UNLOCK 12
#endif
#ifndef SETVAL
#define SETVAL 16
#endif
#ifndef SETALL
#define SETALL 17
#endif
#ifndef SHM_RDONLY
#define SHM_RDONLY 010000
#endif

#endif
