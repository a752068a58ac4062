// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/mls.bpf.c"

#include "functions.h"

#define ANSWERS FIXED_LEVELS

#include "asked.h"
