/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checks of the module te about files, and about programs. */
#ifndef USHER_MAC_MODULE_TE_FILES_H
#define USHER_MAC_MODULE_TE_FILES_H

#include "kernel_numbers.h"
#include "te_rules.h"

/* The class of a file, by its mode. */
static __always_inline __u32 class_of(__u32 mode)
{
	switch (TYPE(mode)) {
	case DIRECTORY:
		return USHER_MAC_TE_DIRECTORY;
	case LINK:
		return USHER_MAC_TE_LINK;
	case CHARACTER:
	case BLOCK:
		return USHER_MAC_TE_DEVICE;
	case PIPE:
		return USHER_MAC_TE_PIPE;
	case SOCKET:
		return USHER_MAC_TE_SOCKET;
	}
	return USHER_MAC_TE_FILE;
}

/* Whether the object has a descriptor but no file, as that of eventfd(2), or is a device through
 * which nothing flows. */
static __always_inline int is_for_everybody(const struct usher_mac_file *file,
					    const struct usher_mac_element *object)
{
	if (!TYPE(file->mode))
		return 1;
	if (TYPE(file->mode) != CHARACTER || object->kind != USHER_MAC_NONE)
		return 0;
	switch (file->special) {
	case DEVICE(1, 3): /* null */
	case DEVICE(1, 5): /* zero */
	case DEVICE(1, 7): /* full */
	case DEVICE(1, 8): /* random */
	case DEVICE(1, 9): /* urandom */
		return 1;
	}
	return 0;
}

/* Consoles, serial lines, pts/0 and so on. */
static __always_inline int is_terminal(const struct usher_mac_file *file)
{
	__u32 major = file->special >> 20;

	return TYPE(file->mode) == CHARACTER &&
	       (major == 4 || major == 204 || major == 229 || (major >= 136 && major <= 143) ||
		file->special == DEVICE(5, 0) || file->special == DEVICE(5, 2));
}

/* The kind of object that a file without an element counts as. Pipes and sockets count as the
 * processes that have made them, because most have no name. */
static __always_inline enum usual usual_of(const struct usher_mac_file *file)
{
	if (TYPE(file->mode) == PIPE || TYPE(file->mode) == SOCKET)
		return OF_PROCESS;
	return is_terminal(file) ? OF_TERMINAL : OF_FILE;
}

static __always_inline int may_file(const struct usher_mac_element *own,
				    const struct usher_mac_element *object,
				    const struct usher_mac_file *file, __u32 wanted)
{
	if (is_for_everybody(file, object))
		return 0;
	return may(own, object, usual_of(file), class_of(file->mode), wanted);
}

/* The permissions that an access takes. Writing a directory is about the names in it, which are
 * asked about one by one. */
static __always_inline __u32 wanted_of(__u32 access, __u32 class)
{
	__u32 wanted = 0;

	if (access & USHER_MAC_READ)
		wanted |= USHER_MAC_TE_READ;
	if (access & USHER_MAC_EXECUTE)
		wanted |=
		    class == USHER_MAC_TE_DIRECTORY ? USHER_MAC_TE_SEARCH : USHER_MAC_TE_EXECUTE;
	if (class == USHER_MAC_TE_DIRECTORY)
		return wanted;
	if (access & USHER_MAC_APPEND && class == USHER_MAC_TE_FILE)
		wanted |= USHER_MAC_TE_APPEND;
	else if (access & (USHER_MAC_WRITE | USHER_MAC_APPEND))
		wanted |= USHER_MAC_TE_WRITE;
	return wanted;
}

#define ACCESSES_FILE(point)                                                                       \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		__u32 wanted = wanted_of(request->access, class_of(request->file.mode));           \
                                                                                                   \
		return may_file(subject_label, object_label, &request->file, wanted);              \
	}

ACCESSES_FILE(inode_permission)
ACCESSES_FILE(file_open)

/* Asked at each use, because the file may have been opened in another domain. Whether an open file
 * is written at its end is not known here: the permission to append is enough. */
MAC_CHECK(file_permission)
{
	__u32 class = class_of(request->file.mode), wanted = wanted_of(request->access, class);
	const struct usher_mac_te *now = mac_settings();
	__u32 domain, type;

	if (is_for_everybody(&request->file, object_label))
		return 0;
	if (!now)
		return -EACCES;
	if (subject_label->kind == USHER_MAC_NONE || !wanted)
		return 0;
	domain = number_of(now, subject_label, 0);
	type = number_of_object(now, object_label, usual_of(&request->file));
	if (class == USHER_MAC_TE_FILE && wanted & USHER_MAC_TE_WRITE &&
	    !(pair_of(now, domain, type)->allowed[USHER_MAC_TE_FILE] & USHER_MAC_TE_WRITE))
		wanted = (wanted & ~USHER_MAC_TE_WRITE) | USHER_MAC_TE_APPEND;
	OPAQUE(class);
	if (class >= USHER_MAC_TE_CLASSES)
		return -EACCES;
	return ask(now, domain, type, class, wanted, -EACCES);
}

/* Decides about every access that the mapping may permit later: the check of mprotect(2) does not
 * get the file's label. */
MAC_CHECK(mmap_file)
{
	__u32 wanted = 0;

	if (request->permitted & PROT_READ)
		wanted |= USHER_MAC_TE_READ;
	if (request->permitted & PROT_WRITE)
		wanted |= USHER_MAC_TE_WRITE;
	if (request->protection & PROT_EXEC)
		wanted |= USHER_MAC_TE_EXECUTE;
	return may_file(subject_label, object_label, &request->file, wanted);
}

