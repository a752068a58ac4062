/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usher.h: connections on which the server knows the local user before it accepts.
 * Link with -lusher. See connect_by_user(3).
 */
#ifndef USHER_H
#define USHER_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Connects to `service` on `host` (both names of the policy) as the user this process runs as.
 *
 * Returns a connected TCP socket with close-on-exec set, or -1 with errno:
 *   EINVAL        a name is missing or is none
 *   EACCES        policy, on this host or on the other, does not permit it
 *   ENOKEY        the user has no private key on this host
 *   EHOSTUNREACH  the policy knows no such host
 *   ENETUNREACH   the other host's verifier does not answer
 *   ENETDOWN      this host's signer does not run
 *   EAGAIN        too many requests of this user are under way
 *   EPROTO        library and daemon are of different versions
 *   or as connect(2).
 * Blocks; safe to call from any thread.
 */
int usher_connect_by_user(const char *host, const char *service);

/*
 * Says in words what went wrong in the calling thread's last failed call. Valid until its next
 * call; the empty string before the first failure.
 */
const char *usher_last_error(void);

/* The name of the paper. */
static inline int connect_by_user(const char *host, const char *service)
{
	return usher_connect_by_user(host, service);
}

#ifdef __cplusplus
}
#endif

#endif
