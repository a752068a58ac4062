/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service of two threads: one waits in usher_pre_accept() for the users of port 7001, the other
 * forks a process for the first user of port 7000, which tells what of the service it still has:
 * how many sockets of the Unix domain, and whether a key of the service's session keyring.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/keyctl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <usher.h>

static int must(int result, const char *call)
{
	if (result == -1) {
		printf("%s: %s; %s\n", call, strerror(errno), usher_last_error());
		fflush(stdout);
		_exit(EXIT_FAILURE);
	}
	return result;
}

static int listen_at(int port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int listener = must(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int on = 1;

	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
	must(listen(listener, 16), "listen");
	must(usher_set_accept_mode(listener, USHER_ACCEPT_BY_USER), "set_accept_mode");
	return listener;
}

static int unix_sockets(void)
{
	int count = 0;

	for (int descriptor = 3; descriptor < 1024; descriptor++) {
		int domain = 0;
		socklen_t size = sizeof(domain);

		if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
		    domain == AF_UNIX)
			count++;
	}
	return count;
}

static int has_key(void)
{
	return syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user",
		       "of-the-service", 0) != -1;
}

static void *wait_for_others(void *listener)
{
	usher_pre_accept(*(int *)listener);
	return NULL;
}

int main(void)
{
	int first = listen_at(7000), second = listen_at(7001);
	pthread_t other;

	must(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL), "join_session_keyring");
	must(syscall(SYS_add_key, "user", "of-the-service", "x", 1, KEY_SPEC_SESSION_KEYRING),
	     "add_key");
	if (pthread_create(&other, NULL, wait_for_others, &second))
		return EXIT_FAILURE;
	while (unix_sockets() == 0)
		usleep(1000);
	printf("%d %d\n", unix_sockets(), has_key());
	fflush(stdout);
	must(usher_pre_accept(first), "pre_accept");
	if (must(fork(), "fork") == 0) {
		must(usher_set_net_user(first), "set_net_user");
		int connection = must(usher_accept_by_user(first, NULL, NULL), "accept_by_user");

		dprintf(connection, "%d %d\n", unix_sockets(), has_key());
		_exit(EXIT_SUCCESS);
	}
	must(wait(NULL), "wait");
	_exit(EXIT_SUCCESS);
}