/* The hook has no label of the file. */
MAC_CHECK(file_mprotect)
{
	if (!TYPE(request->file.mode) || !(request->protection & PROT_EXEC) ||
	    request->former & PROT_EXEC)
		return 0;
	return may(subject_label, subject_label, OF_PROCESS, USHER_MAC_TE_PROCESS,
		   USHER_MAC_TE_EXECMEM);
}

/* ioctl(2) matters for devices only: programs ask isatty(3) about all kinds of files. */
#define CONTROLS_DEVICE(point)                                                                     \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		if (class_of(request->file.mode) != USHER_MAC_TE_DEVICE)                           \
			return 0;                                                                  \
		return may_file(subject_label, object_label, &request->file, USHER_MAC_TE_IOCTL);  \
	}

CONTROLS_DEVICE(file_ioctl)
CONTROLS_DEVICE(file_ioctl_compat)

MAC_CHECK(inode_getattr)
{
	return may_file(subject_label, object_label, request, USHER_MAC_TE_GETATTR);
}

MAC_CHECK(inode_setattr)
{
	__u32 wanted = 0;

	if (request->changes & USHER_MAC_CHANGES_SIZE)
		wanted |= USHER_MAC_TE_WRITE;
	if (request->changes & ~USHER_MAC_CHANGES_SIZE)
		wanted |= USHER_MAC_TE_SETATTR;
	return may_file(subject_label, object_label, &request->file, wanted);
}

MAC_CHECK(inode_set_acl)
{
	return may_file(subject_label, object_label, &request->file, USHER_MAC_TE_SETATTR);
}

MAC_CHECK(inode_remove_acl)
{
	return may_file(subject_label, object_label, &request->file, USHER_MAC_TE_SETATTR);
}

static __always_inline int may_directory(const struct usher_mac_element *own,
					 const struct usher_mac_element *directory, __u32 wanted)
{
	return may(own, directory, OF_FILE, USHER_MAC_TE_DIRECTORY, wanted);
}

/* The type of what a domain makes in a directory. */
static __always_inline __u32 type_of_new(const struct usher_mac_te *now, __u32 domain,
					 __u32 directory, __u32 class)
{
	__u32 type = 0;

	OPAQUE(class);
	if (class < USHER_MAC_TE_CLASSES)
		type = pair_of(now, domain, directory)->created[class];
	return type ? type : directory;
}

static __always_inline int makes(const struct usher_mac_element *own,
				 const struct usher_mac_element *directory, __u32 class)
{
	const struct usher_mac_te *now = mac_settings();
	__u32 domain, above;
	int refused;

	if (!now)
		return -EACCES;
	if (own->kind == USHER_MAC_NONE)
		return 0;
	OPAQUE(class);
	if (class >= USHER_MAC_TE_CLASSES)
		return -EACCES;
	domain = number_of(now, own, 0);
	above = number_of_object(now, directory, OF_FILE);
	refused = ask(now, domain, above, USHER_MAC_TE_DIRECTORY, USHER_MAC_TE_ADD_NAME, -EACCES);
	if (refused)
		return refused;
	return ask(now, domain, type_of_new(now, domain, above, class), class, USHER_MAC_TE_CREATE,
		   -EACCES);
}

MAC_CHECK(inode_create)
{
	return makes(subject_label, directory_label, USHER_MAC_TE_FILE);
}

MAC_CHECK(inode_mkdir)
{
	return makes(subject_label, directory_label, USHER_MAC_TE_DIRECTORY);
}

MAC_CHECK(inode_symlink)
{
	return makes(subject_label, directory_label, USHER_MAC_TE_LINK);
}

MAC_CHECK(inode_mknod)
{
	return makes(subject_label, directory_label, class_of(request->mode));
}

#define CHANGES_NAME(point, of_directory, of_file)                                                 \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		int refused = may_directory(subject_label, directory_label, of_directory);         \
                                                                                                   \
		return refused ? refused                                                           \
			       : may_file(subject_label, object_label, &request->file, of_file);   \
	}

CHANGES_NAME(inode_link, USHER_MAC_TE_ADD_NAME, USHER_MAC_TE_LINKS)
CHANGES_NAME(inode_unlink, USHER_MAC_TE_REMOVE_NAME, USHER_MAC_TE_UNLINK)
CHANGES_NAME(inode_rmdir, USHER_MAC_TE_REMOVE_NAME, USHER_MAC_TE_UNLINK)
CHANGES_NAME(inode_rename, USHER_MAC_TE_REMOVE_NAME, USHER_MAC_TE_RENAME)

MAC_CHECK(inode_rename_to)
{
	__u32 wanted = USHER_MAC_TE_ADD_NAME;
	int refused;

	if (request->replaces)
		wanted |= USHER_MAC_TE_REMOVE_NAME;
	refused = may_directory(subject_label, directory_label, wanted);
	if (!refused && request->replaces)
		refused =
		    may_file(subject_label, object_label, &request->replaced, USHER_MAC_TE_UNLINK);
	return refused;
}

MAC_CHECK(bprm_check_security)
{
	return may(subject_label, object_label, OF_FILE, USHER_MAC_TE_FILE, USHER_MAC_TE_EXECUTE);
}

#endif
