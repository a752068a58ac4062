// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `portacl`: which users and groups bind which ports, as FreeBSD's mac_portacl(4) has
 * it.
 *
 * It decides about the ports up to `port_high`. A rule permits one port of TCP or UDP to the
 * processes whose effective user is its user, or that are in its group. All others are refused with
 * EPERM. With `suser_exempt` root, by its effective uid, binds every port; with `autoport_exempt`
 * everybody asks the kernel for a port by binding port 0.
 *
 * A rule permits a user or a group, never a capability, and replaces no check of the kernel: below
 * net.ipv4.ip_unprivileged_port_start the process needs CAP_NET_BIND_SERVICE as well.
 *
 * Rules are about TCP, with MPTCP and the sockets of AF_SMC, and about UDP, with UDP-Lite. Ports of
 * SCTP and DCCP, which no rule permits, and addresses that a request does not have (AF_RXRPC,
 * sctp_bindx(3)) are root's alone.
 */
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"
#include "usher_numbers.h"

MAC_POLICY(portacl);
MAC_SETTINGS(struct usher_mac_portacl);

/* Ports that no rule is about. */
#define OTHERS (-1)

/* A port that a process wants. */
struct search {
	const struct usher_mac_portacl *now;
	const struct usher_mac_subject *subject;
	__u32 protocol; /* enum usher_mac_port_protocol */
	__u32 port;
	__u32 is_permitted;
};

/* The protocol whose ports a socket takes: enum usher_mac_port_protocol, OTHERS, or 0 for none. */
static __always_inline int protocol_of(const struct usher_mac_socket_address *request)
{
	if (request->family == AF_SMC)
		return USHER_MAC_PORT_TCP;
	if (request->family == AF_RXRPC)
		return OTHERS;
	if (request->family != AF_INET && request->family != AF_INET6)
		return 0;
	if (request->kind == SOCK_RAW)
		return 0;
	switch (request->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_MPTCP:
	case IPPROTO_SMC:
		return USHER_MAC_PORT_TCP;
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
		return USHER_MAC_PORT_UDP;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 0;
	}
	/* SCTP, DCCP, and what is not known. */
	return OTHERS;
}

static __always_inline int is_exempt(const struct usher_mac_portacl *now,
				     const struct usher_mac_subject *subject)
{
	return now->suser_exempt && !subject->euid;
}

static __always_inline int is_holder(const struct usher_mac_port_rule *rule,
				     const struct usher_mac_subject *subject)
{
	if (!rule->is_group)
		return rule->id == subject->euid;
	return rule->id == subject->egid || mac_is_in_groups(rule->id, rule->id);
}

/* Asks one rule. Returns 1 when it permits. */
static long ask_rule(__u32 index, struct search *search)
{
	const struct usher_mac_port_rule *rule;

	if (index >= USHER_MAC_PORT_RULES)
		return 1;
	rule = &search->now->rules[index];
	if (rule->protocol != search->protocol || rule->port != search->port ||
	    !is_holder(rule, search->subject))
		return 0;
	search->is_permitted = 1;
	return 1;
}

MAC_CHECK(socket_bind)
{
	int protocol = protocol_of(request);
	struct search search = {
		.now = mac_settings(),
		.subject = subject,
		.protocol = protocol,
		.port = request->port,
	};

	if (!search.now)
		return -EPERM;
	if (!protocol || is_exempt(search.now, subject))
		return 0;
	if (request->family == AF_RXRPC)
		return -EPERM;
	if (search.port > search.now->port_high || (!search.port && search.now->autoport_exempt))
		return 0;
	MAC_LOOP(search.now->count, ask_rule, &search);
	return search.is_permitted ? 0 : -EPERM;
}

/* sctp_bindx(3) is an option of the socket. */
MAC_CHECK(socket_setsockopt)
{
	const struct usher_mac_portacl *now = mac_settings();

	if (request->level != SOL_SCTP || request->option != SCTP_SOCKOPT_BINDX_ADD ||
	    request->protocol != IPPROTO_SCTP)
		return 0;
	return now && is_exempt(now, subject) ? 0 : -EPERM;
}
