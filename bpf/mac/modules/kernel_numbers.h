/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Numbers of the kernel's calls, by which modules decide, and the parts of composed numbers. */
#ifndef USHER_MAC_MODULE_KERNEL_NUMBERS_H
#define USHER_MAC_MODULE_KERNEL_NUMBERS_H

#include "usher_numbers.h"

/* Types of files, in the four bits of the mode. */
#define TYPE(mode) ((mode) >> 12 & 15)
#define PIPE 1
#define CHARACTER 2
#define DIRECTORY 4
#define BLOCK 6
#define REGULAR 8
#define LINK 10
#define SOCKET 12

#define DEVICE(major, minor) ((major) << 20 | (minor))

#endif
