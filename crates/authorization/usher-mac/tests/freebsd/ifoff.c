// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "modules/ifoff.bpf.c"

#define SETTINGS struct usher_mac_ifoff
#define ANSWERS                                                                                    \
	ASK(interface_receive)                                                                     \
	ASK(interface_send)                                                                        \
	ASK(interface_transmit)                                                                    \
	ASK(socket_deliver)                                                                        \
	ASK(socket_create)                                                                         \
	ASK(socket_bind) ASK(socket_sendmsg) ASK(socket_recvmsg) ASK(socket_setsockopt)

#include "asked.h"
