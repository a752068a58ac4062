/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usher.h: network services with the user on the other end. Link with -lusher
 * (pkg-config: usher). The full contract is in connect_by_user(3) and usher_accept_by_user(3).
 *
 * A call that fails returns -1 with errno set, and usher_last_error() says in words why.
 */
#ifndef USHER_H
#define USHER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ clients */

/*
 * Connects to `service` on `host` (both names of the policy) as the user this process runs as.
 *
 * Returns a connected TCP socket with close-on-exec set, or -1 with errno:
 *   EINVAL        a name is missing or is none
 *   EACCES        policy, on this host or on the other, does not permit it, or lists programs and
 *                 this one is not listed; the server refused for another reason; or the user's
 *                 ssh-agent did not sign: usher_last_error says which
 *   ENOKEY        the user has no key on this host to sign with, or signs by an ssh-agent that
 *                 nobody lends
 *   EHOSTUNREACH  the policy knows no such host
 *   ENETUNREACH   the other host's verifier, or its keeper, does not answer
 *   ENETDOWN      this host's signer does not run
 *   EAGAIN        too many requests of this user are under way
 *   EPROTO        library and daemon are of different versions
 *   or as connect(2).
 * Blocks; safe to call from any thread.
 */
int usher_connect_by_user(const char *host, const char *service);

/* ----------------------------------------------------------------- services */

/*
 * All calls but usher_connection_info() fail with EDEADLK in a process that was forked while
 * another thread was inside one of them. All but usher_accept_by_user() fail with EAGAIN when too
 * many calls of this account are under way.
 */

/* An accept mode of a listening socket, for usher_set_accept_mode(). */
#define USHER_ACCEPT_BY_USER 1

/*
 * Puts a listening TCP socket, bound to the port of a service of the policy, into an accept mode.
 * The process must run as the account that the policy names for the service.
 *
 *   EBADF, ENOTSOCK  no socket (EBADF: as all calls)
 *   EINVAL           not a listening TCP socket, or an unknown mode
 *   EACCES           the policy has no service at this port for this account
 *   EPERM            the process has not both of CAP_SETUID and CAP_SETGID
 *   EOPNOTSUPP       this kernel runs no LSM programs: the service has to be one with `program`
 *   ENETDOWN         this host's keeper does not run
 *   EPROTO           library and daemon are of different versions
 *   EMFILE           1,024 listeners of this process are in a mode already
 */
int usher_set_accept_mode(int listener, int mode);

/*
 * Waits until a connection waits whose user has no process yet, and reserves that user for the
 * caller and the children it forks from now on. In style `connection` each connection is such.
 * A reservation lapses that is not used within 30 seconds, or whose maker ends; the connection
 * then waits for another. The next call for `listener` replaces it, but for children forked before.
 *
 * Returns 0, or -1 with errno:
 *   EINVAL    the socket is not in the mode USHER_ACCEPT_BY_USER
 *   EINTR     a signal came whose handler was set without SA_RESTART
 *   EACCES    the policy no longer has this service, or not for this account
 *   ENETDOWN  the keeper does not run, and did not come back within two minutes
 *   EPERM, EOPNOTSUPP, EPROTO as above
 */
int usher_pre_accept(int listener);

/*
 * Makes the calling process the user that usher_pre_accept() reserved, for good: user ids, group
 * ids and supplementary groups, no capability. From then on `listener` is, in this process, the
 * user's own queue: it can be polled and accepted from.
 *
 * Returns 0, or -1 with errno:
 *   EINVAL           nothing is reserved
 *   EBUSY            the process has other threads, shares memory, files or working directory, or
 *                    another process could reach into it (seccomp listener, io_uring, perf)
 *   EPERM            the process has become a user already, or may not change its groups
 *   ESTALE           the reservation has lapsed, or is neither this process's nor its parent's
 *   EACCES           the user has been revoked meanwhile, or this is not the service's account
 *   EOVERFLOW        the user is in more than 128 supplementary groups
 *   ENOTRECOVERABLE  the ids are changed in part: the process must end
 *   ENETDOWN, EPROTO as above
 * But for ENOTRECOVERABLE a failure leaves the process as it was.
 */
int usher_set_net_user(int listener);

/*
 * Accepts the next connection of the process's user. As accept4(2) with SOCK_CLOEXEC, but:
 * the address is an AF_INET6 one also for an IPv4 peer; whether it waits is what O_NONBLOCK of
 * `listener` said when usher_set_net_user() was called; EINTR after any handled signal; EINVAL when
 * usher_set_net_user() has not been called for `listener` in this process or its parents.
 */
int usher_accept_by_user(int listener, struct sockaddr *address, socklen_t *length);

/* Who a connection is. Strings end in a zero byte. */
struct usher_connection {
	uid_t uid;
	char user[33];
	char service[33];
	/* The client host's name in this host's policy. */
	char host[64];
	/* The key that signed for the session: "SHA256:" and base64, as ssh-keygen -l shows it. */
	char key_fingerprint[52];
	/* Principals of its certificate that its authority is trusted to name for the user,
	 * separated by commas; empty for a plain key. */
	char principals[512];
	/* When the session was opened and when it ends at the latest, in seconds since 1970. */
	int64_t opened;
	int64_t expires;
};

/*
 * Says who an accepted connection is. A worker may ask this too that was started by Usher.
 * `size` is sizeof(struct usher_connection).
 *
 *   EBADF, ENOTSOCK, ENOTCONN  no connected TCP socket
 *   EINVAL                     a size this library does not know
 *   ENOENT                     no connection of Usher's, or no longer one
 *   EACCES                     another user's
 *   ENETDOWN, EPROTO           as above
 */
int usher_connection_info(int connection, struct usher_connection *info, size_t size);

/*
 * Says in words what went wrong in the calling thread's last failed call. Valid until its next
 * call of this header; the empty string before the first failure.
 */
const char *usher_last_error(void);

/* ------------------------------------------------- the names of the paper */

static inline int connect_by_user(const char *host, const char *service)
{
	return usher_connect_by_user(host, service);
}

static inline int pre_accept(int listener)
{
	return usher_pre_accept(listener);
}

static inline int set_net_user(int listener)
{
	return usher_set_net_user(listener);
}

static inline int accept_by_user(int listener, struct sockaddr *address, socklen_t *length)
{
	return usher_accept_by_user(listener, address, length);
}

#ifdef __cplusplus
}
#endif

#endif
