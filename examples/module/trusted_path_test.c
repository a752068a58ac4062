#include <assert.h>

#include "trusted_path.bpf.c"

static int executes(__u32 euid, __u32 owner, __u32 mode)
{
	struct usher_mac_subject subject = { .euid = euid };
	struct usher_mac_execution request = { .file = { .uid = owner, .mode = mode } };

	return MAC_ANSWER(bprm_check_security, &subject, &request);
}

int main(void)
{
	assert(executes(1000, 0, 0100755) == 0);
	assert(executes(1000, 1000, 0100755) == -EACCES);
	assert(executes(1000, 0, 0100775) == -EACCES);
	assert(executes(0, 1000, 0100775) == 0);
	return 0;
}
