/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of usher_mac.h on a tmpfs, as root and as a user without privilege. Prints each failed
 * expectation. Runs in a mount namespace of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <usher.h>
#include <usher_mac.h>

static int failures;

static void fails(const char *what, int result, int expected, const char *text)
{
	int error = errno;

	if (result == -1 && error == expected && strstr(usher_last_error(), text))
		return;
	printf("%s: result %d, errno %d instead of %d, \"%s\" instead of \"%s\"\n", what, result,
	       error, expected, usher_last_error(), text);
	failures++;
}

static void works(const char *what, int result, int expected)
{
	if (result == expected)
		return;
	printf("%s: result %d: %s\n", what, result, usher_last_error());
	failures++;
}

static mac_t label(const char *text)
{
	mac_t made;

	works(text, mac_from_text(&made, text), 0);
	return made;
}

static mac_t prepared(const char *elements)
{
	mac_t made;

	works(elements, mac_prepare(&made, elements), 0);
	return made;
}

static void reads(const char *what, mac_t got, const char *expected)
{
	char *text;

	works(what, mac_to_text(got, &text), 0);
	if (!text || strcmp(text, expected) != 0) {
		printf("%s: %s instead of %s\n", what, text ? text : "nothing", expected);
		failures++;
	}
	free(text);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
		perror(path);
		failures++;
	}
}

static void of_text(void)
{
	mac_t made, got = prepared("?biba");
	char *text;

	fails("no value", mac_from_text(&made, "biba"), EINVAL, "write it as `NAME/VALUE`");
	fails("null", mac_from_text(&made, NULL), EINVAL, "null pointer");
	fails("no place", mac_from_text(NULL, "biba/low"), EINVAL, "no place");
	if (made) {
		printf("a failed call left a label\n");
		failures++;
	}
	fails("values", mac_prepare(&made, "biba/low"), EINVAL, "with a value");
	fails("not got", mac_to_text(got, &text), EINVAL, "not got yet");
	fails("not got", mac_set_file("/run", got), EINVAL, "not got yet");
	made = label("mls/low,biba/high");
	reads("sorted", made, "biba/high,mls/low");
	fails("not prepared", mac_get_file("/run", made), EINVAL, "not prepared");
	works("free", mac_free(made), 0);
	works("free", mac_free(got), 0);
	works("free nothing", mac_free(NULL), 0);
}

static void of_files(void)
{
	mac_t low = label("biba/low"), high = label("biba/high,mls/high");
	mac_t any = prepared("?mls,?biba"), mls = prepared("mls");
	int file, pipes[2];

	write_file("/run/file", "");
	works("symlink", symlink("file", "/run/link"), 0);
	file = open("/run/file", O_RDONLY);
	works("any", mac_get_file("/run/file", any), 0);
	reads("unlabelled", any, "");
	fails("empty", mac_set_file("/run/file", any), EINVAL, "without an element");
	works("file", mac_set_file("/run/link", high), 0);
	works("link", mac_set_link("/run/link", low), 0);
	works("get file", mac_get_file("/run/link", any), 0);
	reads("file", any, "biba/high,mls/high");
	works("get link", mac_get_link("/run/link", any), 0);
	reads("link", any, "biba/low");
	fails("missing", mac_get_link("/run/link", mls), ENODATA, "no element `mls`");
	works("set fd", mac_set_fd(file, low), 0);
	works("get fd", mac_get_fd(file, any), 0);
	reads("merged", any, "biba/low,mls/high");
	works("copy", mac_set_link("/run/link", any), 0);
	works("get mls", mac_get_link("/run/link", mls), 0);
	reads("mls", mls, "mls/high");
	fails("no file", mac_get_file("/run/none", any), ENOENT, "No such file");
	fails("no descriptor", mac_get_fd(-1, any), EBADF, "descriptor");
	works("pipe", pipe(pipes), 0);
	fails("pipe", mac_set_fd(pipes[0], low), EOPNOTSUPP, "keeps no labels");
	fails("proc", mac_set_file("/proc/self/stat", low), EOPNOTSUPP, "keeps no labels");
	mac_free(low);
	mac_free(high);
	mac_free(any);
	mac_free(mls);
}

