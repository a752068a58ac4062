/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Numbers of the kernel that its headers for user space lack, or that only the C library has. No
 * other file defines a name of the kernel.
 *
 * Newer headers of the kernel may bring each of these names, as a definition or as a member of an
 * enumeration. So those headers that have such enumerations come first, and each name is guarded.
 */
#ifndef USHER_NUMBERS_H
#define USHER_NUMBERS_H

#include <linux/capability.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/stat.h>

/* Families, types and levels of sockets (linux/socket.h of the kernel). */
#ifndef AF_UNIX
#define AF_UNIX 1
#endif
#ifndef AF_INET
#define AF_INET 2
#endif
#ifndef AF_INET6
#define AF_INET6 10
#endif
#ifndef AF_KEY
#define AF_KEY 15
#endif
#ifndef AF_NETLINK
#define AF_NETLINK 16
#endif
#ifndef AF_PACKET
#define AF_PACKET 17
#endif
#ifndef AF_RXRPC
#define AF_RXRPC 33
#endif
#ifndef AF_ALG
#define AF_ALG 38
#endif
#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
#ifndef AF_SMC
#define AF_SMC 43
#endif
#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOCK_STREAM
#define SOCK_STREAM 1
#endif
#ifndef SOCK_DGRAM
#define SOCK_DGRAM 2
#endif
#ifndef SOCK_RAW
#define SOCK_RAW 3
#endif
#ifndef SOCK_PACKET
#define SOCK_PACKET 10 /* its addresses are names */
#endif
#ifndef SOL_IP
#define SOL_IP 0
#endif
#ifndef SOL_SOCKET
#define SOL_SOCKET 1
#endif
#ifndef SOL_IPV6
#define SOL_IPV6 41
#endif
#ifndef SOL_SCTP
#define SOL_SCTP 132
#endif
#ifndef SOL_PACKET
#define SOL_PACKET 263
#endif

/* Options of sockets. */
#ifndef SO_MARK
#define SO_MARK 36
#endif
#ifndef IP_HDRINCL
#define IP_HDRINCL 3
#endif
#ifndef IP_IPSEC_POLICY
#define IP_IPSEC_POLICY 16
#endif
#ifndef IP_XFRM_POLICY
#define IP_XFRM_POLICY 17
#endif
#ifndef IPV6_IPSEC_POLICY
#define IPV6_IPSEC_POLICY 34
#endif
#ifndef IPV6_XFRM_POLICY
#define IPV6_XFRM_POLICY 35
#endif
#ifndef IPV6_HDRINCL
#define IPV6_HDRINCL 36
#endif
#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef TCP_ZEROCOPY_RECEIVE
#define TCP_ZEROCOPY_RECEIVE 35
#endif
#ifndef SCTP_SOCKOPT_BINDX_ADD
#define SCTP_SOCKOPT_BINDX_ADD 100
#endif
#ifndef PACKET_RX_RING
#define PACKET_RX_RING 5
#endif

/* Protocols. */
#ifndef IPPROTO_SMC
#define IPPROTO_SMC 256 /* AF_SMC by way of AF_INET. Kernel 6.11. */
#endif

/* Packets: the kinds of linux/if_packet.h, answers at netfilter's hooks, and the number of `lo` in
 * each network namespace. */
#ifndef PACKET_LOOPBACK
#define PACKET_LOOPBACK 5
#endif
#ifndef NF_DROP
#define NF_DROP 0
#endif
#ifndef NF_ACCEPT
#define NF_ACCEPT 1
#endif
#define LOOPBACK_INTERFACE 1

/* The most bytes of a value that a setsockopt program sees on machines with the smallest pages. */
#define SMALLEST_PAGE 4096

/* Open files, in f_mode and f_flags. */
#ifndef FMODE_READ
#define FMODE_READ 1
#endif
#ifndef FMODE_WRITE
#define FMODE_WRITE 2
#endif
#ifndef O_APPEND
#define O_APPEND 02000
#endif

