/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The values of elements, from text. For the kernel and for user space, where the model in
 * crates/authorization/usher-label is compared with it.
 *
 * A value is read in one pass, a character at a time, into the element itself. The grammar is in
 * usher_mac_label.h (enum usher_mac_kind) and docs/PROTOCOL.md.
 */
#ifndef USHER_MAC_TEXT_H
#define USHER_MAC_TEXT_H

#include <linux/errno.h>

#include "usher_mac_levels.h"

/* The level that is being read, in the order of the text; last, the end of the value. */
enum usher_mac_text_place {
	USHER_MAC_TEXT_EFFECTIVE = 0,
	USHER_MAC_TEXT_LOW = 1,
	USHER_MAC_TEXT_HIGH = 2,
	USHER_MAC_TEXT_AUXILIARY = 3,
	USHER_MAC_TEXT_END = 4, /* nothing may follow */
};

/* The largest length of a name. */
#define USHER_MAC_TEXT_NAME 63

/* The state of reading one value. */
struct usher_mac_text {
	__u32 kind;
	__u32 offset; /* of the value in the text */
	__u32 length; /* of the value */
	__u32 place; /* enum usher_mac_text_place */
	__u32 in_set; /* the word is a compartment */
	__u32 is_bad;
	/* The word that is being read. */
	__u32 letters; /* its length */
	__u32 digits; /* its length, if it has digits only */
	__u64 number; /* if it has digits only */
	__u64 packed; /* its last eight letters */
};

/*
 * The text, the element that is filled from it, and the state between two characters. In the
 * kernel all three are to be values of maps: the verifier knows nothing of their contents, and so
 * has few states to follow.
 */
struct usher_mac_reading {
	const __u8 *text; /* USHER_MAC_TEXT_SIZE bytes, a power of two */
	struct usher_mac_element *element;
	struct usher_mac_text *state;
};

/* Words, as `packed` has them. */
#define USHER_MAC_TEXT_LOW_WORD 0x6c6f77ULL
#define USHER_MAC_TEXT_HIGH_WORD 0x68696768ULL
#define USHER_MAC_TEXT_EQUAL_WORD 0x657175616cULL

static __inline__ int usher_mac_is_digit(__u8 c)
{
	return c >= '0' && c <= '9';
}

