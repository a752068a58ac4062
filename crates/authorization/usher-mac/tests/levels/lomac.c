// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/lomac.bpf.c"

#include "functions.h"

#define ANSWERS LEVELS ASK(new_program) ASK(capable)

#include "asked.h"
