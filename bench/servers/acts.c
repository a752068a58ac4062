// SPDX-License-Identifier: Apache-2.0
/*
 * Does what programs ask of a kernel, each act many times, for usher-bench-mac. Prints a line for
 * each batch: the act and the nanoseconds of one of them, which are instructions where a guest's
 * clock counts those. In C, because it forks, and static, because it is the program that it
 * executes.
 *
 *   acts              all acts
 *   acts nothing      ends at once
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* In memory: a guest waits for a disk, and that time would count. */
#define FILE_NAME "/dev/shm/usher-bench-file"
#define PAGE 4096
#define DATAGRAM 1024
/* A socket's queue holds this many datagrams, so none is lost. */
#define BURST 64
#define BATCHES 5
/* Seconds after which a missing datagram is an error. */
#define PATIENCE 60

static const char *program;
static int sockets[2], there[2], back[2], file;
static struct sockaddr_in receiver;
static char buffer[PAGE];

static void expect(ssize_t count, ssize_t wanted, const char *what)
{
	if (count < 0)
		err(1, "%s", what);
	if (count != wanted)
		errx(1, "%s: %zd bytes of %zd", what, count, wanted);
}

/* Two sockets on loopback, connected to each other. */
static void make_sockets(void)
{
	struct sockaddr_in address[2];
	socklen_t length = sizeof(address[0]);
	struct timeval patience = { .tv_sec = PATIENCE };

	for (int i = 0; i < 2; i++) {
		address[i] = (struct sockaddr_in){ .sin_family = AF_INET,
						   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		sockets[i] = socket(AF_INET, SOCK_DGRAM, 0);
		if (sockets[i] < 0 ||
		    bind(sockets[i], (struct sockaddr *)&address[i], length) < 0 ||
		    getsockname(sockets[i], (struct sockaddr *)&address[i], &length) < 0 ||
		    setsockopt(sockets[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) <
			0)
			err(1, "socket");
	}
	for (int i = 0; i < 2; i++)
		if (connect(sockets[i], (struct sockaddr *)&address[!i], length) < 0)
			err(1, "connect");
	receiver = address[1];
}

static void answer_datagrams(void)
{
	for (;;) {
		expect(recv(sockets[1], buffer, 1, 0), 1, "recv");
		expect(send(sockets[1], buffer, 1, 0), 1, "send");
	}
}

static void udp_rr(void)
{
	expect(send(sockets[0], buffer, 1, 0), 1, "send");
	expect(recv(sockets[0], buffer, 1, 0), 1, "recv");
}

static void take_bursts(void)
{
	for (;;) {
		for (int i = 0; i < BURST; i++)
			expect(recv(sockets[1], buffer, DATAGRAM, 0), DATAGRAM, "recv");
		expect(send(sockets[1], buffer, 1, 0), 1, "send");
	}
}

static void udp_stream(void)
{
	for (int i = 0; i < BURST; i++)
		expect(sendto(sockets[0], buffer, DATAGRAM, 0, (struct sockaddr *)&receiver,
			      sizeof(receiver)),
		       DATAGRAM, "sendto");
	expect(recv(sockets[0], buffer, 1, 0), 1, "recv");
}

static void answer_bytes(void)
{
	for (;;) {
		expect(read(there[0], buffer, 1), 1, "read");
		expect(write(back[1], buffer, 1), 1, "write");
	}
}

static void ping(void)
{
	expect(write(there[1], buffer, 1), 1, "write");
	expect(read(back[0], buffer, 1), 1, "read");
}

static void read_byte(void)
{
	expect(pread(file, buffer, 1, 0), 1, "pread");
}

static void read_page(void)
{
	expect(pread(file, buffer, PAGE, 0), PAGE, "pread");
}

static void open_close(void)
{
	int opened = open(FILE_NAME, O_RDONLY);

	if (opened < 0 || close(opened) < 0)
		err(1, FILE_NAME);
}

static void stat_file(void)
{
	struct stat status;

	if (stat(FILE_NAME, &status) < 0)
		err(1, FILE_NAME);
}

static void await(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) < 0)
		err(1, "child");
	if (status)
		errx(1, "child: status %d", status);
}

static void fork_wait(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	await(child);
}

static void fork_exec(void)
{
	pid_t child = fork();

	if (!child) {
		execl(program, program, "nothing", NULL);
		err(1, "%s", program);
	}
	await(child);
}

static const struct act {
	const char *name;
	void (*act)(void);
	/* A second process does this meanwhile; NULL: there is none. */
	void (*other)(void);
	int times;
	/* Of the counted thing, in one call of the act. */
	int units;
} acts[] = {
	{ "udp_rr", udp_rr, answer_datagrams, 500, 1 },
	{ "udp_stream", udp_stream, take_bursts, 10, BURST },
	{ "read_byte", read_byte, NULL, 1000, 1 },
	{ "read_page", read_page, NULL, 1000, 1 },
	{ "open_close", open_close, NULL, 1000, 1 },
	{ "stat", stat_file, NULL, 1000, 1 },
	{ "pipe", ping, answer_bytes, 500, 1 },
	{ "fork", fork_wait, NULL, 20, 1 },
	{ "exec", fork_exec, NULL, 10, 1 },
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static void count(const struct act *one)
{
	pid_t other = -1;

	if (one->other) {
		other = fork();
		if (other < 0)
			err(1, "fork");
		if (!other)
			one->other();
	}
	/* The first batch warms up. */
	for (int batch = 0; batch <= BATCHES; batch++) {
		double begun = now();

		for (int i = 0; i < one->times; i++)
			one->act();
		if (batch)
			printf("%s %.1f\n", one->name, (now() - begun) / one->times / one->units);
	}
	/* Else the next child would print these lines again. */
	fflush(stdout);
	if (other > 0) {
		kill(other, SIGKILL);
		waitpid(other, NULL, 0);
	}
}

int main(int number, char **arguments)
{
	if (number == 2 && !strcmp(arguments[1], "nothing"))
		return 0;
	if (number != 1)
		errx(2, "usage: acts");
	program = arguments[0];
	make_sockets();
	file = open(FILE_NAME, O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (file < 0 || pipe(there) < 0 || pipe(back) < 0)
		err(1, FILE_NAME);
	expect(write(file, buffer, PAGE), PAGE, FILE_NAME);
	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
		count(&acts[i]);
	return 0;
}
