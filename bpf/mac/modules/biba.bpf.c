// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `biba`: integrity. A process does not read what is less trustworthy than itself, and
 * does not change what is more so, as in K. J. Biba's model and FreeBSD's mac_biba(4). Processes
 * below `high` use no privilege by which the system as a whole is changed.
 */
#include "usher_mac_levels.h"
#include "usher_mac_policy.h"

MAC_POLICY(biba, .label = USHER_MAC_LEVELS, .exempts_without_element = 1, .decides_by_labels = 1);

#define MAY_FLOW(from, to) usher_mac_dominates(from, to)
#define USUAL USHER_MAC_LEVEL_HIGH

#include "fixed_levels.h"

#include "privileges.h"