static void of_defaults(void)
{
	mac_t made;

	fails("no file", mac_prepare_file_label(&made), ENOENT, "/etc/usher/mac.conf");
	write_file("/etc/usher/mac.conf", "default_labels file ?mls\ndefault_labels ifnet biba\n");
	works("defaults", mac_prepare_file_label(&made), 0);
	works("get", mac_get_file("/run/file", made), 0);
	reads("by mac.conf", made, "mls/high");
	mac_free(made);
	works("class", mac_prepare_ifnet_label(&made), 0);
	mac_free(made);
	fails("no class", mac_prepare_process_label(&made), ENOENT, "object class `process`");
	fails("no class", mac_prepare_type(&made, "socket"), ENOENT, "object class `socket`");
	write_file("/etc/usher/mac.conf", "default_labels file ?mls\ndefault ifnet biba\n");
	fails("mistake", mac_prepare_file_label(&made), EINVAL, "mac.conf:2:1: there is no");
}

static void of_modules(void)
{
	works("nothing loaded", mac_is_present(NULL), 0);
	works("no module", mac_is_present("biba"), 0);
	mkdir("/run/usher", 0755);
	mkdir("/run/usher/labeller", 0755);
	write_file("/run/usher/labeller/modules", "biba\n");
	works("something loaded", mac_is_present(NULL), 1);
	works("module", mac_is_present("biba"), 1);
	works("another", mac_is_present("mls"), 0);
	fails("no name", mac_is_present("Biba"), EINVAL, "small letter");
}

/* The calls about processes where no module is loaded, as on the machine that runs this. */
static void of_processes(void)
{
	mac_t any = prepared("?biba"), biba = prepared("biba"), low = label("biba/low");
	char *const argv[] = { "true", NULL }, *const envp[] = { NULL };

	works("own", mac_get_proc(any), 0);
	reads("own", any, "");
	works("of init", mac_get_pid(1, any), 0);
	fails("own element", mac_get_proc(biba), ENODATA, "no element `biba`");
	fails("no process", mac_get_pid(0, any), ESRCH, "no process 0");
	fails("no process", mac_get_pid(-1, any), ESRCH, "no process -1");
	fails("not prepared", mac_get_proc(low), EINVAL, "not prepared");
	fails("nothing", mac_set_proc(any), EINVAL, "without an element");
	fails("no module", mac_set_proc(low), EOPNOTSUPP, "no module in force");
	fails("no module", mac_execve("/bin/true", argv, envp, low), EOPNOTSUPP, "no module");
	fails("no module", mac_syscall("biba", 1, NULL), ENOSYS, "biba is not in force");
	fails("no name", mac_syscall("Biba", 1, NULL), EINVAL, "small letter");
	fails("no call", mac_syscall("biba", -1, NULL), EINVAL, "negative");
	mac_free(any);
	mac_free(biba);
	mac_free(low);
}

/* As a user without privilege, who may read every label and set none. */
static int of_user(void)
{
	mac_t any = prepared("?mls,?biba"), low = label("mls/low");
	int file;

	chmod("/run", 0755);
	works("owner", chown("/run/file", 65534, 65534), 0);
	works("setuid", setgid(65534) || setuid(65534), 0);
	file = open("/run/file", O_RDWR);
	works("user reads", mac_get_file("/run/file", any), 0);
	reads("user reads", any, "biba/low,mls/high");
	fails("owner sets", mac_set_file("/run/file", low), EPERM, "CAP_SYS_ADMIN");
	fails("owner sets", mac_set_fd(file, low), EPERM, "CAP_SYS_ADMIN");
	works("user asks", mac_is_present("biba"), 1);
	return failures != 0;
}

int main(void)
{
	int status;
	pid_t child;

	if (mount("none", "/etc", "tmpfs", 0, NULL) < 0 || mkdir("/etc/usher", 0755) < 0) {
		perror("mount");
		return 1;
	}
	of_text();
	of_files();
	of_defaults();
	of_modules();
	of_processes();
	fflush(stdout);
	child = fork();
	if (child == 0)
		exit(of_user());
	if (waitpid(child, &status, 0) != child || status != 0)
		failures++;
	printf("%d failed expectations\n", failures);
	return failures != 0;
}
