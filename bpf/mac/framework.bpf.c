// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The framework of mandatory access control: one program for each hook, the dispatcher. It asks the
 * policy modules in its slots (slots.h), each of which may refuse. User space attaches a dispatcher
 * only while a loaded module declares its entry point, or has labels that the dispatcher keeps.
 *
 * A dispatcher reads the calling process and the objects of the hook into plain numbers before it
 * asks. If a process has CAP_SYS_ADMIN, only modules that exempt processes without an element are
 * asked about its use of BPF file systems: their only files are pins, and a module in force must
 * not keep its own daemon from them.
 *
 * Structures of the kernel are read through bpf_core_cast. Through it a pointer that is NULL (of a
 * name or a mapping without a file) reads as 0, and can be compared with NULL: some kernels take
 * the hook's own arguments to be never NULL, and remove the comparison. Each time that the verifier
 * follows a pointer without the cast, it searches all types of the kernel. Storage of labels and
 * functions of the kernel need the hook's own pointers: they are followed once, at the beginning.
 * Numbers are read by the hook's own pointer where that never is NULL: this takes one instruction
 * instead of eight.
 *
 * The verifier goes through a global function once, and through any other one on every path. So
 * what has many paths, or many results, is in global functions, whose names begin with mac_.
 *
 * The dispatchers of each class of objects are in a file of their own, and all in one object: they
 * share the tables of slots.h.
 *
 * Each hook's first kernel is in usher_mac_policy.h. Slots in LSM programs: tried on 6.18.
 */
#include "attributes.h"
#include "demotions.h"
#include "executions.h"
#include "files.h"
#include "ipc.h"
#include "mounts.h"
#include "names.h"
#include "object_labels.h"
#include "open_files.h"
#include "packets.h"
#include "process_labels.h"
#include "processes.h"
#include "socket_calls.h"
#include "sockets.h"
#include "system.h"
#include "tasks.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
