// SPDX-License-Identifier: Apache-2.0
/*
 * The servers that Usher is compared with. Of the connect-send-recv rows, one loop for all: accept,
 * receive 128 bytes, send them back, close. Of the bulk rows: a process for each connection, which
 * sends as many bytes as the client has asked for by a line.
 *
 *   server plain PORT            accept loop; authenticates nobody
 *   server fork PORT UID GID     a process for each connection, which becomes the user
 *   server exec PORT UID GID PROGRAM
 *                                the same, which executes a program with the connection as its
 *                                standard input and output
 *   server worker                accept loop on descriptor 3: a worker by socket activation
 *   server bulk PORT             bulk, authenticates nobody
 *   server bulk                  bulk on descriptor 3
 */
#define _GNU_SOURCE
#include <err.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE 128

static int listen_at(const char *port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any };
	int one = 1, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin6_port = htons(atoi(port));
	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1024) < 0)
		err(1, "cannot listen at %s", port);
	return listener;
}

static void serve(int connection)
{
	char message[MESSAGE];
	size_t received = 0;
	int one = 1;

	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (received < sizeof(message)) {
		ssize_t length = read(connection, message + received, sizeof(message) - received);

		if (length <= 0)
			break;
		received += length;
	}
	if (received == sizeof(message) && write(connection, message, received) < 0)
		warn("write");
	close(connection);
}

static void execute(int connection, char *program)
{
	char *arguments[] = { program, NULL };

	if (dup2(connection, 0) < 0 || dup2(connection, 1) < 0)
		err(1, "dup2");
	execve(program, arguments, arguments + 1);
	err(1, "%s", program);
}

static void serve_as_user(int listener, int connection, uid_t uid, gid_t gid, char *program)
{
	switch (fork()) {
	case -1:
		err(1, "fork");
	case 0:
		close(listener);
		if (setgroups(0, NULL) < 0 || setgid(gid) < 0 || setuid(uid) < 0)
			err(1, "cannot become the user");
		if (program)
			execute(connection, program);
		serve(connection);
		_exit(0);
	default:
		close(connection);
	}
}

static void serve_bulk(int connection)
{
	static char bytes[256 * 1024];
	char line[32] = {};
	long long left;
	size_t length = 0;

	while (length < sizeof(line) - 1 && !strchr(line, '\n')) {
		if (read(connection, line + length, 1) != 1)
			return;
		length++;
	}
	left = atoll(line);
	while (left > 0) {
		size_t piece = sizeof(bytes);
		ssize_t written;

		if (left < (long long)piece)
			piece = left;
		written = write(connection, bytes, piece);
		if (written <= 0)
			return;
		left -= written;
	}
}

static void serve_in_a_process(int listener, int connection)
{
	switch (fork()) {
	case -1:
		err(1, "fork");
	case 0:
		close(listener);
		serve_bulk(connection);
		_exit(0);
	default:
		close(connection);
	}
}

int main(int count, char **arguments)
{
	int bulk = count >= 2 && count <= 3 && strcmp(arguments[1], "bulk") == 0;
	int executing = count == 6 && strcmp(arguments[1], "exec") == 0;
	int forking = executing || (count == 5 && strcmp(arguments[1], "fork") == 0);
	int listener;

	signal(SIGPIPE, SIG_IGN);
	if (forking || (count == 3 && (bulk || strcmp(arguments[1], "plain") == 0)))
		listener = listen_at(arguments[2]);
	else if (count == 2 && (bulk || strcmp(arguments[1], "worker") == 0))
		listener = 3;
	else
		errx(2,
		     "usage: plain PORT | fork PORT UID GID | exec PORT UID GID PROGRAM | worker | "
		     "bulk [PORT]");
	if (forking || bulk)
		signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (connection < 0)
			continue;
		if (bulk)
			serve_in_a_process(listener, connection);
		else if (forking)
			serve_as_user(listener, connection, atoi(arguments[3]), atoi(arguments[4]),
				      executing ? arguments[5] : NULL);
		else
			serve(connection);
	}
}
