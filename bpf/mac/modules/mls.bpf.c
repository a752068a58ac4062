// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `mls`: confidentiality. A process does not read what is more secret than itself, and
 * does not write what is less so, as in the model of D. E. Bell and L. J. LaPadula and FreeBSD's
 * mac_mls(4).
 */
#include "usher_mac_levels.h"
#include "usher_mac_policy.h"

MAC_POLICY(mls, .label = USHER_MAC_LEVELS, .exempts_without_element = 1, .decides_by_labels = 1);

#define MAY_FLOW(from, to) usher_mac_dominates(to, from)
#define USUAL USHER_MAC_LEVEL_LOW

#include "fixed_levels.h"