/* Bits of struct iattr. */
#ifndef ATTR_MODE
#define ATTR_MODE (1 << 0)
#endif
#ifndef ATTR_UID
#define ATTR_UID (1 << 1)
#endif
#ifndef ATTR_GID
#define ATTR_GID (1 << 2)
#endif
#ifndef ATTR_SIZE
#define ATTR_SIZE (1 << 3)
#endif
#ifndef ATTR_ATIME_SET
#define ATTR_ATIME_SET (1 << 7)
#endif
#ifndef ATTR_MTIME_SET
#define ATTR_MTIME_SET (1 << 8)
#endif

/* Bits of inode_permission's mask. MAY_ACCESS: access(2). MAY_OPEN: an open or an exec, after which
 * file_open is called. */
#ifndef MAY_ACCESS
#define MAY_ACCESS 16
#endif
#ifndef MAY_OPEN
#define MAY_OPEN 32
#endif

/* Bits of the mode of a file (linux/stat.h, which is empty where the C library has them). */
#ifndef S_ISUID
#define S_ISUID 0004000
#endif
#ifndef S_ISGID
#define S_ISGID 0002000
#endif

/* File systems. In s_flags: one that no process mounts. In s_magic: that of POSIX message queues
 * (ipc/mqueue.c), and that of pidfds, which have no names. In i_flags: a file of the kernel's own,
 * such as shared memory of System V. */
#ifndef SB_KERNMOUNT
#define SB_KERNMOUNT (1 << 22)
#endif
#ifndef MQUEUE_MAGIC
#define MQUEUE_MAGIC 0x19800202
#endif
#ifndef PIDFS_MAGIC
#define PIDFS_MAGIC 0x50494446
#endif
#ifndef S_PRIVATE
#define S_PRIVATE (1 << 9)
#endif

/* Flags of mmap(2). */
#ifndef PROT_READ
#define PROT_READ 1
#endif
#ifndef PROT_WRITE
#define PROT_WRITE 2
#endif
#ifndef PROT_EXEC
#define PROT_EXEC 4
#endif
#ifndef MAP_SHARED
#define MAP_SHARED 1
#endif

/* System V IPC. */
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

/* Processes: signals; flags of clone(2); modes of ptrace_access_check, of which ps(1) uses the
 * second for each process; bits of `unsafe` at an exec: another process has the same working
 * directory, root and umask (CLONE_FS), or traces this one. */
#ifndef SIGKILL
#define SIGKILL 9
#endif
#ifndef SIGCONT
#define SIGCONT 18
#endif
#ifndef CLONE_VM
#define CLONE_VM 0x00000100
#endif
#ifndef CLONE_FILES
#define CLONE_FILES 0x00000400
#endif
#ifndef CLONE_VFORK
#define CLONE_VFORK 0x00004000
#endif
#ifndef CLONE_PARENT
#define CLONE_PARENT 0x00008000
#endif
#ifndef CLONE_THREAD
#define CLONE_THREAD 0x00010000
#endif
#ifndef PTRACE_MODE_ATTACH
#define PTRACE_MODE_ATTACH 0x02
#endif
#ifndef PTRACE_MODE_NOAUDIT
#define PTRACE_MODE_NOAUDIT 4
#endif
#ifndef LSM_UNSAFE_SHARE
#define LSM_UNSAFE_SHARE 1
#endif
#ifndef LSM_UNSAFE_PTRACE
#define LSM_UNSAFE_PTRACE 2
#endif

/* Options of `capable`: without audit, as each time that memory is mapped; for a call of the set*id
 * family. */
#ifndef CAP_OPT_NOAUDIT
#define CAP_OPT_NOAUDIT 2
#endif
#ifndef CAP_OPT_INSETID
#define CAP_OPT_INSETID 4
#endif

/* Attributes of processes (linux/lsm.h). */
#ifndef LSM_ATTR_CURRENT
#define LSM_ATTR_CURRENT 100
#endif
#ifndef LSM_ATTR_EXEC
#define LSM_ATTR_EXEC 101
#endif

#endif
