/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usher.h: network services that know the user at the other end. Link with -lusher
 * (pkg-config: usher). The full contract is in connect_by_user(3) and usher_accept_by_user(3).
 *
 * A call that fails returns -1 and sets errno; usher_last_error() describes the cause in words.
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
 * Connects to `service` on `host` (both are names in the policy) as the user this process runs as.
 *
 * Returns a connected TCP socket with close-on-exec set, or -1 with errno:
 *   EINVAL        a name is missing or malformed
 *   EACCES        the policy of this host or of the other does not permit it, or lists programs and
 *                 this one is not listed; the server refused for another reason; or the user's
 *                 ssh-agent did not sign: usher_last_error() says which
 *   ENOKEY        the user has no key on this host to sign with, or signs by an ssh-agent that
 *                 is not lent
 *   EHOSTUNREACH  the policy has no such host
 *   ENETUNREACH   the other host's verifier, or its keeper, does not answer
 *   ENETDOWN      this host's signer is not running
 *   EAGAIN        too many requests of this user are under way
 *   EPROTO        library and daemon have different versions
 *   or as connect(2).
 * Blocks; safe to call from any thread.
 */
int usher_connect_by_user(const char *host, const char *service);

/* ----------------------------------------------------------------- services */

/*
 * All calls except usher_connection_info() fail with EDEADLK in a process that was forked while
 * another thread was inside one of them. All except usher_accept_by_user() fail with EAGAIN when
 * too many calls of this account are under way.
 */

/* An accept mode of a listening socket, for usher_set_accept_mode(). */
#define USHER_ACCEPT_BY_USER 1

/*
 * Puts a listening TCP socket, bound to the port of a service of the policy, into an accept mode.
 * The process must run as the account that the policy names for the service.
 *
 *   EBADF, ENOTSOCK  not a socket (EBADF: as all calls)
 *   EINVAL           not a listening TCP socket, or an unknown mode
 *   EACCES           the policy has no service at this port for this account
 *   EPERM            the process lacks CAP_SETUID or CAP_SETGID
 *   EOPNOTSUPP       this kernel runs no LSM programs: the service must use `program`
 *   ENETDOWN         this host's keeper is not running
 *   EPROTO           library and daemon have different versions
 *   EMFILE           1,024 listeners of this process already have a mode
 */
int usher_set_accept_mode(int listener, int mode);

/*
 * Waits for a connection whose user has no process yet, and reserves that user for the caller and
 * the children it forks from now on. In style `connection` every connection qualifies. A
 * reservation lapses after 30 seconds, or when its maker ends; the connection then waits for
 * another one. The next call for `listener` replaces it, except for children forked before.
 *
 * Returns 0, or -1 with errno:
 *   EINVAL    the socket is not in the mode USHER_ACCEPT_BY_USER
 *   EINTR     a signal was handled whose handler was set without SA_RESTART
 *   EACCES    the policy no longer has this service, or not for this account
 *   ENETDOWN  the keeper is not running, and did not come back within two minutes
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
 * Except after ENOTRECOVERABLE, a failure leaves the process as it was.
 */
int usher_set_net_user(int listener);

/*
 * Accepts the next connection of the process's user, like accept4(2) with SOCK_CLOEXEC, except:
 * the address is AF_INET6 even for an IPv4 peer; the call waits unless `listener` had O_NONBLOCK
 * when usher_set_net_user() was called; it fails with EINTR after any handled signal, and with
 * EINVAL if usher_set_net_user() has not been called for `listener` in this process or its parents.
 */
int usher_accept_by_user(int listener, struct sockaddr *address, socklen_t *length);

/* The client of a connection. Strings end in a zero byte. */
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
 * Describes the client of an accepted connection. A worker that Usher has started may call it, too,
 * and the processes that serve all users of a service (`style shared`) for each of theirs.
 * `size` is sizeof(struct usher_connection).
 *
 *   EBADF, ENOTSOCK, ENOTCONN  not a connected TCP socket
 *   EINVAL                     this library does not know `size`
 *   ENOENT                     not an Usher connection, or no longer one
 *   EACCES                     the connection belongs to another user or service
 *   ENETDOWN, EPROTO           as above
 */
int usher_connection_info(int connection, struct usher_connection *info, size_t size);

/*
 * Describes in words why the calling thread's last failed call failed. Valid until the thread's
 * next call of this header; the empty string before the first failure.
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
