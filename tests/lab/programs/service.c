/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service for the tests. It tells each client what its process is and who Usher says the client
 * is, then sends back what comes. To "connect ADDRESS" it answers with the error codes of
 * connecting by UDP, from a socket that was made before there was a user and from a new one.
 *
 *   service PORT fork          a process for each pre_accept, made by fork(2)
 *   service PORT prefork N     N processes, each of which waits in pre_accept by itself
 *
 * A process serves its user's connections one after the other, until a client says "end".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <usher.h>

static int must(int result, const char *call)
{
	if (result == -1) {
		printf("%s: errno %d: %s; %s\n", call, errno, strerror(errno), usher_last_error());
		fflush(stdout);
		exit(EXIT_FAILURE);
	}
	return result;
}

/* A keeper that restarts may take minutes where the machine is emulated. */
static void wait_for_user(int listener)
{
	int result;

	do
		result = usher_pre_accept(listener);
	while (result == -1 && errno == ENETDOWN);
	must(result, "pre_accept");
}

static int listen_at(int port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int listener = must(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int on = 1, off = 0;

	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
	must(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)), "IPV6_V6ONLY");
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
	must(listen(listener, 16), "listen");
	return listener;
}

/* The line of /proc/self/status with this name, without the name. */
static void field(FILE *out, const char *name)
{
	char line[4096];
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof(line), status)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			fprintf(out, " %s", line);
	}
	if (status)
		fclose(status);
}

static int made_before;

/* 0, or the error code. */
static int connects(int from, const char *address)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };

	inet_pton(AF_INET, address, &to.sin_addr);
	return connect(from, (struct sockaddr *)&to, sizeof(to)) ? errno : 0;
}

static void serve(int connection)
{
	struct usher_connection info;
	char line[256];
	FILE *client = fdopen(connection, "r+");

	if (usher_connection_info(connection, &info, sizeof(info)) == -1)
		fprintf(client, "info: errno %d: %s\n", errno, usher_last_error());
	else
		fprintf(client, "pid %d for %u %s at %s from %s key %s principals [%s]", getpid(),
			info.uid, info.user, info.service, info.host, info.key_fingerprint,
			info.principals);
	field(client, "Uid");
	field(client, "Gid");
	field(client, "Groups");
	field(client, "CapPrm");
	field(client, "CapAmb");
	field(client, "NoNewPrivs");
	fprintf(client, "\n");
	fflush(client);
	while (fgets(line, sizeof(line), client)) {
		if (!strcmp(line, "end\n"))
			exit(EXIT_SUCCESS);
		if (!strncmp(line, "connect ", 8)) {
			int made_now = must(socket(AF_INET, SOCK_DGRAM, 0), "socket");

			line[strcspn(line, "\n")] = 0;
			fprintf(client, "%d %d\n", connects(made_before, line + 8),
				connects(made_now, line + 8));
			close(made_now);
		} else {
			fprintf(client, "%s", line);
		}
		fflush(client);
	}
	fclose(client);
}

static void become_and_serve(int listener)
{
	must(usher_set_net_user(listener), "set_net_user");
	for (;;)
		serve(must(usher_accept_by_user(listener, NULL, NULL), "accept_by_user"));
}

int main(int count, char **arguments)
{
	int listener = listen_at(atoi(arguments[1]));
	int processes = count > 3 ? atoi(arguments[3]) : 0;

	made_before = must(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
	signal(SIGPIPE, SIG_IGN);
	must(usher_set_accept_mode(listener, USHER_ACCEPT_BY_USER), "set_accept_mode");
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < processes; i++) {
		if (must(fork(), "fork") == 0) {
			wait_for_user(listener);
			become_and_serve(listener);
		}
	}
	while (processes-- > 0)
		must(wait(NULL), "wait");
	signal(SIGCHLD, SIG_IGN);
	while (count <= 3) {
		wait_for_user(listener);
		if (must(fork(), "fork") == 0)
			become_and_serve(listener);
	}
	return EXIT_SUCCESS;
}
