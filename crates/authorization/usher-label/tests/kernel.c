/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's reader of values, for the test that compares it with the model: for each line `KIND
 * VALUE` prints the element's bytes in hexadecimal digits, or `-`; for `> LEVEL LEVEL` whether the
 * first dominates the second.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "usher_mac_text.h"

/* The value stands anywhere in the text of a label. */
static int value(__u32 kind, const char *value, struct usher_mac_element *element)
{
	static __u8 text[USHER_MAC_TEXT_SIZE];
	static __u32 offset;
	struct usher_mac_text state;
	size_t length = strlen(value);

	if (length > sizeof(text) / 2)
		return -EINVAL;
	offset = (offset + 1) % (sizeof(text) / 2);
	memset(text, '7', sizeof(text));
	memset(element, 0, sizeof(*element));
	memcpy(text + offset, value, length);
	return usher_mac_read_value(kind, text, offset, length, element, &state);
}

static void compare(char *line)
{
	struct usher_mac_element first, second;
	char *other = strchr(line, ' ');

	*other = 0;
	if (value(USHER_MAC_LEVELS, line, &first) || value(USHER_MAC_LEVELS, other + 1, &second)) {
		puts("-");
		return;
	}
	printf("%d\n", usher_mac_dominates(&((struct usher_mac_levels *)first.value)->effective,
					   &((struct usher_mac_levels *)second.value)->effective));
}

int main(void)
{
	struct usher_mac_element element;
	static char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (line[0] == '>') {
			compare(line + 2);
		} else if (value(line[0] - '0', line + 2, &element)) {
			puts("-");
		} else {
			for (size_t i = 0; i < sizeof(element); i++)
				printf("%02x", ((unsigned char *)&element)[i]);
			puts("");
		}
	}
	return 0;
}
