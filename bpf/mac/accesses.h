/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The labels of an access, and the question to the modules with them. */
#ifndef USHER_MAC_ACCESSES_H
#define USHER_MAC_ACCESSES_H

#include "layers.h"
#include "objects.h"

/* Begins the labels of an access with the label of the asker. `asked`: the modules that are asked.
 * Returns whether one of them has labels. Only then are other labels of the access looked up. */
static __always_inline int begin_labels(struct mac_labels *labels, usher_mac_slots asked,
					const struct mac_asker *asker)
{
	/* Some members stay unwritten, and nothing reads them. The asm makes clang take all for
	 * written. */
	asm volatile("" : : "r"(labels) : "memory");
	labels->slots = asker->slots & asked;
	labels->told = 0;
	labels->access = 0;
	labels->unknown = 0;
	labels->remembered = 0;
	if (!labels->slots)
		return 0;
	labels->subject = asker->label ? *asker->label : no_label;
	labels->object = no_label;
	labels->directory = no_label;
	return 1;
}

/* Whether a module is asked about an element that is not known. */
static __always_inline int is_unknown(const struct mac_labels *labels)
{
	return (labels->unknown & labels->slots) != 0;
}

/*
 * Whether an access must be refused because the elements of modules that are asked are not known. A
 * process that may label files is let through to the modules, which decide.
 */
static __always_inline int refuses_elements(const struct usher_mac_subject *subject,
					    usher_mac_slots unknown)
{
	if (!unknown || may_label(subject))
		return 0;
	count_up(first_of(&unknown_refusals));
	return 1;
}

/* As refuses_elements, by the labels of the access. */
static __always_inline int refuses_unknown(const struct usher_mac_subject *subject,
					   const struct mac_labels *labels)
{
	return refuses_elements(subject, is_unknown(labels));
}

/* The word of an access to a file (remembered.h): the file's type and the wanted access, at most
 * seven bits. 0, which is not remembered, for a character device, whose number has no room here;
 * and for a file that is everybody's, because other files with these labels are not. */
static __always_inline __u64 access_to_file(__u32 point, const struct usher_mac_file *file,
					    __u32 wanted)
{
	__u32 type = file->mode & S_IFMT;

	if (type == S_IFCHR || file->flags & USHER_MAC_FOR_EVERYBODY)
		return 0;
	return access_at(point, wanted << 4 | type >> 12);
}

/*
 * Returns the modules that are still asked about a remembered access: those in `asked`, without
 * those that have permitted it before and those that exempt the asker. `remembered` gets the slots
 * of those that have permitted it. `object`: the object's label if it is known, else NULL.
 */
static __always_inline usher_mac_slots those_left(usher_mac_slots asked,
						  const struct mac_asker *asker,
						  const struct usher_mac_label *object,
						  __u64 access, usher_mac_slots *remembered)
{
	usher_mac_slots by_labels = asker->by_labels & asked, exempting;

	*remembered = 0;
	if (!asker->label)
		return asked;
	if (access && by_labels && object) {
		*remembered = mac_remembered(asker->label, object, by_labels, access);
		asked &= ~*remembered;
	}
	exempting = asker->exempting & asked;
	return exempting ? asked & ~mac_lacking(asker->label, exempting) : asked;
}

/*
 * Ends the labels of a remembered access about which a module with labels is asked. The labels may
 * have changed after the remembered permissions were looked up. All modules must decide by the same
 * labels, so the permissions are looked up again, by the labels that the asked modules see. Returns
 * the modules that are asked.
 */
static __always_inline usher_mac_slots end_labels(struct mac_labels *labels, usher_mac_slots asked,
						  const struct mac_asker *asker, __u64 access,
						  usher_mac_slots remembered)
{
	usher_mac_slots again;

	if (remembered) {
		again = remembered &
			~mac_remembered(&labels->subject, &labels->object, remembered, access);
		asked |= again;
		labels->slots |= again;
	}
	labels->access = access;
	labels->by_labels = asker->by_labels & labels->slots;
	labels->remembered = remembered & ~labels->slots;
	return asked;
}

