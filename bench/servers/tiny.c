// SPDX-License-Identifier: Apache-2.0
/*
 * The smallest service: one connection as standard input and output, of which it sends 128 bytes
 * back. Linked statically: what starting a worker costs is not to be hidden by its own start.
 */
#include <unistd.h>

int main(void)
{
	char message[128];
	size_t received = 0;

	while (received < sizeof(message)) {
		ssize_t length = read(0, message + received, sizeof(message) - received);

		if (length <= 0)
			return 1;
		received += length;
	}
	return write(1, message, received) != (ssize_t)received;
}
