/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rules of the module te: numbers of names, the rules for a domain and a type, and notes of
 * refusals. The file that includes this has declared the module.
 */
#ifndef USHER_MAC_MODULE_TE_RULES_H
#define USHER_MAC_MODULE_TE_RULES_H

#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

#define UNCONFINED 1
#define UNTYPED(now) ((now)->domains + 1)
#define TERMINAL(now) ((now)->domains + 2)

/* The number of places that a denial may have. */
#define PLACES_OF_DENIAL 16

#define OPAQUE(number) asm volatile("" : "+r"(number))

#define WORDS_OF_NAME (USHER_MAC_TE_NAME / sizeof(__u64))

#define MULTIPLIER 0x9e3779b97f4a7c15ULL

/* Names are padded with zeros: a word of zeros ends them. */
static __always_inline __u32 place_of_name(const __u64 *words, __u64 hash)
{
#pragma unroll
	for (__u32 i = 0; i < WORDS_OF_NAME; i++) {
		if (!words[i])
			break;
		hash = (hash ^ words[i]) * MULTIPLIER;
		hash ^= hash >> 32;
	}
	return hash * MULTIPLIER >> 52;
}

static __always_inline int names_equal(const __u64 *one, const __u64 *other)
{
#pragma unroll
	for (__u32 i = 0; i < WORDS_OF_NAME; i++) {
		if (one[i] != other[i])
			return 0;
		if (!one[i])
			break;
	}
	return 1;
}

/* The number of an element's name; `usual` for an object without an element. */
static __always_inline __u32 number_of(const struct usher_mac_te *now,
				       const struct usher_mac_element *element, __u32 usual)
{
	const __u64 *words = (const __u64 *)element->value;
	__u32 number;

	if (element->kind == USHER_MAC_NONE)
		return usual;
	if (element->kind != USHER_MAC_NAME)
		return 0;
	number = now->places[place_of_name(words, now->seed) % USHER_MAC_TE_PLACES];
	if (number >= USHER_MAC_TE_NAMES)
		return 0;
	return names_equal(words, (const __u64 *)now->names[number].text) ? number : 0;
}

/* The rules for a domain and a type. */
static __always_inline const struct usher_mac_te_pair *pair_of(const struct usher_mac_te *now,
							       __u32 domain, __u32 type)
{
	__u32 number;

	OPAQUE(domain);
	OPAQUE(type);
	if (domain >= USHER_MAC_TE_NAMES || type >= USHER_MAC_TE_NAMES)
		return &now->pairs[0];
	number = now->cells[domain * USHER_MAC_TE_NAMES + type];
	return &now->pairs[number < USHER_MAC_TE_PAIRS ? number : 0];
}

/* A denial that is noted. */
struct noting {
	struct usher_mac_te *now;
	__u64 about;
	__u64 permissions;
	__u32 first; /* the first place that it may have */
	__u32 is_noted;
};

/* Notes the denial in a place that is free, or has it already. Returns 1 when it is noted. */
static long note_at(__u32 index, struct noting *noting)
{
	struct usher_mac_te_denial *place;
	__u64 found;

	place = &noting->now->denials[(noting->first + index) % USHER_MAC_TE_DENIALS];
	found = __sync_val_compare_and_swap(&place->about, 0, noting->about);
	if (found && found != noting->about)
		return 0;
	if ((place->permissions & noting->permissions) != noting->permissions)
		__sync_fetch_and_or(&place->permissions, noting->permissions);
	noting->is_noted = 1;
	return 1;
}

static __always_inline int is_permissive(const struct usher_mac_te *now, __u32 domain)
{
	OPAQUE(domain);
	return domain < USHER_MAC_TE_NAMES && now->permissive[domain / 64] >> domain % 64 & 1;
}

/* Notes the permissions that a domain lacks, for the learner. Refuses them, unless the domain is
 * permissive. A check changes only the notes in the settings, which are a table of the kernel. */
static __always_inline int refuse(const struct usher_mac_te *now, __u32 domain, __u32 type,
				  __u32 class, __u64 lacking, int error)
{
	struct usher_mac_te *notes = (struct usher_mac_te *)now;
	__u64 about = 1ULL << 63 | (__u64) class << 32 | domain << 16 | type;
	struct noting noting = {
		.now = notes,
		.about = about,
		.permissions = lacking,
		.first = about * MULTIPLIER >> 48,
	};

	MAC_LOOP(PLACES_OF_DENIAL, note_at, &noting);
	if (!noting.is_noted)
		__sync_fetch_and_add(&notes->denials_lost, 1);
	return is_permissive(now, domain) ? 0 : error;
}

/* Whether a domain has all of these permissions. */
static __always_inline int ask(const struct usher_mac_te *now, __u32 domain, __u32 type,
			       __u32 class, __u32 wanted, int error)
{
	__u32 lacking = wanted & ~pair_of(now, domain, type)->allowed[class];

	return lacking ? refuse(now, domain, type, class, lacking, error) : 0;
}

/* The kinds of objects without an element. */
enum usual {
	OF_PROCESS,
	OF_FILE,
	OF_TERMINAL,
};

static __always_inline __u32 number_of_object(const struct usher_mac_te *now,
					      const struct usher_mac_element *object,
					      enum usual usual)
{
	__u32 number = UNCONFINED;

	if (usual == OF_FILE)
		number = UNTYPED(now);
	else if (usual == OF_TERMINAL)
		number = TERMINAL(now);
	return number_of(now, object, number);
}

/* Whether a process has these permissions for an object of a class. */
static __always_inline int may(const struct usher_mac_element *own,
			       const struct usher_mac_element *object, enum usual usual,
			       __u32 class, __u32 wanted)
{
	const struct usher_mac_te *now = mac_settings();

	if (!now)
		return -EACCES;
	if (own->kind == USHER_MAC_NONE || !wanted)
		return 0;
	OPAQUE(class);
	if (class >= USHER_MAC_TE_CLASSES)
		return -EACCES;
	return ask(now, number_of(now, own, 0), number_of_object(now, object, usual), class, wanted,
		   -EACCES);
}

#endif
