/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An echo service (RFC 862) as a forking server: one process per connection.
 *
 *   cc -o echo FILE.c [-lusher] && ./echo [PORT]
 */
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <usher.h>

enum { ECHO_PORT = 7, BACKLOG = 128 };

/* Returns the result of a call that must succeed. */
static int must(int result, const char *call)
{
	if (result == -1)
		err(EXIT_FAILURE, "%s", call);
	return result;
}

static in_port_t port_of(const char *text)
{
	char *end;
	long port = strtol(text, &end, 10);

	if (end == text || *end != '\0' || port < 1 || port > 65535)
		errx(EXIT_FAILURE, "'%s' is no port; give a number from 1 to 65535", text);
	return (in_port_t)port;
}

/* A listener for IPv6 and IPv4. */
static int listen_at(in_port_t port)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int listener = must(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int on = 1, off = 0;

	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
	must(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)), "IPV6_V6ONLY");
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
	must(listen(listener, BACKLOG), "listen");
	return listener;
}

/* Sends back everything that comes, until the end. */
static void echo(int connection)
{
	char buffer[4096];
	ssize_t length;

	while ((length = must(read(connection, buffer, sizeof(buffer)), "read")) > 0)
		for (ssize_t sent = 0; sent < length;)
			sent += must(write(connection, buffer + sent, length - sent), "write");
}

int main(int count, char **arguments)
{
	int listener = listen_at(count > 1 ? port_of(arguments[1]) : ECHO_PORT);
	int connection;

	/* Ignore children's exit statuses; do not die silently when a client has gone. */
	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	must(usher_set_accept_mode(listener, USHER_ACCEPT_BY_USER), "usher_set_accept_mode");
	for (;;) {
		must(pre_accept(listener), "pre_accept");
		if (must(fork(), "fork") == 0) {
			must(set_net_user(listener), "set_net_user");
			connection = must(accept_by_user(listener, NULL, NULL), "accept_by_user");
			close(listener);
			echo(connection);
			exit(EXIT_SUCCESS);
		}
	}
}
