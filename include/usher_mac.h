/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usher_mac.h: labels of mandatory access control, as mac(3) of FreeBSD has them. Link with
 * -lusher (pkg-config: usher). The full contract is in the page usher_mac of the manual, section 3.
 *
 * A call that fails returns -1 and sets errno; usher_last_error() of usher.h describes the cause
 * in words. All calls are safe from any thread, as long as no two threads use one mac_t at once.
 */
#ifndef USHER_MAC_H
#define USHER_MAC_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A label, or the elements of one that are to be got. Made by the calls, freed by mac_free(). */
typedef struct usher_mac *mac_t;

/* ----------------------------------------------------------- labels and text */

/*
 * Makes a label from text: elements NAME/VALUE, separated by commas. On failure *mac is null.
 *
 *   EINVAL  the text is not a label
 */
int usher_mac_from_text(mac_t *mac, const char *text);

/*
 * Writes the text of a label, elements by name, into memory that the caller frees with free(3). The
 * text is empty when none of the elements that were asked for is there. On failure *text is null.
 *
 *   EINVAL  the label is prepared, but was not got yet
 *   ENOMEM
 */
int usher_mac_to_text(mac_t mac, char **text);

/*
 * Prepares a label for the elements to get: names, separated by commas, with a `?` before a name
 * whose element may be missing. On failure *mac is null.
 *
 *   EINVAL  not a list of names
 */
int usher_mac_prepare(mac_t *mac, const char *elements);

/*
 * As usher_mac_prepare(), for the elements that /etc/usher/mac.conf has for a class of objects:
 * `file`, `ifnet`, `packet`, `process`, `socket`, ...
 *
 *   ENOENT  the file is missing, or has no line for the class
 *   EINVAL  the file has a mistake
 */
int usher_mac_prepare_type(mac_t *mac, const char *name);

/* Frees a label. A null pointer is permitted. Returns 0. */
int usher_mac_free(mac_t mac);

/* ------------------------------------------------------------- labels of files */

/*
 * Get those elements of a file's label for which `label` was prepared: of the file at a path, of a
 * symbolic link itself, of an open file.
 *
 *   ENODATA     the label lacks an element that has no `?`
 *   EBADMSG     the file's attribute is not a label
 *   EOPNOTSUPP  the file system, or this kind of object, keeps no labels
 *   EINVAL      the label was not prepared
 *   or as getxattr(2).
 */
int usher_mac_get_file(const char *path, mac_t label);
int usher_mac_get_link(const char *path, mac_t label);
int usher_mac_get_fd(int fd, mac_t label);

/*
 * Set the elements of `label` on a file, in one step; its other elements stay.
 *
 *   EPERM       the process lacks CAP_SYS_ADMIN
 *   EINVAL      the label was not got yet, or has no element
 *   ENOSPC      the file's label would become too large, or the file system is full
 *   EAGAIN      other processes keep changing this label
 *   EBADMSG, EOPNOTSUPP as above
 *   or as setxattr(2).
 */
int usher_mac_set_file(const char *path, mac_t label);
int usher_mac_set_link(const char *path, mac_t label);
int usher_mac_set_fd(int fd, mac_t label);

/* --------------------------------------------------------- labels of processes */

/*
 * Get those elements of a process's label for which `label` was prepared: of the calling process,
 * of another one. Every process may get every label.
 *
 *   ENODATA  the label lacks an element that has no `?`
 *   ESRCH    there is no such process
 *   EINVAL   the label was not prepared
 *   EPROTO   kernel programs and library are of different versions
 */
int usher_mac_get_proc(mac_t label);
int usher_mac_get_pid(pid_t pid, mac_t label);

