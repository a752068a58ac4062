// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/portacl.bpf.c"

#define SETTINGS struct usher_mac_portacl
#define ANSWERS ASK(socket_bind) ASK(socket_setsockopt)

#include "asked.h"
