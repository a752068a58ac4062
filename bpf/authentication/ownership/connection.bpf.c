// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Connection ownership: only a user's own processes can use that user's connections, whichever
 * process holds a descriptor.
 *
 * The keeper writes the owner into the storage of the user's listening socket before it passes the
 * listener on. The kernel clones a connection from its listener, including the label, so the
 * connection is always labelled. Every system call that can reach a socket's data or change its
 * state passes a hook here. Sockets without a label pass at the first test.
 *
 * An owner's process has the owner as uid, euid, suid and fsuid. The hooks check the credentials in
 * force, including those of io_uring.
 *
 * Only its owner and (except accept) Usher's daemons may use a listener. Every root process may
 * receive a duplicate of it, because the service manager keeps one and a starter of workers passes
 * one on; the duplicate only keeps the queue alive. It may set no option, such as a socket filter,
 * because every later connection would inherit it. A socket that is not listening (any more, or
 * yet) counts as a connection, except that a daemon may make it listen (again).
 *
 * No hook covers: poll, and sock_diag, which shows addresses and queue lengths to all users; users
 * of the socket inside the kernel, to which a holder of the descriptor passes it (KCM, and by root
 * nbd, iSCSI, 9p, sockmap); IORING_OP_RECV_ZC from 6.15 on (needs root, and a network card set up
 * for it). All but the first two need a descriptor, which file_receive refuses to others, with one
 * exception: IORING_OP_MSG_RING (6.0) puts a file into another ring's table of files without
 * file_receive. The file stays there: each use by the ring passes a hook here, and installing it as
 * a descriptor (IORING_OP_FIXED_FD_INSTALL, 6.8) passes file_receive again.
 *
 * Kernel 6.1 or later (socket storage in LSM 5.9, bpf_sock_from_file 5.11).
 */
#include "usher_daemons.h"
#include "usher_numbers.h"

/*
 * Owners. Key: the socket; value: the uid. Limit: memory (net.core.optmem_max per socket). Full:
 * user space gets the error and keeps the listener back; a connection that cannot be labelled is
 * refused.
 */
USHER_MAP(connection_owner, SK_STORAGE, BPF_F_NO_PREALLOC | BPF_F_CLONE, 0, int,
	  struct usher_owner);

static __always_inline struct usher_owner *owner_of(struct sock *sk)
{
	if (!sk || !sk->sk_bpf_storage)
		return NULL;
	return bpf_sk_storage_get(&connection_owner, sk, NULL, 0);
}

/* Daemons run as root. Until the first keeper has marked itself, every root process passes. */
static __always_inline int is_daemon(struct task_struct *task)
{
	struct usher_guard_settings *guard = settings();

	return all_uids_are(cred_of(task), 0) && (mark_of(task) || !guard || !guard->device);
}

/* `reason`: that of a refusal; 0: the socket's state decides. */
static __always_inline int use(struct socket *socket, __u32 reason)
{
	struct sock *sk = socket->sk;
	struct usher_owner *owner = owner_of(sk);
	struct task_struct *task;
	int listens;

	if (!owner)
		return 0;
	task = bpf_get_current_task_btf();
	if (all_uids_are(cred_of(task), owner->uid))
		return 0;
	listens = sk->__sk_common.skc_state == BPF_TCP_LISTEN;
	if (listens && reason == USHER_REASON_DESCRIPTOR && all_uids_are(cred_of(task), 0))
		return 0;
	if (listens && is_daemon(task))
		return 0;
	if (!reason)
		reason = listens ? USHER_REASON_LISTENER : USHER_REASON_CONNECTION;
	return refuse(reason, -EPERM);
}

/* The first test handles all files that are not sockets. */
static __always_inline int use_file(struct file *file, __u32 reason)
{
	struct socket *socket;

	if ((file->f_inode->i_mode & S_IFMT) != S_IFSOCK)
		return 0;
	socket = bpf_sock_from_file(file);
	return socket ? use(socket, reason) : 0;
}

