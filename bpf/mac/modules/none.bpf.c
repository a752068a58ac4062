// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `none` declares every entry point and refuses nothing. It shows what the framework
 * itself costs.
 */
#include "usher_mac_policy.h"

MAC_POLICY(none);

#define PERMIT(name, form, ...)                                                                    \
	MAC_##form(name)                                                                           \
	{                                                                                          \
		return 0;                                                                          \
	}

USHER_MAC_ENTRY_POINTS(PERMIT)
