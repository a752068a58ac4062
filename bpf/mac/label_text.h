/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads the text of a label into numbers of elements. The grammar is that of maclabel(7); the
 * values are read by usher_mac_text.h.
 */
#ifndef USHER_MAC_LABEL_TEXT_H
#define USHER_MAC_LABEL_TEXT_H

#include "accesses.h"
#include "usher_mac_text.h"

/* The name of a module, as words. */
struct mac_name {
	__u64 words[USHER_MAC_NAME_SIZE / sizeof(__u64)];
};

/* Limit of the scripts that the kernel follows in one execution. */
#define MAC_SCRIPTS 5

/* Scratch memory for reading one label, and for deciding about one execution. The verifier follows
 * few states of what lies in a map. */
struct mac_scratch {
	__u8 text[USHER_MAC_TEXT_SIZE];
	struct usher_mac_text state;
	struct usher_mac_numbered wanted; /* the element that is read */
	struct usher_mac_subject subject;
	struct usher_mac_label own; /* of the calling process */
	struct usher_mac_label former; /* of the object */
	struct usher_mac_label label; /* what is read */
	struct mac_name name; /* of the element */
	__u32 length; /* of the text */
	__u32 at; /* where the element begins */
	__u32 value; /* where its value begins; 0: not yet found */
	__u32 end; /* where it ends */
	usher_mac_slots named; /* of the elements so far */
	__u32 is_bad;
	__u32 reads_attribute; /* 1: the kernel reads one for this thread */
	__u32 scripts; /* of the execution under way */
	/* The scripts, and behind them the program that runs; the label of each. */
	struct usher_mac_execution programs[MAC_SCRIPTS + 1];
	struct usher_mac_label of_programs[MAC_SCRIPTS + 1];
};

/*
 * The scratch memory of a thread, kept from its first label on: memory taken for each call would be
 * free again only later, and no account would pay for it. No program that uses it runs while
 * another one of the same thread does. No memory: the label is not read, the change is refused.
 */
TASK_TABLE(scratch, struct mac_scratch);

/* Why a text is read. */
enum reading {
	READS_ATTRIBUTE, /* a file's label; elements of modules that are not loaded are left out */
	ASKS_ABOUT_FILE, /* the same; modules are asked whether the file may get the elements */
	ASKS_ABOUT_PROCESS, /* modules are asked whether the calling process may get them */
};

/* On the stack, as loops demand it. */
struct label_reading {
	struct mac_scratch *scratch;
	usher_mac_slots slots; /* of the modules with labels in force */
	const struct usher_mac_file *file; /* ASKS_ABOUT_FILE */
	__u32 at_exec; /* ASKS_ABOUT_PROCESS */
	int error;
};

/* Made once for a thread, and kept: memory of task storage that is deleted comes back only after a
 * grace period of RCU tasks trace. */