static __inline__ int usher_mac_is_letter(__u8 c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Adds a character to the word. */
static __inline__ void usher_mac_text_add(struct usher_mac_text *state, __u8 c)
{
	if (usher_mac_is_digit(c) && state->digits == state->letters) {
		/* No zeros in front, and no more digits than the largest number has. */
		if ((state->digits == 1 && state->number == 0) || state->digits >= 10)
			state->is_bad = 1;
		state->number = state->number * 10 + (c - '0');
		state->digits++;
	}
	state->packed = state->packed << 8 | c;
	state->letters++;
}

/* Whether the word is a number up to a limit. */
static __inline__ int usher_mac_text_is_number(const struct usher_mac_text *state, __u64 most)
{
	return state->letters && state->digits == state->letters && state->number <= most;
}

/* The kind of the level that the word is; USHER_MAC_LEVEL_NONE for no such word. */
static __inline__ __u16 usher_mac_text_level(const struct usher_mac_text *state)
{
	if (state->letters == 3 && state->packed == USHER_MAC_TEXT_LOW_WORD)
		return USHER_MAC_LEVEL_LOW;
	if (state->letters == 4 && state->packed == USHER_MAC_TEXT_HIGH_WORD)
		return USHER_MAC_LEVEL_HIGH;
	if (state->letters == 5 && state->packed == USHER_MAC_TEXT_EQUAL_WORD)
		return USHER_MAC_LEVEL_EQUAL;
	if (usher_mac_text_is_number(state, 65535))
		return USHER_MAC_LEVEL_GRADE;
	return USHER_MAC_LEVEL_NONE;
}

/* The level at the present place; NULL for the auxiliary one. */
static __inline__ struct usher_mac_level *usher_mac_text_at(const struct usher_mac_reading *reading)
{
	struct usher_mac_levels *levels = (struct usher_mac_levels *)reading->element->value;

	switch (reading->state->place) {
	case USHER_MAC_TEXT_EFFECTIVE:
		return &levels->effective;
	case USHER_MAC_TEXT_LOW:
		return &levels->low;
	case USHER_MAC_TEXT_HIGH:
		return &levels->high;
	}
	return 0;
}

/* Keeps clang from removing a bound that the verifier does not see otherwise. */
static __inline__ __u32 usher_mac_text_opaque(__u32 number)
{
	__asm__ volatile("" : "+r"(number));
	return number;
}

static __inline__ void usher_mac_text_add_compartment(struct usher_mac_level *level, __u32 number)
{
	number = usher_mac_text_opaque(number);
	level->compartments[number >> 3 & 31] |= 1 << (number & 7);
}

/* Ends the word: it is a level or a compartment. */
static __inline__ void usher_mac_text_end_word(const struct usher_mac_reading *reading)
{
	struct usher_mac_levels *levels = (struct usher_mac_levels *)reading->element->value;
	struct usher_mac_level *level = usher_mac_text_at(reading);
	struct usher_mac_text *state = reading->state;
	__u16 kind = usher_mac_text_level(state);
	__u16 grade = kind == USHER_MAC_LEVEL_GRADE ? state->number : 0;

	if (state->in_set) {
		if (!level || !usher_mac_text_is_number(state, USHER_MAC_COMPARTMENTS) ||
		    !state->number)
			state->is_bad = 1;
		else
			usher_mac_text_add_compartment(level, state->number - 1);
	} else if (kind == USHER_MAC_LEVEL_NONE) {
		state->is_bad = 1;
	} else if (level) {
		level->kind = kind;
		level->grade = grade;
	} else {
		levels->auxiliary.kind = kind;
		levels->auxiliary.grade = grade;
	}
	state->letters = 0;
	state->digits = 0;
	state->number = 0;
	state->packed = 0;
}

/* The place that follows a mark; USHER_MAC_TEXT_END + 1 where the mark may not stand. */
static __inline__ __u32 usher_mac_text_next(const struct usher_mac_text *state, __u8 mark)
{
	switch (state->place) {
	case USHER_MAC_TEXT_EFFECTIVE:
		if (mark == '(')
			return USHER_MAC_TEXT_LOW;
		if (mark == '[' && state->kind == USHER_MAC_AUXILIARY)
			return USHER_MAC_TEXT_AUXILIARY;
		break;
	case USHER_MAC_TEXT_LOW:
		if (mark == '-')
			return USHER_MAC_TEXT_HIGH;
		break;
	case USHER_MAC_TEXT_HIGH:
		if (mark == ')')
			return USHER_MAC_TEXT_END;
		break;
	case USHER_MAC_TEXT_AUXILIARY:
		if (mark == ']')
			return USHER_MAC_TEXT_END;
		break;
	}
	return USHER_MAC_TEXT_END + 1;
}

/* A mark of levels. */
static __inline__ void usher_mac_text_mark(const struct usher_mac_reading *reading, __u8 mark)
{
	struct usher_mac_text *state = reading->state;
	__u32 next;

	/* Compartments belong to a number. */
	if (mark == ':' && state->kind == USHER_MAC_LEVELS && !state->in_set) {
		if (usher_mac_text_level(state) != USHER_MAC_LEVEL_GRADE)
			state->is_bad = 1;
		usher_mac_text_end_word(reading);
		state->in_set = 1;
		return;
	}
	if (mark == '+' && state->in_set) {
		usher_mac_text_end_word(reading);
		return;
	}
	next = usher_mac_text_next(state, mark);
	if (next > USHER_MAC_TEXT_END) {
		state->is_bad = 1;
		return;
	}
	/* Only the effective level may be missing. */
	if (state->letters || state->in_set || state->place != USHER_MAC_TEXT_EFFECTIVE)
		usher_mac_text_end_word(reading);
	state->in_set = 0;
	state->place = next;
}

/* One character. Returns 1 at the end of the value, and after a mistake. */
static long usher_mac_text_step(__u64 index, struct usher_mac_reading *reading)
{
	struct usher_mac_text *state = reading->state;
	__u8 c;

	if (index >= state->length || state->is_bad)
		return 1;
	c = reading->text[(state->offset + index) & (USHER_MAC_TEXT_SIZE - 1)];
	if (state->kind == USHER_MAC_NAME) {
		if (index >= USHER_MAC_TEXT_NAME ||
		    (!usher_mac_is_letter(c) && !usher_mac_is_digit(c) && c != '_' && c != '.' &&
		     c != '-' && c != '@' && c != ':' && c != '+'))
			state->is_bad = 1;
		else
			reading->element
			    ->value[usher_mac_text_opaque(index) & USHER_MAC_TEXT_NAME] = c;
	} else if (usher_mac_is_digit(c) || usher_mac_is_letter(c)) {
		usher_mac_text_add(state, c);
	} else if (state->kind == USHER_MAC_NUMBER) {
		state->is_bad = 1;
	} else {
		usher_mac_text_mark(reading, c);
	}
	return 0;
}

/* Ends a value of levels. Returns whether the value is whole. */
static __inline__ int usher_mac_text_is_whole(const struct usher_mac_reading *reading)
{
	const struct usher_mac_levels *levels = (void *)reading->element->value;
	struct usher_mac_text *state = reading->state;

	if (state->place == USHER_MAC_TEXT_EFFECTIVE)
		usher_mac_text_end_word(reading);
	else if (state->place != USHER_MAC_TEXT_END || state->letters || state->in_set)
		return 0;
	if (state->is_bad)
		return 0;
	return levels->low.kind == USHER_MAC_LEVEL_NONE ||
	       usher_mac_dominates(&levels->high, &levels->low);
}

/*
 * Reads a value of a kind from a text into an element, which is all zeros. Returns 0, or -EINVAL if
 * the text is not such a value; the element's contents are then undefined. `state` is room for the
 * function. Always inlined, because functions of BPF programs have at most five arguments.
 */
static __inline__ __attribute__((always_inline)) int
usher_mac_read_value(__u32 kind, const __u8 *text, __u32 offset, __u32 length,
		     struct usher_mac_element *element, struct usher_mac_text *state)
{
	struct usher_mac_reading reading = {
		.text = text,
		.element = element,
		.state = state,
	};

	if (!length || length > USHER_MAC_TEXT_VALUE)
		return -EINVAL;
	__builtin_memset(state, 0, sizeof(*state));
	state->kind = kind;
	state->offset = offset;
	state->length = length;
	element->kind = kind;
#ifdef __bpf__
	bpf_loop(length, usher_mac_text_step, &reading, 0);
#else
	for (__u32 index = 0; index < length; index++)
		usher_mac_text_step(index, &reading);
#endif
	if (state->is_bad)
		return -EINVAL;
	switch (kind) {
	case USHER_MAC_LEVELS:
	case USHER_MAC_AUXILIARY:
		return usher_mac_text_is_whole(&reading) ? 0 : -EINVAL;
	case USHER_MAC_NUMBER:
		if (!usher_mac_text_is_number(state, 4294967295))
			return -EINVAL;
		*(__u32 *)element->value = state->number;
		return 0;
	case USHER_MAC_NAME:
		return 0;
	}
	return -EINVAL;
}

#endif
