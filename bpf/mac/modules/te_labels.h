/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The labels of the module te: which process takes a domain or gives a file a type, and the labels
 * of new programs and files. */
#ifndef USHER_MAC_MODULE_TE_LABELS_H
#define USHER_MAC_MODULE_TE_LABELS_H

#include "te_files.h"

static __always_inline int is_domain(const struct usher_mac_te *now, __u32 number)
{
	return number > UNCONFINED && number <= now->domains;
}

static __always_inline int is_type(const struct usher_mac_te *now, __u32 number)
{
	return number > now->domains;
}

/* A process enters a domain that it may take. No process may take that of exempt processes. */
MAC_RELABEL(relabel_process)
{
	const struct usher_mac_te *now = mac_settings();
	__u32 next;

	if (!now)
		return -EPERM;
	next = number_of(now, wanted, 0);
	if (!is_domain(now, next))
		return -EINVAL;
	if (former->kind == USHER_MAC_NONE)
		return 0;
	return ask(now, number_of(now, former, 0), next, USHER_MAC_TE_PROCESS,
		   USHER_MAC_TE_TRANSITION, -EPERM);
}

/* Writes the name with a number as an element. */
static __always_inline void write_name(struct usher_mac_element *element,
				       const struct usher_mac_te *now, __u32 number)
{
	__builtin_memset(element, 0, sizeof(*element));
	OPAQUE(number);
	if (number >= USHER_MAC_TE_NAMES)
		return;
	element->kind = USHER_MAC_NAME;
	__builtin_memcpy(element->value, now->names[number].text, USHER_MAC_TE_NAME);
}

static __always_inline int elements_equal(const struct usher_mac_element *one,
					  const struct usher_mac_element *other)
{
	return one->kind == other->kind &&
	       names_equal((const __u64 *)one->value, (const __u64 *)other->value);
}

/* A domain is entered by a program that is an entry point of it: by the rule for this program, or
 * because the process has asked for it, which relabel_process has permitted. An exempt process runs
 * what it likes in the domain that it asks for. */
MAC_DECISION(new_program)
{
	const struct usher_mac_te *now = mac_settings();
	__u32 domain, program, next;

	if (!now)
		return -EACCES;
	domain = number_of(now, subject_label, UNCONFINED);
	program = number_of_object(now, object_label, OF_FILE);
	if (!elements_equal(element, subject_label)) {
		if (subject_label->kind == USHER_MAC_NONE)
			return 0;
		next = number_of(now, element, 0);
	} else {
		next = pair_of(now, domain, program)->transition;
		if (!next)
			return 0;
		write_name(element, now, next);
	}
	return ask(now, next, program, USHER_MAC_TE_FILE, USHER_MAC_TE_ENTRYPOINT, -EACCES);
}

/* The change that is sought. */
struct change {
	const struct usher_mac_te *now;
	__u32 domain;
	__u32 from;
	__u32 to;
	__u32 is_permitted;
};

/* Asks one rule. Returns 1 when it permits. */
static long ask_relabel(__u32 index, struct change *change)
{
	const struct usher_mac_te_relabel *rule;

	if (index >= USHER_MAC_TE_RELABELS)
		return 1;
	rule = &change->now->relabels[index];
	if (rule->domain != change->domain || rule->from != change->from || rule->to != change->to)
		return 0;
	change->is_permitted = 1;
	return 1;
}

/* An element that is left out makes the file `untyped`. */
MAC_RELABEL(relabel_file)
{
	struct change change = { .now = mac_settings() };

	if (!change.now)
		return -EPERM;
	change.to = number_of(change.now, wanted, UNTYPED(change.now));
	if (!is_type(change.now, change.to))
		return -EINVAL;
	if (subject_label->kind == USHER_MAC_NONE)
		return 0;
	change.domain = number_of(change.now, subject_label, 0);
	change.from = number_of(change.now, former, UNTYPED(change.now));
	MAC_LOOP(change.now->relabel_count, ask_relabel, &change);
	if (change.is_permitted || is_permissive(change.now, change.domain))
		return 0;
	return -EPERM;
}

/* A new file has the type that a rule gives it, or that of its directory, known or not to the
 * policy. */
MAC_DECISION(new_file)
{
	const struct usher_mac_te *now = mac_settings();
	__u32 domain, above, type;

	if (!now)
		return -EACCES;
	domain = number_of(now, subject_label, UNCONFINED);
	above = number_of_object(now, object_label, OF_FILE);
	type = type_of_new(now, domain, above, class_of(request->mode));
	if (type) {
		write_name(element, now, type);
		return 0;
	}
	if (object_label->kind == USHER_MAC_NAME)
		*element = *object_label;
	else
		write_name(element, now, UNTYPED(now));
	return 0;
}

#endif
