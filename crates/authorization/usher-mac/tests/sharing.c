// SPDX-License-Identifier: Apache-2.0
/*
 * Shares memory that it can write with another process, or has shared it, and then reads a file:
 * for the tests of modules that lower processes. Exit status 0: it was permitted to read; 1:
 * refused.
 *
 *   sharing WAY HIGH LOW    HIGH: the file that is mapped; LOW: the one that is read
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK (256 * 1024)

static const char *high, *low;
static char stack[STACK] __attribute__((aligned(16)));
static char inner_stack[STACK] __attribute__((aligned(16)));

/* Runs an act in a child that has this process's memory. Returns the child's exit status. */
static int beside_stack(int (*act)(void *), int flags, char *of)
{
	int status, child = clone(act, of + STACK, flags | CLONE_VM | SIGCHLD, NULL);

	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
		errx(2, "clone");
	return WEXITSTATUS(status);
}

static int beside(int (*act)(void *), int flags)
{
	return beside_stack(act, flags, stack);
}

static int maps(void *unused)
{
	int file = open(high, O_RDWR);

	(void)unused;
	if (file < 0 || mmap(NULL, 1, PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED)
		_exit(2);
	_exit(0);
}

static int nothing(void *unused)
{
	(void)unused;
	_exit(0);
}

/* Returns the exit status of this program. */
static int reads(void *unused)
{
	char byte;
	int file = open(low, O_RDONLY);

	(void)unused;
	if (file < 0)
		return 2;
	if (read(file, &byte, 1) == 1)
		return 0;
	return errno == EACCES ? 1 : 2;
}

static int exits_reading(void *unused)
{
	_exit(reads(unused));
}

static int exits_after_vfork(void *unused)
{
	(void)unused;
	_exit(beside_stack(nothing, CLONE_VFORK, inner_stack));
}

/* Returns as reads does, for memory that is shared with children. */
static int maps_memory(void)
{
	if (mmap(NULL, 1, PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
		return 0;
	return errno == EACCES ? 1 : 2;
}

static int exits_mapping_memory(void *unused)
{
	(void)unused;
	_exit(maps_memory());
}

/* Once the child has read, its label differs from its parent's. */
static int exits_mapping_later(void *unused)
{
	_exit(reads(unused) ? 2 : maps_memory());
}

static void *waits(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void require(int status)
{
	if (status)
		errx(2, "the child: %d", status);
}

int main(int count, char **arguments)
{
	const char *way = count == 4 ? arguments[1] : "";
	pthread_t thread;
	int status;

	high = arguments[2];
	low = arguments[3];
	if (!strcmp(way, "vfork"))
		require(beside(nothing, CLONE_VFORK));
	else if (!strcmp(way, "vfork_maps"))
		require(beside(maps, CLONE_VFORK));
	else if (!strcmp(way, "vfork_twice"))
		require(beside(exits_after_vfork, CLONE_VFORK));
	else if (!strcmp(way, "vfork_maps_memory"))
		return beside(exits_mapping_memory, CLONE_VFORK);
	else if (!strcmp(way, "vfork_maps_later"))
		return beside(exits_mapping_later, CLONE_VFORK);
	else if (!strcmp(way, "clone"))
		require(beside(nothing, 0));
	else if (!strcmp(way, "vfork_reads"))
		return beside(exits_reading, CLONE_VFORK);
	else if (!strcmp(way, "clone_reads"))
		return beside(exits_reading, 0);
	else if (!strcmp(way, "thread_fork") || !strcmp(way, "fork")) {
		if (*way == 't' && pthread_create(&thread, NULL, waits, NULL))
			errx(2, "pthread_create");
		if (!fork())
			_exit(reads(NULL));
		if (wait(&status) < 0 || !WIFEXITED(status))
			errx(2, "wait");
		return WEXITSTATUS(status);
	} else
		errx(2, "%s: no such way", way);
	return reads(NULL);
}
