/* A set-user-ID program with a hole, as it could be left on any host: it runs what its caller says.
 */
#include <unistd.h>

int main(int count, char **words)
{
	if (count != 2 || setgid(0) != 0 || setuid(0) != 0) {
		return 1;
	}
	execl("/bin/sh", "sh", "-c", words[1], (char *)NULL);
	return 1;
}
