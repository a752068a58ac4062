/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Remembers which callers no block governs, so that their calls cost little: identifying a program
 * takes two keyed hashes and as many look-ups.
 *
 * All that such a look-up depends on is one number: the objects of the program's file and of its
 * directory, its name there, and the generation, within which a policy does not change. User space
 * keeps open what a policy names, so none of these addresses gets another meaning within a
 * generation. While processes execute scripts that the policy names, the thread and its number of
 * executions belong to it, because only an exec changes the script. The number is mixed with the
 * key of identities, so no one can choose two callers with one number; by chance they have it once
 * in 2^64.
 */
#ifndef USHER_IPSEC_UNGOVERNED_H
#define USHER_IPSEC_UNGOVERNED_H

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
	const volatile __u64 *scripts = first_of(&execution_count);
	__u64 mixed = mixed_with(key->words[0], file->file);

	mixed = mixed_with(mixed, file->directory);
	mixed = mixed_with(mixed, file->name);
	mixed = mixed_with(mixed, now->generation);
	if (scripts && *scripts) {
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

#endif
