/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Remembers callers, so that their calls cost little: which ones no block governs, and the
 * identities of those that one governs. Identifying a program takes two keyed hashes and as many
 * look-ups.
 *
 * One number stands for all that such a look-up depends on: the objects of the program's file and
 * of its directory, its name there, and the generation, within which a policy does not change. User
 * space keeps open what a policy names, so none of these addresses gets another meaning within a
 * generation. While processes execute scripts that the policy names, the number also covers the
 * thread and its number of executions, because only an exec changes the script. The number is mixed
 * with the key of identities, so no one can choose two callers with one number; by chance this
 * happens once in 2^64.
 */
#ifndef USHER_IPSEC_CALLERS_H
#define USHER_IPSEC_CALLERS_H

#include "executions.h"

#define UNGOVERNED_PLACES 1024

/* Key: the lowest bits of a caller's number; value: the number. A place has the last caller that
 * came to it. Limit: 1,024. Full: a caller whose place another has taken is looked up again. */
ARRAY_TABLE(ungoverned, UNGOVERNED_PLACES, __u64);

static __always_inline __u64 mixed_with(__u64 mixed, __u64 word)
{
	mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ULL;
	return mixed ^ mixed >> 32;
}

/* The calling process, as far as a look-up of its program depends on it. */
struct caller {
	struct usher_origin file; /* that it executes */
	__u64 number;
};

static __always_inline __u64 number_of(const struct in_force *now, const struct usher_origin *file,
				       struct task_struct *task,
				       const struct usher_program_key *key)
{
	__u64 mixed = mixed_with(key->words[0], file->file);

	mixed = mixed_with(mixed, file->directory);
	mixed = mixed_with(mixed, file->name);
	mixed = mixed_with(mixed, now->generation);
	if (are_scripts_executed()) {
		mixed = mixed_with(mixed, (char *)task - (char *)key);
		mixed = mixed_with(mixed, task->start_boottime);
		mixed = mixed_with(mixed, task->self_exec_id);
	}
	return mixed_with(mixed, key->words[1]);
}

static __always_inline __u64 *place_of_caller(__u64 number)
{
	__u32 place = number % UNGOVERNED_PLACES;

	return bpf_map_lookup_elem(&ungoverned, &place);
}

/* Reads the calling process. Returns 0 if it executes no file, or is known not to be governed. */
static __always_inline int may_be_governed(const struct in_force *now, struct caller *caller)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct usher_program_key *key = first_of(&program_keys);
	const volatile __u64 *known;

	if (!key || !read_origin(&caller->file, executed_by(task), key))
		return 0;
	caller->number = number_of(now, &caller->file, task, key);
	known = place_of_caller(caller->number);
	return !known || *known != caller->number;
}

static __always_inline void note_ungoverned(__u64 number)
{
	volatile __u64 *place = place_of_caller(number);

	if (place)
		*place = number;
}

/* A governed caller's identities, which take two keyed hashes to find. */
struct known_maker {
	__u64 number;
	__u64 program;
	__u64 place;
	__u64 check; /* made of the others: two callers may write one entry at once */
};

#define KNOWN_MAKERS 256

/* Key: the lowest bits of a caller's number. An entry has the last governed caller that came to it.
 * Limit: 256. Full: a caller whose entry another has taken is identified again. */
ARRAY_TABLE(known_makers, KNOWN_MAKERS, struct known_maker);

static __always_inline struct known_maker *known_maker_of(__u64 number)
{
	__u32 place = number % KNOWN_MAKERS;

	return bpf_map_lookup_elem(&known_makers, &place);
}

static __always_inline __u64 check_of(__u64 number, __u64 program, __u64 place)
{
	const struct usher_program_key *key = first_of(&program_keys);

	return mixed_with(mixed_with(mixed_with(number, program), place), key ? key->words[0] : 0);
}

/* Sets the identities of a maker, if they are known. Returns 0 if not. While processes execute
 * scripts that the policy names, no maker is known: its script would have to be known as well. */
static __always_inline int recall_maker(__u64 number, struct usher_governed *maker)
{
	const volatile struct known_maker *known = known_maker_of(number);
	__u64 program, place;

	if (!known || known->number != number || are_scripts_executed())
		return 0;
	program = known->program;
	place = known->place;
	if (known->check != check_of(number, program, place))
		return 0;
	maker->program = program;
	maker->place = place;
	return 1;
}

static __always_inline void note_maker(__u64 number, const struct usher_governed *maker)
{
	volatile struct known_maker *known = known_maker_of(number);

	if (!known || maker->script.script || are_scripts_executed())
		return;
	known->number = number;
	known->program = maker->program;
	known->place = maker->place;
	known->check = check_of(number, maker->program, maker->place);
}

#endif