/*
 * Sets the elements of `label` on the calling process, with all of its threads; its other elements
 * stay. Every module in force that labels processes may refuse; then nothing has changed.
 *
 *   EPERM       a module refuses, as EACCES; or another process traces this one
 *   EINVAL      the label was not got yet, or has no element; or no module in force has an element
 *               of this name, or its value is none of the module's
 *   EOPNOTSUPP  no module in force labels processes
 *   EAGAIN      another thread has changed the label meanwhile
 *   ENOSPC      the module has 8,192 elements, or 4,096 and the process lacks CAP_SYS_ADMIN
 */
int usher_mac_set_proc(mac_t label);

/*
 * As execve(2), and the new program begins with the elements of `label`. Errors as
 * usher_mac_set_proc() and execve(2). The request is the calling thread's, and a change of the
 * label takes it back.
 */
int usher_mac_execve(const char *path, const char *const *argv, const char *const *envp,
		     mac_t label);

/*
 * Calls a policy module; number and argument mean what the module says.
 *
 *   ENOSYS  no such module is in force, or it has no such call
 *   EINVAL  not the name of a module, or a negative number
 *   or as the module says.
 */
int usher_mac_syscall(const char *module, int call, uint64_t argument);

/* ----------------------------------------------------------------- the framework */

/*
 * Returns 1 if the policy module of this name is loaded, or, for a null pointer, if any is; else 0.
 *
 *   EINVAL  not the name of a module
 */
int usher_mac_is_present(const char *module);

/* --------------------------------------------------- the names of mac(3) */

static inline int mac_from_text(mac_t *mac, const char *text)
{
	return usher_mac_from_text(mac, text);
}

static inline int mac_to_text(mac_t mac, char **text)
{
	return usher_mac_to_text(mac, text);
}

static inline int mac_prepare(mac_t *mac, const char *elements)
{
	return usher_mac_prepare(mac, elements);
}

static inline int mac_prepare_type(mac_t *mac, const char *name)
{
	return usher_mac_prepare_type(mac, name);
}

static inline int mac_prepare_file_label(mac_t *mac)
{
	return usher_mac_prepare_type(mac, "file");
}

static inline int mac_prepare_ifnet_label(mac_t *mac)
{
	return usher_mac_prepare_type(mac, "ifnet");
}

static inline int mac_prepare_packet_label(mac_t *mac)
{
	return usher_mac_prepare_type(mac, "packet");
}

static inline int mac_prepare_process_label(mac_t *mac)
{
	return usher_mac_prepare_type(mac, "process");
}

static inline int mac_free(mac_t mac)
{
	return usher_mac_free(mac);
}

static inline int mac_get_file(const char *path, mac_t label)
{
	return usher_mac_get_file(path, label);
}

static inline int mac_get_link(const char *path, mac_t label)
{
	return usher_mac_get_link(path, label);
}

static inline int mac_get_fd(int fd, mac_t label)
{
	return usher_mac_get_fd(fd, label);
}

static inline int mac_set_file(const char *path, mac_t label)
{
	return usher_mac_set_file(path, label);
}

static inline int mac_set_link(const char *path, mac_t label)
{
	return usher_mac_set_link(path, label);
}

static inline int mac_set_fd(int fd, mac_t label)
{
	return usher_mac_set_fd(fd, label);
}

static inline int mac_get_proc(mac_t label)
{
	return usher_mac_get_proc(label);
}

static inline int mac_get_pid(pid_t pid, mac_t label)
{
	return usher_mac_get_pid(pid, label);
}

static inline int mac_set_proc(mac_t label)
{
	return usher_mac_set_proc(label);
}

static inline int mac_execve(const char *path, char *const *argv, char *const *envp, mac_t label)
{
	return usher_mac_execve(path, (const char *const *)argv, (const char *const *)envp, label);
}

static inline int mac_syscall(const char *module, int call, void *argument)
{
	return usher_mac_syscall(module, call, (uint64_t)(uintptr_t)argument);
}

static inline int mac_is_present(const char *module)
{
	return usher_mac_is_present(module);
}

#ifdef __cplusplus
}
#endif

#endif
