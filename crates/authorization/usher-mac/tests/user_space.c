// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Runs the checks of bsdextended, and the precedence of errors, in user space. Reads from standard
 * input: the settings; the number of groups and the groups; then questions until it ends. Writes an
 * answer to each.
 */
#include <stdio.h>
#include <stdlib.h>

#include "modules/bsdextended.bpf.c"
#include "precedence.h"

struct question {
	__u32 kind; /* 0: access, 1: attributes are read, 2: they are changed, 3: precedence */
	__u32 access; /* or changes, or one error */
	__u32 other; /* error */
	__u32 reserved;
	struct usher_mac_subject subject;
	struct usher_mac_file file;
};

static __u32 groups[16], group_count;

int mac_is_in_groups(__u32 first, __u32 last)
{
	for (__u32 i = 0; i < group_count; i++)
		if (first <= groups[i] && groups[i] <= last)
			return 1;
	return 0;
}

static int answer(const struct question *asked)
{
	struct usher_mac_file_access access = { .file = asked->file, .access = asked->access };
	struct usher_mac_attributes change = { .file = asked->file, .changes = asked->access };
	static const struct usher_mac_element none;

	switch (asked->kind) {
	case 0:
		return check_inode_permission(&asked->subject, &access, &none, &none, &none);
	case 1:
		return check_inode_getattr(&asked->subject, &asked->file, &none, &none, &none);
	case 2:
		return check_inode_setattr(&asked->subject, &change, &none, &none, &none);
	}
	return mac_compose(mac_error_of((int)asked->access), mac_error_of((int)asked->other));
}

int main(void)
{
	static struct usher_mac_bsdextended settings;
	struct question asked;

	if (fread(&settings, sizeof(settings), 1, stdin) != 1 ||
	    fread(&group_count, sizeof(group_count), 1, stdin) != 1 || group_count > 16 ||
	    fread(groups, sizeof(groups[0]), group_count, stdin) != group_count)
		return 1;
	mac_current_settings = &settings;
	while (fread(&asked, sizeof(asked), 1, stdin) == 1) {
		int given = answer(&asked);

		if (fwrite(&given, sizeof(given), 1, stdout) != 1)
			return 1;
	}
	return 0;
}