#define SOCKET_HOOK(name, hook)                                                                    \
	SEC("lsm/" #hook)                                                                          \
	int BPF_PROG(name, struct socket *socket)                                                  \
	{                                                                                          \
		return use(socket, 0);                                                             \
	}

#define FILE_HOOK(name, hook)                                                                      \
	SEC("lsm/" #hook)                                                                          \
	int BPF_PROG(name, struct file *file)                                                      \
	{                                                                                          \
		return use_file(file, 0);                                                          \
	}

/*
 * Hook: socket_accept, because accept and io_uring pass it before they take a connection off the
 * queue. Root's duplicates of a listener may not accept. Kernel 2.6.
 */
SEC("lsm/socket_accept")
int BPF_PROG(own_accept, struct socket *socket, struct socket *accepted)
{
	struct usher_owner *owner = owner_of(socket->sk);

	if (!owner || all_uids_are(cred_of(bpf_get_current_task_btf()), owner->uid))
		return 0;
	return refuse(USHER_REASON_ACCEPT, -EPERM);
}

/* Hook: socket_recvmsg, for recv, read, readv, recvmmsg and io_uring. Kernel 2.6. */
SOCKET_HOOK(own_receive, socket_recvmsg);

/* Hook: socket_sendmsg, for send, write, writev, sendmmsg and io_uring. Kernel 2.6. */
SOCKET_HOOK(own_send, socket_sendmsg);

/* Hook: socket_shutdown, because it ends a connection or a queue. Kernel 2.6. */
SOCKET_HOOK(own_shutdown, socket_shutdown);

/* Hook: socket_getsockopt, because TCP_ZEROCOPY_RECEIVE reads the data. Kernel 2.6. */
SOCKET_HOOK(own_read_option, socket_getsockopt);

/*
 * Hook: socket_setsockopt, for TCP_ULP, TCP_REPAIR and socket filters, which a connection inherits
 * from its listener. Kernel 2.6.
 */
SOCKET_HOOK(own_set_option, socket_setsockopt);

/* Hook: socket_connect, because connecting to AF_UNSPEC ends a connection. Kernel 2.6. */
SOCKET_HOOK(own_connect, socket_connect);

/* Hook: socket_bind, because it moves a listener that was shut down. Kernel 2.6. */
SOCKET_HOOK(own_bind, socket_bind);

/*
 * Hook: socket_listen, because it changes the length of the queue. The keeper makes a listener
 * listen again after shutting it down to reset waiting connections. New connections belong to the
 * owner, as before. Kernel 2.6.
 */
SEC("lsm/socket_listen")
int BPF_PROG(own_listen, struct socket *socket, int backlog)
{
	struct sock *sk = socket->sk;

	if (owner_of(sk) && sk->__sk_common.skc_state == BPF_TCP_CLOSE &&
	    is_daemon(bpf_get_current_task_btf()))
		return 0;
	return use(socket, 0);
}

/* Hook: socket_getsockname, because it reveals another user's connection. Kernel 2.6. */
SOCKET_HOOK(own_name, socket_getsockname);

/* Hook: socket_getpeername, because it reveals another user's connection. Kernel 2.6. */
SOCKET_HOOK(own_peer_name, socket_getpeername);

/*
 * Hook: file_permission, because splice and sendfile reach the data without socket_recvmsg or
 * socket_sendmsg on some kernels. Kernel 2.6.
 */
FILE_HOOK(own_file, file_permission);

/*
 * Hook: mmap_file, because TCP_ZEROCOPY_RECEIVE needs a mapping. Mappings without a file also pass
 * here, with a null pointer. Verifiers before 6.19 assume that it is never null and remove a test
 * of it, so the program tests a copy. Later ones require a test of the pointer itself. Kernel 3.5.
 */
SEC("lsm/mmap_file")
int BPF_PROG(own_mapping, struct file *file)
{
	__u64 address;

	if (bpf_probe_read_kernel(&address, sizeof(address), &ctx[0]) || !address || !file)
		return 0;
	return use_file(file, 0);
}

/* Hook: file_ioctl, for FIONREAD and SIOCATMARK. Kernel 2.6. */
FILE_HOOK(own_control, file_ioctl);

/*
 * Hook: file_ioctl_compat, the same for 32-bit programs. Kernel 6.8; before that, such a program
 * passes file_ioctl.
 */
FILE_HOOK(own_compat_control, file_ioctl_compat);

/*
 * Hook: uring_cmd, because IORING_OP_URING_CMD has the query of FIONREAD without file_ioctl.
 * Kernel 6.0.
 */
SEC("lsm/uring_cmd")
int BPF_PROG(own_ring_command, struct io_uring_cmd *command)
{
	return use_file(command->file, 0);
}

/*
 * Hook: file_receive, because SCM_RIGHTS (the descriptor is left out, MSG_CTRUNC is set),
 * pidfd_getfd and seccomp's descriptors all pass it. Kernel 2.6.
 */
SEC("lsm/file_receive")
int BPF_PROG(own_descriptor, struct file *file)
{
	return use_file(file, USHER_REASON_DESCRIPTOR);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