/* Begins the labels of a remembered access to a file. Returns the modules that are asked. */
static __always_inline usher_mac_slots begin_file_labels(struct mac_labels *labels,
							 usher_mac_slots asked,
							 const struct mac_asker *caller,
							 struct inode *inode, __u32 device,
							 __u64 access)
{
	const struct usher_mac_label *known = NULL;
	usher_mac_slots remembered;

	if (caller->by_labels & asked)
		known = known_file_label(inode, device);
	asked = those_left(asked, caller, known, access, &remembered);
	if (!asked)
		return 0;
	if (begin_labels(labels, asked, caller)) {
		labels->unknown = read_file_label(&labels->object, inode, device);
		asked = end_labels(labels, asked, caller, access, remembered);
	}
	labels->told = (__u64)inode;
	return asked;
}

/* As begin_file_labels, for an object whose label is known. */
static __always_inline usher_mac_slots begin_known_labels(struct mac_labels *labels,
							  usher_mac_slots asked,
							  const struct mac_asker *asker,
							  const struct usher_mac_label *object,
							  __u64 access)
{
	usher_mac_slots remembered;

	asked = those_left(asked, asker, object, access, &remembered);
	if (!asked || !begin_labels(labels, asked, asker))
		return asked;
	labels->object = *object;
	return end_labels(labels, asked, asker, access, remembered);
}

/* As begin_file_labels, for a file on an overlay: see layers.h. `file`: the open one, or NULL. What
 * modules permit is not remembered. */
static __always_inline usher_mac_slots begin_layer_labels(struct mac_labels *labels,
							  usher_mac_slots asked,
							  const struct mac_asker *caller,
							  struct inode *inode,
							  const struct file *file)
{
	usher_mac_slots remembered;

	asked = those_left(asked, caller, NULL, 0, &remembered);
	if (!asked)
		return 0;
	if (begin_labels(labels, asked, caller))
		labels->unknown = read_layer_label(&labels->object, inode, file);
	labels->told = (__u64)inode;
	return asked;
}

/* As begin_file_labels, for a socket, which may be NULL. */
static __always_inline usher_mac_slots begin_socket_labels(struct mac_labels *labels,
							   usher_mac_slots asked,
							   const struct mac_asker *caller,
							   struct sock *socket, __u64 access)
{
	const struct usher_mac_label *stored = NULL;

	if (caller->slots & asked && socket)
		stored = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	return begin_known_labels(labels, asked, caller, stored ? stored : &blank_label, access);
}

/* As begin_file_labels, for an open file. A socket has its own label, not that of its inode. */
static __always_inline usher_mac_slots begin_open_labels(
    struct mac_labels *labels, usher_mac_slots asked, const struct mac_asker *caller,
    struct file *file, struct inode *inode, const struct usher_mac_file *of, __u64 access)
{
	struct socket *socket = NULL;

	if ((of->mode & S_IFMT) == S_IFSOCK)
		socket = bpf_sock_from_file(file);
	if (socket)
		return begin_socket_labels(labels, asked, caller, socket->sk, access);
	return begin_file_labels(labels, asked, caller, inode, of->device, access);
}

/* Begins the labels of an access to a file, and to a directory beside it or NULL. Returns 0, or an
 * error if one of their labels is not known. */
static __always_inline int read_labels(struct mac_labels *labels, usher_mac_slots asked,
				       const struct mac_asker *caller,
				       const struct usher_mac_subject *subject, struct inode *inode,
				       __u32 device, struct inode *directory)
{
	int has_labels = begin_labels(labels, asked, caller);

	labels->told = (__u64)inode;
	if (!has_labels)
		return 0;
	labels->unknown |= read_file_label(&labels->object, inode, device);
	if (directory)
		labels->unknown |= read_file_label(&labels->directory, directory, device);
	return refuses_unknown(subject, labels) ? -EACCES : 0;
}

/* As read_labels, for a file on an overlay: see layers.h. `file`: the open one. */
static __always_inline int read_layer_labels(struct mac_labels *labels, usher_mac_slots asked,
					     const struct mac_asker *caller,
					     const struct usher_mac_subject *subject,
					     struct inode *inode, const struct file *file)
{
	int has_labels = begin_labels(labels, asked, caller);

