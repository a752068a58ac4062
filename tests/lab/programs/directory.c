/*
 * A source of the name service (nsswitch.conf(5)) in place of a directory server. It takes the
 * place of libnss_hesiod.so.2, which the C library brings along and no one uses.
 *
 * The accounts are those of /etc/directory, in the form of passwd(5). Each question about a name is
 * noted in /var/lib/asked. While /etc/directory.fails exists the directory is away; while
 * /etc/directory.hangs/NAME exists, questions about NAME wait.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <nss.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum nss_status find(const char *name, uid_t uid, struct passwd *found, char *buffer,
			    size_t size, int *error)
{
	if (access("/etc/directory.fails", F_OK) == 0) {
		/* As nslcd's module says where nslcd does not run. */
		*error = ENOENT;
		return NSS_STATUS_UNAVAIL;
	}
	FILE *file = fopen("/etc/directory", "re");
	if (!file) {
		*error = ENOENT;
		return NSS_STATUS_UNAVAIL;
	}
	struct passwd *entry;
	enum nss_status status = NSS_STATUS_NOTFOUND;
	while (fgetpwent_r(file, found, buffer, size, &entry) == 0) {
		bool is_it = name ? strcmp(entry->pw_name, name) == 0 : entry->pw_uid == uid;
		if (is_it) {
			status = NSS_STATUS_SUCCESS;
			break;
		}
	}
	fclose(file);
	return status;
}

enum nss_status _nss_hesiod_getpwnam_r(const char *name, struct passwd *found, char *buffer,
				       size_t size, int *error);
enum nss_status _nss_hesiod_getpwnam_r(const char *name, struct passwd *found, char *buffer,
				       size_t size, int *error)
{
	char path[256];
	FILE *asked = fopen("/var/lib/asked", "ae");
	if (asked) {
		fprintf(asked, "%s\n", name);
		fclose(asked);
	}
	snprintf(path, sizeof path, "/etc/directory.hangs/%s", name);
	while (access(path, F_OK) == 0)
		usleep(20000);
	return find(name, 0, found, buffer, size, error);
}

enum nss_status _nss_hesiod_getpwuid_r(uid_t uid, struct passwd *found, char *buffer, size_t size,
				       int *error);
enum nss_status _nss_hesiod_getpwuid_r(uid_t uid, struct passwd *found, char *buffer, size_t size,
				       int *error)
{
	return find(NULL, uid, found, buffer, size, error);
}
