/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The errors of the calls on a host without a daemon. Prints each failed expectation.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <usher.h>

static int failures;

static void expect(const char *what, int result, int expected, const char *text)
{
	int error = errno;

	if (result == -1 && error == expected && strstr(usher_last_error(), text))
		return;
	printf("%s: result %d, errno %d instead of %d, \"%s\" instead of \"%s\"\n", what, result,
	       error, expected, usher_last_error(), text);
	failures++;
}

static void *fresh_thread(void *unused)
{
	(void)unused;
	if (*usher_last_error()) {
		printf("a thread begins with \"%s\"\n", usher_last_error());
		failures++;
	}
	expect("in a thread", usher_set_accept_mode(-1, USHER_ACCEPT_BY_USER), EBADF, "descriptor");
	return NULL;
}

/* A TCP socket on a free port of loopback. */
static int tcp(int listening)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int made = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (made < 0 || bind(made, (struct sockaddr *)&address, sizeof address) < 0 ||
	    (listening && listen(made, 1) < 0)) {
		perror("tcp");
		failures++;
	}
	return made;
}

static int unix_listener(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int made = socket(AF_UNIX, SOCK_STREAM, 0);

	/* The kernel chooses an abstract name. */
	if (made < 0 || bind(made, (struct sockaddr *)&address, sizeof address.sun_family) < 0 ||
	    listen(made, 1) < 0) {
		perror("unix");
		failures++;
	}
	return made;
}

static void clients(void)
{
	expect("no host", usher_connect_by_user(NULL, "imap"), EINVAL, "name");
	expect("no service", usher_connect_by_user("mailhost", NULL), EINVAL, "name");
	expect("a name that is none", connect_by_user("mail host", "imap"), EINVAL, "name");
	expect("no signer", connect_by_user("mailhost", "imap"), ENETDOWN, "usher-signer.service");
}

static void modes(int listener, int bound, int closed, int file)
{
	int datagram = socket(AF_INET, SOCK_DGRAM, 0);
	int local = unix_listener();

	expect("mode 0", usher_set_accept_mode(listener, 0), EINVAL, "accept mode 0");
	expect("mode 2", usher_set_accept_mode(listener, 2), EINVAL, "accept mode 2");
	expect("-1", usher_set_accept_mode(-1, USHER_ACCEPT_BY_USER), EBADF, "descriptor");
	expect("-2", usher_set_accept_mode(-2, USHER_ACCEPT_BY_USER), EBADF, "descriptor");
	expect("closed", usher_set_accept_mode(closed, USHER_ACCEPT_BY_USER), EBADF, "descriptor");
	expect("a file", usher_set_accept_mode(file, USHER_ACCEPT_BY_USER), ENOTSOCK,
	       "listening TCP socket");
	expect("not listening", usher_set_accept_mode(bound, USHER_ACCEPT_BY_USER), EINVAL,
	       "listening TCP socket");
	expect("UDP", usher_set_accept_mode(datagram, USHER_ACCEPT_BY_USER), EINVAL,
	       "listening TCP socket");
	expect("Unix", usher_set_accept_mode(local, USHER_ACCEPT_BY_USER), EINVAL,
	       "listening TCP socket");
	/* Everything is right, but there is no daemon. */
	expect("no keeper", usher_set_accept_mode(listener, USHER_ACCEPT_BY_USER), ENETDOWN,
	       "usher-keeper.service");
}

static void out_of_order(int listener, int closed)
{
	expect("pre_accept", pre_accept(listener), EINVAL, "USHER_ACCEPT_BY_USER");
	expect("set_net_user", set_net_user(listener), EINVAL, "USHER_ACCEPT_BY_USER");
	expect("accept_by_user", accept_by_user(listener, NULL, NULL), EINVAL,
	       "usher_set_net_user");
	expect("pre_accept, closed", usher_pre_accept(closed), EBADF, "descriptor");
	expect("set_net_user, closed", usher_set_net_user(closed), EBADF, "descriptor");
	expect("accept_by_user, closed", usher_accept_by_user(closed, NULL, NULL), EBADF,
	       "descriptor");
}

static void information(int listener, int bound, int closed, int file)
{
	struct usher_connection info;
	struct sockaddr_in address;
	socklen_t length = sizeof address;
	int client = socket(AF_INET, SOCK_STREAM, 0);

	if (getsockname(listener, (struct sockaddr *)&address, &length) < 0 ||
	    connect(client, (struct sockaddr *)&address, length) < 0) {
		perror("connect");
		failures++;
	}
	expect("no info", usher_connection_info(client, NULL, sizeof info), EINVAL, "version");
	expect("small", usher_connection_info(client, &info, sizeof info - 1), EINVAL, "version");
	expect("large", usher_connection_info(client, &info, sizeof info + 1), EINVAL, "version");
	expect("info, -1", usher_connection_info(-1, &info, sizeof info), EBADF, "descriptor");
	expect("info, closed", usher_connection_info(closed, &info, sizeof info), EBADF,
	       "descriptor");
	expect("info, a file", usher_connection_info(file, &info, sizeof info), ENOTSOCK,
	       "connected TCP socket");
	expect("info, unconnected", usher_connection_info(bound, &info, sizeof info), ENOTCONN,
	       "connected TCP socket");
	expect("info, no keeper", usher_connection_info(client, &info, sizeof info), ENETDOWN,
	       "usher-keeper.service");
}

static void text_of_a_thread(void)
{
	pthread_t thread;
	char before[256];

	expect("before", usher_connect_by_user(NULL, NULL), EINVAL, "name");
	snprintf(before, sizeof before, "%s", usher_last_error());
	if (pthread_create(&thread, NULL, fresh_thread, NULL) || pthread_join(thread, NULL)) {
		perror("pthread");
		failures++;
	}
	if (strcmp(before, usher_last_error()) != 0) {
		printf("another thread's failure is told: \"%s\"\n", usher_last_error());
		failures++;
	}
}

int main(void)
{
	int listener, bound, closed, file;

	if (*usher_last_error()) {
		printf("the text begins as \"%s\"\n", usher_last_error());
		failures++;
	}
	listener = tcp(1);
	bound = tcp(0);
	file = open("/dev/null", O_RDONLY);
	/* The number of a closed file. No file that is opened later gets it: the kernel chooses the
	 * lowest free one. */
	closed = fcntl(file, F_DUPFD, 500);
	close(closed);

	clients();
	out_of_order(listener, closed);
	information(listener, bound, closed, file);
	modes(listener, bound, closed, file);
	text_of_a_thread();
	printf("%d failed expectations\n", failures);
	return failures != 0;
}
