// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/seeotheruids.bpf.c"

#define SETTINGS struct usher_mac_seeotheruids
#define ANSWERS                                                                                    \
	ASK(ptrace_access_check)                                                                   \
	ASK(ptrace_traceme)                                                                        \
	ASK(task_setscheduler) ASK(task_setnice) ASK(task_prlimit) ASK(task_kill)

#include "asked.h"