static __always_inline struct mac_scratch *take_scratch(void)
{
	return bpf_task_storage_get(&scratch, bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Whether the kernel reads an attribute for a program of the calling thread. */
static __always_inline int reads_attribute(void)
{
	struct mac_scratch *now =
	    bpf_task_storage_get(&scratch, bpf_get_current_task_btf(), NULL, 0);

	return now && now->reads_attribute;
}

/* Characters of values. */
static __always_inline int is_of_value(__u8 c)
{
	return usher_mac_is_letter(c) || usher_mac_is_digit(c) || c == '_' || c == '.' ||
	       c == ':' || c == '+' || c == '-' || c == '(' || c == ')' || c == '=' || c == '@' ||
	       c == '[' || c == ']';
}

static __always_inline int is_of_name(__u8 c, __u32 index)
{
	if (c >= 'a' && c <= 'z')
		return 1;
	return index && (c == '_' || usher_mac_is_digit(c));
}

struct element_reading {
	struct mac_scratch *scratch;
};

/* One character of an element. Returns 1 at its end. */
static long find_end(__u64 index, struct element_reading *reading)
{
	struct mac_scratch *now = reading->scratch;
	__u32 place = now->at + index;
	__u8 c;

	now->end = place;
	if (place >= now->length || now->is_bad)
		return 1;
	c = now->text[place & (USHER_MAC_TEXT_SIZE - 1)];
	if (now->value) {
		if (c == ',')
			return 1;
		if (!is_of_value(c))
			now->is_bad = 1;
	} else if (c == '/' && index) {
		now->value = place + 1;
	} else if (index < USHER_MAC_NAME_SIZE - 1 && is_of_name(c, index)) {
		((char *)&now->name)[usher_mac_text_opaque(index) & (USHER_MAC_NAME_SIZE - 1)] = c;
	} else {
		now->is_bad = 1;
	}
	return 0;
}

/*
 * The following functions are global, so that the verifier goes through them once.
 */

/* Finds where the name, the value and the element end. */
__attribute__((noinline)) int mac_find_end(struct mac_scratch *now __arg_nonnull)
{
	struct element_reading reading = { .scratch = now };

	now->value = 0;
	__builtin_memset(&now->name, 0, sizeof(now->name));
	bpf_loop(USHER_MAC_TEXT_SIZE + 1, find_end, &reading, 0);
	return now->is_bad || !now->value || now->end <= now->value ||
	       now->end - now->value > USHER_MAC_TEXT_VALUE;
}

/* Reads the value of an element that was found. Returns 0, or -EINVAL. */
__attribute__((noinline)) int mac_read_value(struct mac_scratch *now __arg_nonnull, __u32 kind)
{
	__builtin_memset(&now->wanted, 0, sizeof(now->wanted));
	return usher_mac_read_value(kind, now->text, now->value, now->end - now->value,
				    &now->wanted.element, &now->state);
}

/* The slot of the module with the name that was read, among these; USHER_MAC_MODULES for none. */
__attribute__((noinline)) int mac_slot_of(const struct mac_name *of __arg_nonnull,
					  usher_mac_slots slots)
{
	const __u64 *name = of->words;
	struct usher_mac_module *module;
	const __u64 *other;
	__u32 found = USHER_MAC_MODULES;

	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++) {
		__u32 key = slot;

		module = bpf_map_lookup_elem(&modules, &key);
		if (!module || !(slots >> slot & 1))
			continue;
		other = (const __u64 *)module->name;
		if (!((name[0] ^ other[0]) | (name[1] ^ other[1]) | (name[2] ^ other[2]) |
		      (name[3] ^ other[3])))
			found = slot;
	}
	return found;
}

/* Asks if the element of a file may become another one. A module without relabel_file refuses. */
static __always_inline int ask_about_file(__u32 slot, struct label_reading *reading,
					  const struct usher_mac_element *wanted)
{
	struct mac_scratch *now = reading->scratch;
	const struct usher_mac_element *own, *former;

	if (!(modules_at(MAC_POINT_relabel_file) >> slot & 1))
		return -EPERM;
	own = element_at(*place_of(&now->own, slot), slot);
	former = element_at(*place_of(&now->former, slot), slot);
	return mac_ask_relabel_file(slot, &now->subject, reading->file, own, former, wanted);
}

static __always_inline int ask_about_process(__u32 slot, struct label_reading *reading,
					     const struct usher_mac_element *wanted)
{
	struct usher_mac_relabelling request = { .at_exec = reading->at_exec };
	struct mac_scratch *now = reading->scratch;
	const struct usher_mac_element *former;

	if (!(modules_at(MAC_POINT_relabel_process) >> slot & 1))
		return -EPERM;
	former = element_at(*place_of(&now->former, slot), slot);
	return mac_ask_relabel_process(slot, &now->subject, &request, former, former, wanted);
}

/* The number of the element that a module has decided, which is in the scratch memory. -EACCES: the
 * element is of another kind than the module's, or the table of elements is full. */
static __always_inline long number_decided(struct mac_scratch *now,
					   const struct usher_mac_module *module, __u32 slot)
{
	long number;

	if (now->wanted.element.kind == USHER_MAC_NONE)
		return 0;
	if (now->wanted.element.kind != module->label)
		return -EACCES;
	now->wanted.order = module->order;
	now->wanted.slot = slot;
	number = number_of(&now->wanted, limit_of(&now->subject));
	return number > 0 ? number : -EACCES;
}

/* Notes the error. Returns 1, which ends the loop. */
static __always_inline long fail(struct label_reading *reading, int error)
{
	reading->error = error;
	return 1;
}

/* One element of the text. Returns 1 when there is no further one, or with an error. */
static __always_inline long read_element(__u32 index, struct label_reading *reading,
					 enum reading why)
{
	struct mac_scratch *now = reading->scratch;
	struct usher_mac_module *module;
	__u32 slot, *given;
	long number;

	if (now->at > now->length)
		return 1;
	if (mac_find_end(now) || index >= USHER_MAC_MODULES)
		return fail(reading, -EINVAL);
	slot = mac_slot_of(&now->name, reading->slots);
	module = bpf_map_lookup_elem(&modules, &slot);
	if (slot >= USHER_MAC_MODULES || !module) {
		now->at = now->end + 1;
		return why == ASKS_ABOUT_PROCESS ? fail(reading, -EINVAL) : 0;
	}
	if (now->named >> slot & 1)
		return fail(reading, -EINVAL);
	now->named |= 1U << slot;
	if (mac_read_value(now, module->label))
		return fail(reading, -EINVAL);
	now->wanted.order = module->order;
	now->wanted.slot = slot;
	now->at = now->end + 1;
	given = bpf_map_lookup_elem(&element_numbers, &now->wanted);
	/* An element that stays is not asked about. */
	if (why != READS_ATTRIBUTE && (!given || *given != *place_of(&now->former, slot))) {
		if (why == ASKS_ABOUT_FILE)
			reading->error = ask_about_file(slot, reading, &now->wanted.element);
		else
			reading->error = ask_about_process(slot, reading, &now->wanted.element);
		if (reading->error)
			return 1;
	}
	/* The element is numbered after the module has permitted it, so that no process makes
	 * elements that it may not have. */
	number = number_of(&now->wanted, why == ASKS_ABOUT_PROCESS ? limit_of(&now->subject)
								   : USHER_MAC_ELEMENTS);
	if (number <= 0)
		return fail(reading, -ENOSPC);
	*place_of(&now->label, slot) = number;
	return 0;
}

static long read_attribute_element(__u64 index, struct label_reading *reading)
{
	return read_element(index, reading, READS_ATTRIBUTE);
}

static long read_file_element(__u64 index, struct label_reading *reading)
{
	return read_element(index, reading, ASKS_ABOUT_FILE);
}

static long read_process_element(__u64 index, struct label_reading *reading)
{
	return read_element(index, reading, ASKS_ABOUT_PROCESS);
}

/* Reads the text in the scratch memory; one turn more than there may be elements. */
#define READ_TEXT(reading, read_one)                                                               \
	({                                                                                         \
		bpf_loop(USHER_MAC_MODULES + 1, read_one, &(reading), 0);                          \
		(reading).error;                                                                   \
	})

/* Reads the text in the scratch memory, an attribute, into the label there. Returns 0, or an
 * error. */
__attribute__((noinline)) int mac_read_attribute(struct mac_scratch *now __arg_nonnull,
						 usher_mac_slots slots)
{
	struct label_reading reading = { .scratch = now, .slots = slots };

	now->label = no_label;
	return READ_TEXT(reading, read_attribute_element);
}

/* Begins a text of this length, which is in the scratch memory. */
static __always_inline void begin_text(struct mac_scratch *now, __u32 length)
{
	now->length = length;
	now->at = 0;
	now->named = 0;
	now->is_bad = 0;
}

/* Copies a text from the kernel's memory, and begins it. Returns -EINVAL if there is none of this
 * length. */
static __always_inline int copy_text(struct mac_scratch *now, const void *from, __u64 length)
{
	__u32 size = usher_mac_text_opaque(length);

	if (length > USHER_MAC_TEXT_SIZE || size < 1)
		return -EINVAL;
	/* clang 19 would join both bounds to one comparison, from which the verifier learns
	 * neither. */
	size = usher_mac_text_opaque(size);
	if (size > USHER_MAC_TEXT_SIZE || bpf_probe_read_kernel(now->text, size, from))
		return -EINVAL;
	begin_text(now, size);
	return 0;
}

#endif
