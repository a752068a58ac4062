/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service whose children share its memory (vfork) when they try to become the user, and then one
 * that does not (fork), which serves. Prints what each try came to.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <usher.h>

static void must(int result, const char *call)
{
	if (result == -1) {
		printf("%s: %s; %s\n", call, strerror(errno), usher_last_error());
		exit(EXIT_FAILURE);
	}
}

static void serve(int listener)
{
	char bytes[256];
	ssize_t count;
	int connection = usher_accept_by_user(listener, NULL, NULL);
	unsigned int uid = getuid();

	must(connection, "accept_by_user");
	dprintf(connection, "pid %d for %u %u %u %u\n", getpid(), uid, geteuid(), uid, uid);
	while ((count = read(connection, bytes, sizeof(bytes))) > 0)
		must(write(connection, bytes, count), "write");
}

int main(void)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(7000) };
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	volatile int outcome = 0;

	must(listener, "socket");
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
	must(listen(listener, 16), "listen");
	must(usher_set_accept_mode(listener, USHER_ACCEPT_BY_USER), "set_accept_mode");
	must(usher_pre_accept(listener), "pre_accept");
	pid_t child = vfork();
	if (child == 0) {
		outcome = usher_set_net_user(listener) == -1 ? errno : 0;
		_exit(EXIT_SUCCESS);
	}
	must(child, "vfork");
	printf("%s\n", outcome == EBUSY ? "refused" : strerror(outcome));
	fflush(stdout);
	must(usher_pre_accept(listener), "pre_accept");
	child = fork();
	must(child, "fork");
	if (child == 0) {
		must(usher_set_net_user(listener), "set_net_user");
		serve(listener);
		return EXIT_SUCCESS;
	}
	must(waitpid(child, NULL, 0), "waitpid");
	return EXIT_SUCCESS;
}
