// A program that knows nothing of Usher: connects to ADDRESS and PORT in one of several ways, and
// prints what it is greeted with, or the error's number. Exit status 77: this kernel lacks the way.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LACKING 77
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static struct sockaddr_storage server;
static socklen_t server_size;

static int blocking(int connection)
{
	return connect(connection, (struct sockaddr *)&server, server_size) ? errno : 0;
}

static int not_blocking(int connection)
{
	struct pollfd waiting = { .fd = connection, .events = POLLOUT };
	int error;
	socklen_t size = sizeof(error);

	fcntl(connection, F_SETFL, O_NONBLOCK);
	if (connect(connection, (struct sockaddr *)&server, server_size) == 0 ||
	    errno != EINPROGRESS)
		return errno;
	poll(&waiting, 1, -1);
	getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size);
	fcntl(connection, F_SETFL, 0);
	return error;
}

/* The SYN asks for a cookie, or carries data with one. */
static int fast_open(int connection)
{
	if (sendto(connection, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&server, server_size) >= 0)
		return 0;
	if (errno == EOPNOTSUPP)
		exit(LACKING);
	return errno;
}

static int by_ring(int connection)
{
	struct io_uring_params parameters = { 0 };
	int ring = syscall(SYS_io_uring_setup, 1, &parameters);
	struct io_uring_sqe *entry;
	struct io_uring_cqe *done;
	char *submitted, *completed;

	if (ring < 0 && (errno == ENOSYS || errno == EPERM))
		exit(LACKING);
	submitted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	completed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	entry = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (ring < 0 || submitted == MAP_FAILED || completed == MAP_FAILED || entry == MAP_FAILED)
		return errno;
	entry->opcode = IORING_OP_CONNECT;
	entry->fd = connection;
	entry->addr = (unsigned long)&server;
	entry->off = server_size;
	*(unsigned *)(submitted + parameters.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(submitted + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return errno;
	done = (struct io_uring_cqe *)(completed + parameters.cq_off.cqes);
	return -done->res;
}

int main(int arguments, char **argument)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&server;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&server;
	char greeting[64] = "";
	int connection, error, protocol = 0;

	if (arguments != 4)
		return 2;
	if (inet_pton(AF_INET, argument[2], &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(atoi(argument[3]));
		server_size = sizeof(*v4);
	} else if (inet_pton(AF_INET6, argument[2], &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(atoi(argument[3]));
		server_size = sizeof(*v6);
	} else {
		return 2;
	}
	if (strcmp(argument[1], "multipath") == 0)
		protocol = IPPROTO_MPTCP;
	connection = socket(server.ss_family, SOCK_STREAM, protocol);
	if (connection < 0 && protocol)
		return LACKING;
	if (strcmp(argument[1], "not-blocking") == 0)
		error = not_blocking(connection);
	else if (strcmp(argument[1], "ring") == 0)
		error = by_ring(connection);
	else if (strcmp(argument[1], "fast-open") == 0)
		error = fast_open(connection);
	else
		error = blocking(connection);
	if (error == 0 && read(connection, greeting, sizeof(greeting) - 1) < 0)
		error = errno;
	if (error)
		printf("error %d\n", error);
	else
		printf("%s", greeting);
	return 0;
}
