// Connects to a service again and again until its standard input ends, and counts who it was taken
// for. The service greets a connection with its user's number in a line, and then echoes.
//
//     storm WAY ADDRESS PORT UID
//
// WAY: user (connect_by_user), plain, fleeting-user and fleeting-plain (gives up at a random
// moment), lasting-user and lasting-plain (one connection that is to stay). Prints how many
// connections were UID's, another user's, refused or not served in time, and how many that stood
// were lost. All but the lasting ways try at least once.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <usher.h>

enum outcome { RIGHT, WRONG, REFUSED, LOST, OUTCOMES };

static const char *names[OUTCOMES] = { "right", "wrong", "refused", "lost" };
static long counts[OUTCOMES];
static struct sockaddr_in server;
static int expected;

/* Frees the port at once: somebody else has it next. */
static void end(int connection)
{
	struct linger reset = { .l_onoff = 1 };

	setsockopt(connection, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(connection);
}

static void set_times(int connection)
{
	struct timeval time = { .tv_sec = 20 };

	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

static int connect_plain(int flags)
{
	int connection = socket(AF_INET, SOCK_STREAM | flags, 0);

	set_times(connection);
	if (connect(connection, (struct sockaddr *)&server, sizeof(server)) && !flags) {
		close(connection);
		return -1;
	}
	return connection;
}

static int connect_as(const char *way)
{
	int connection;

	if (!strstr(way, "user"))
		return connect_plain(0);
	connection = connect_by_user("mailhost", "storm");
	if (connection >= 0)
		set_times(connection);
	return connection;
}

static enum outcome read_greeting(int connection)
{
	struct sockaddr_storage own = { 0 };
	socklen_t length = sizeof(own);
	char greeting[16] = "";
	size_t size = 0;
	ssize_t more;

	while (size < sizeof(greeting) - 1 && !strchr(greeting, '\n')) {
		more = read(connection, greeting + size, sizeof(greeting) - 1 - size);
		if (more <= 0)
			return REFUSED;
		size += more;
	}
	if (atoi(greeting) == expected)
		return RIGHT;
	getsockname(connection, (struct sockaddr *)&own, &length);
	fprintf(stderr, "%ld: port %d of %d greeted as %s", (long)time(NULL),
		ntohs(((struct sockaddr_in *)&own)->sin_port), expected, greeting);
	return WRONG;
}

static enum outcome try(const char *way)
{
	int connection = connect_as(way);
	enum outcome outcome;

	if (connection < 0)
		return REFUSED;
	outcome = read_greeting(connection);
	end(connection);
	return outcome;
}

static enum outcome give_up(const char *way)
{
	int status, connection;
	pid_t child;

	if (strstr(way, "plain")) {
		connection = connect_plain(SOCK_NONBLOCK);
		usleep(rand() % 4000);
		end(connection);
		return REFUSED;
	}
	child = fork();
	if (!child)
		_exit(try(way));
	usleep(rand() % 4000);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : REFUSED;
}

static int ends(int milliseconds)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };

	return poll(&input, 1, milliseconds) > 0;
}

static void last(const char *way)
{
	char byte = 'x';

	while (!ends(0)) {
		int connection = connect_as(way);
		enum outcome outcome = connection < 0 ? REFUSED : read_greeting(connection);

		counts[outcome]++;
		while (outcome == RIGHT && !ends(50)) {
			if (write(connection, &byte, 1) != 1 || read(connection, &byte, 1) != 1) {
				counts[LOST]++;
				break;
			}
		}
		if (connection >= 0)
			end(connection);
	}
}

static void connect_repeatedly(const char *way)
{
	do {
		enum outcome outcome = strncmp(way, "fleeting", 8) ? try(way) : give_up(way);

		counts[outcome]++;
		/* Clients that give up leave the signer some of its places. */
		if (outcome == REFUSED)
			usleep(strstr(way, "fleeting") ? 50000 : 2000);
	} while (!ends(0));
}

int main(int arguments, char **argument)
{
	const char *way;

	if (arguments != 5)
		return 2;
	way = argument[1];
	server.sin_family = AF_INET;
	server.sin_port = htons(atoi(argument[3]));
	inet_pton(AF_INET, argument[2], &server.sin_addr);
	expected = atoi(argument[4]);
	srand(getpid());
	signal(SIGPIPE, SIG_IGN);
	if (!strncmp(way, "lasting", 7))
		last(way);
	else
		connect_repeatedly(way);
	for (int i = 0; i < OUTCOMES; i++)
		printf("%s=%ld ", names[i], counts[i]);
	puts("");
	return 0;
}
