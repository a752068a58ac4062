/* A worker that greets its user by the principals of the certificate, and echoes. */
#include <stdio.h>
#include <usher.h>

int main(void)
{
	struct usher_connection info;
	char line[256];

	if (usher_connection_info(0, &info, sizeof(info)) != 0) {
		perror("usher_connection_info");
		return 1;
	}
	printf("* PREAUTH %s principals [%s]\r\n", info.user, info.principals);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		fputs("x OK\r\n", stdout);
		fflush(stdout);
	}
	return 0;
}