	labels->told = (__u64)inode;
	if (!has_labels)
		return 0;
	labels->unknown = read_layer_label(&labels->object, inode, file);
	return refuses_unknown(subject, labels) ? -EACCES : 0;
}

/* As read_labels, for an open file, as read_file has found it. A socket has its own label, not that
 * of its inode. */
static __always_inline int read_open_labels(struct mac_labels *labels, usher_mac_slots asked,
					    const struct mac_asker *caller,
					    const struct usher_mac_subject *subject,
					    struct file *file, struct inode *inode,
					    const struct usher_mac_file *of, int found)
{
	struct socket *socket = NULL;

	if (found & KIND_IS_LAYERED)
		return read_layer_labels(labels, asked, caller, subject, inode, file);

	if ((of->mode & S_IFMT) == S_IFSOCK)
		socket = bpf_sock_from_file(file);
	if (!socket)
		return read_labels(labels, asked, caller, subject, inode, of->device, NULL);
	if (begin_labels(labels, asked, caller))
		read_socket_label(&labels->object, socket->sk);
	return 0;
}

/* Asks about the calling process, whose label is the only one of the access. */
#define MAC_ASK_CALLER(name, asked, caller, wanted)                                                \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		begin_labels(&labels, asked, caller);                                              \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* As MAC_ASK_CALLER, about another process. */
#define MAC_ASK_ABOUT_PROCESS(name, asked, caller, wanted, task)                                   \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		read_subject(&subject);                                                            \
		if (begin_labels(&labels, asked, caller))                                          \
			read_process_label(&labels.object, (task)->group_leader);                  \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/* As MAC_ASK_CALLER, about a socket. */
#define MAC_ASK_ABOUT_SOCKET(name, asked, caller, wanted, socket)                                  \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
                                                                                                   \
		/* The socket first: the verifier has fewer cases behind it. */                    \
		if (begin_labels(&labels, asked, caller))                                          \
			read_socket_label(&labels.object, socket);                                 \
		read_subject(&subject);                                                            \
		mac_ask_##name(asked, &subject, wanted, &labels);                                  \
	})

/*
 * As MAC_ASK_CALLER, about an open file that read_file has described. The label of the file is
 * known, unless a module with labels has come into force since the file was opened. If a file of an
 * overlay was copied up after it was opened, mmap(2) still maps the former file, while read(2),
 * write(2) and ioctl(2) reach the copy: modules are asked about both.
 */
#define MAC_ASK_ABOUT_FILE(name, asked, caller, wanted, file, inode, of, found)                    \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
		int answer;                                                                        \
                                                                                                   \
		read_subject(&subject);                                                            \
		answer =                                                                           \
		    read_open_labels(&labels, asked, caller, &subject, file, inode, of, found)     \
			? -EACCES                                                                  \
			: mac_ask_##name(asked, &subject, wanted, &labels);                        \
		if (!answer && found & KIND_IS_LAYERED)                                            \
			answer = read_layer_labels(&labels, asked, caller, &subject, inode, NULL)  \
				     ? -EACCES                                                     \
				     : mac_ask_##name(asked, &subject, wanted, &labels);           \
		answer;                                                                            \
	})

/* As MAC_ASK_CALLER, about a new name in a directory. */
#define MAC_ASK_ABOUT_NAME(name, asked, caller, wanted, directory_inode)                           \
	({                                                                                         \
		struct usher_mac_subject subject;                                                  \
		struct mac_labels labels;                                                          \
		int has_labels, answer = 0;                                                        \
                                                                                                   \
		read_subject(&subject);                                                            \
		has_labels = begin_labels(&labels, asked, caller);                                 \
		labels.told = (__u64)(directory_inode);                                            \
		if (has_labels) {                                                                  \
			labels.unknown |= read_file_label(&labels.directory, directory_inode,      \
							  (wanted)->directory.device);             \
			if (refuses_unknown(&subject, &labels))                                    \
				answer = -EACCES;                                                  \
		}                                                                                  \
		answer ? answer : mac_ask_##name(asked, &subject, wanted, &labels);                \
	})

#endif
