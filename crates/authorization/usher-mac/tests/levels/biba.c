// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/biba.bpf.c"

#include "functions.h"

#define ANSWERS FIXED_LEVELS ASK(capable)

#include "asked.h"
