// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `ifoff`: network interfaces that are silent, as FreeBSD's mac_ifoff(4) has it. No
 * packet leaves or enters by such an interface, whoever sends or gets it.
 *
 * It is asked in three places, each of which sees what the others do not: at the interface
 * (interface_receive, interface_send), by which all packets pass, but only where the framework has
 * attached its program; at sockets (socket_deliver, interface_transmit), in every network namespace
 * and from the first packet of a new interface on; and at the calls of packet sockets, which get
 * packets before the interface's program and can send past it.
 *
 * `lo` is one switch in every network namespace. Names are those of the host's interfaces: whoever
 * is root in another network namespace chooses the names there, and must not choose what is on.
 */
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "usher_numbers.h"

MAC_POLICY(ifoff);
MAC_SETTINGS(struct usher_mac_ifoff);

/* The switch of an interface. */
struct search {
	const struct usher_mac_ifoff *now;
	const struct usher_mac_device *interface;
	__u32 is_named;
	__u32 is_on;
};

static __always_inline int is_same_name(const char *one, const char *other)
{
	const __u64 *words = (const __u64 *)one, *others = (const __u64 *)other;

	return words[0] == others[0] && words[1] == others[1];
}

/* Looks at one switch. Returns 1 when it is the interface's. */
static long look_at_switch(__u32 index, struct search *search)
{
	const struct usher_mac_switch *one;

	if (index >= USHER_MAC_SWITCHES)
		return 1;
	one = &search->now->switches[index];
	if (!is_same_name(one->name, search->interface->name))
		return 0;
	search->is_named = 1;
	search->is_on = one->is_on;
	return 1;
}

/* Whether an interface is there, and not silent. */
static __always_inline int is_on(const struct usher_mac_ifoff *now,
				 const struct usher_mac_device *interface)
{
	struct search search = { .now = now, .interface = interface };

	if (!interface->number)
		return 0;
	if (interface->number == LOOPBACK_INTERFACE)
		return now->loopback;
	if (interface->network == now->network)
		MAC_LOOP(now->count, look_at_switch, &search);
	return search.is_named ? search.is_on : now->others;
}

static __always_inline int decide(const struct usher_mac_device *interface)
{
	const struct usher_mac_ifoff *now = mac_settings();

	return now && is_on(now, interface) ? 0 : -EPERM;
}

MAC_CHECK(interface_receive)
{
	return decide(&request->interface);
}

MAC_CHECK(interface_send)
{
	return decide(&request->interface);
}

MAC_CHECK(interface_transmit)
{
	return decide(&request->interface);
}

/* Datagrams of UNIX sockets and messages of netlink come by no interface. */
MAC_CHECK(socket_deliver)
{
	return request->interface.number ? decide(&request->interface) : 0;
}

/* Whether a packet socket that is bound to this interface may receive. */
static __always_inline int may_capture(const struct usher_mac_device *interface)
{
	const struct usher_mac_ifoff *now = mac_settings();

	return now && (now->captures || is_on(now, interface));
}

/* With a protocol, a packet socket receives by all interfaces at once. */
MAC_CHECK(socket_create)
{
	const struct usher_mac_ifoff *now = mac_settings();

	if (request->family != AF_PACKET || (!request->protocol && request->kind != SOCK_PACKET))
		return 0;
	return now && now->captures ? 0 : -EPERM;
}

/* A socket that receives by a silent interface is not bound to another one: it would keep what it
 * has received. */
MAC_CHECK(socket_bind)
{
	if (request->family == AF_XDP)
		return decide(&request->interface);
	if (request->family != AF_PACKET)
		return 0;
	if (request->receives && !may_capture(&request->bound))
		return -EPERM;
	return may_capture(&request->interface) ? 0 : -EPERM;
}

/* Covers packets that bypass the interface's program (PACKET_QDISC_BYPASS). About what SOCK_PACKET
 * sends, that program decides. */
MAC_CHECK(socket_sendmsg)
{
	if (request->family != AF_PACKET || request->kind == SOCK_PACKET)
		return 0;
	return decide(&request->interface);
}

MAC_CHECK(socket_recvmsg)
{
	if (request->family != AF_PACKET)
		return 0;
	return may_capture(&request->interface) ? 0 : -EPERM;
}

/* Decides here, because a ring receives without calls. */
MAC_CHECK(socket_setsockopt)
{
	if (request->family != AF_PACKET || request->level != SOL_PACKET ||
	    request->option != PACKET_RX_RING)
		return 0;
	return may_capture(&request->interface) ? 0 : -EPERM;
}
