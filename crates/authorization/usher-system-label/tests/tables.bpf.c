// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The iterators, and the table of files beside theirs. */
#include "../../../../bpf/mac/shown.bpf.c"

USHER_MAP(files, INODE_STORAGE, BPF_F_NO_PREALLOC, 0, int, struct usher_mac_file_label);
