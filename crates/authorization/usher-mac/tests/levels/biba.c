// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/biba.bpf.c"

#define HAS_CAPABLE
#include "levels.h"
