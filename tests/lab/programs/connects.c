// Connects COUNT times by each of THREADS threads, one after the other, reads a greeting each time
// and says how many connections there were. Does so once more for each line that it reads.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <usher.h>

static const char *host, *service;
static atomic_int done;
static int count;

static void *connect_all(void *unused)
{
	char greeting[64];

	for (int i = 0; i < count; i++) {
		int connection = connect_by_user(host, service);

		if (connection < 0) {
			printf("errno %d: %s\n", errno, usher_last_error());
			return unused;
		}
		if (read(connection, greeting, sizeof(greeting)) > 0)
			done++;
		close(connection);
	}
	return unused;
}

int main(int arguments, char **argument)
{
	pthread_t threads[256];
	char line[16];
	int thread_count;

	if (arguments != 5)
		return 2;
	host = argument[1];
	service = argument[2];
	thread_count = atoi(argument[3]);
	count = atoi(argument[4]);
	do {
		done = 0;
		for (int i = 0; i < thread_count; i++)
			if (pthread_create(&threads[i], NULL, connect_all, NULL) != 0)
				return 1;
		for (int i = 0; i < thread_count; i++)
			pthread_join(threads[i], NULL);
		printf("%d connections\n", done);
		fflush(stdout);
	} while (fgets(line, sizeof(line), stdin));
	return 0;
}
