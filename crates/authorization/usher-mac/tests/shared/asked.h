/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs the functions of a module in user space; its program includes the module's file and defines
 * ANSWERS before this. Reads questions from standard input until it ends, each with the settings;
 * writes an answer and the last element to each.
 */
#include <stdio.h>

#ifndef SETTINGS
/* The module has no settings. */
#define SETTINGS struct no_settings
struct no_settings {
	__u64 reserved;
};
static SETTINGS *mac_current_settings;
#endif

struct question {
	__u32 point; /* enum mac_point */
	__u32 group_count;
	__u32 groups[4]; /* supplementary ones of the process */
	struct usher_mac_subject subject;
	__u64 request[16];
	struct usher_mac_element own;
	struct usher_mac_element object;
	struct usher_mac_element last; /* of the directory; wanted; decided */
};

static struct question asked;

int mac_is_in_groups(__u32 first, __u32 last)
{
	for (__u32 i = 0; i < asked.group_count && i < 4; i++)
		if (first <= asked.groups[i] && asked.groups[i] <= last)
			return 1;
	return 0;
}

#define ASK(name)                                                                                  \
	case MAC_POINT_##name:                                                                     \
		return check_##name(&asked.subject, (const void *)asked.request, &asked.own,       \
				    &asked.object, &asked.last);

static int answer(void)
{
	switch (asked.point) {
		ANSWERS
	}
	/* No error: the module does not declare this entry point. */
	return 1;
}

int main(void)
{
	static SETTINGS settings;

	mac_current_settings = &settings;
	while (fread(&settings, sizeof(settings), 1, stdin) == 1 &&
	       fread(&asked, sizeof(asked), 1, stdin) == 1) {
		int given = answer();

		if (fwrite(&given, sizeof(given), 1, stdout) != 1 ||
		    fwrite(&asked.last, sizeof(asked.last), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
