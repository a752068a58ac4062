/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Holding: a plain connection without a token begins when user space has announced it.
 *
 * connect() marks the socket. Its SYNs are dropped at egress and reported, one by one, until their
 * gate is released. The kernel sends them again by itself, which makes up for a lost report. A
 * gate (gate.bpf.c) stands for a connection's endpoints from before the announcement until its
 * withdrawal.
 */
#ifndef USHER_TICKET_HOLDING_H
#define USHER_TICKET_HOLDING_H

#include <linux/tcp.h>

#include "maps.h"
#include "program.h"
#include "usher_skb.h"

/* Headers of IPv4 and TCP without options. */
#define LEAST_SYN_SIZE 40

static __always_inline struct usher_report *report_of(const struct usher_connection *connection,
						      const struct usher_hold *hold, __u64 cookie,
						      __u16 event)
{
	struct usher_report *report = bpf_ringbuf_reserve(&reports, sizeof(*report), 0);

	if (!report)
		return COUNTED(unreported, NULL);
	report->attempt.cookie = cookie;
	report->attempt.begun_ns = hold->begun_ns;
	report->program = hold->program;
	report->connection = *connection;
	report->uid = hold->uid;
	report->ticket = hold->ticket;
	report->pid = hold->pid;
	__builtin_memcpy(report->command, hold->command, sizeof(report->command));
	report->mark = 0;
	report->event = event;
	report->size = 0;
	return report;
}

/* Marks the socket to be held. Replaces the mark of an earlier connect(). */
static __always_inline void mark(struct bpf_sock *socket, __u32 uid, __u64 program)
{
	struct usher_hold fresh = {
		.begun_ns = bpf_ktime_get_boot_ns(),
		.program = program,
		.uid = uid,
	};
	struct usher_hold *hold;

	note_process(&fresh);
	hold = bpf_sk_storage_get(&holds, socket, &fresh, BPF_SK_STORAGE_GET_F_CREATE);

	if (!hold) {
		COUNT(unheld);
		return;
	}
	*hold = fresh;
}

/* Whether the kernel ends the connection because a RST came. */
static __always_inline int is_refused(struct bpf_sock *socket)
{
	struct sock *kernels = (struct sock *)bpf_skc_to_tcp_sock(socket);

	return kernels && kernels->sk_err == ECONNREFUSED;
}

/* Whether TCP follows the packet's IP header, so that the packet is not encrypted. */
static __always_inline int is_tcp(const __u8 packet[LEAST_SYN_SIZE])
{
	__u8 next = packet[0] >> 4 == 4 ? packet[9] : packet[6];

	return next == IPPROTO_TCP;
}

/* Copies a plain SYN into its report; the kernel itself sends any other SYN. */
static __always_inline void copy(struct __sk_buff *packet, struct usher_report *report)
{
	__u32 size = packet->len;

	if (size > USHER_SYN_SIZE)
		return;
	/* Keeps both comparisons apart: the verifier could not follow one that merges them. */
	barrier_var(size);
	if (size < LEAST_SYN_SIZE)
		return;
	if (bpf_skb_load_bytes(packet, 0, report->syn, size) == 0 && is_tcp(report->syn))
		report->size = size;
}

/* Reports a held SYN to user space. */
static __always_inline void tell_held(struct __sk_buff *packet,
				      const struct usher_connection *connection,
				      struct usher_hold *hold, __u64 cookie, __u32 mark)
{
	struct usher_report *report = report_of(connection, hold, cookie, USHER_EVENT_HELD);

	if (!report)
		return;
	copy(packet, report);
	report->mark = mark;
	if (report->size)
		bpf_map_update_elem(&told, connection, &mark, BPF_ANY);
	bpf_ringbuf_submit(report, 0);
	hold->told = 1;
}

/* Whether a SYN of the socket may leave. */
static __always_inline int may_leave(struct __sk_buff *packet, struct bpf_sock *socket)
{
	struct usher_connection connection __aligned = {};
	struct usher_hold *hold = bpf_sk_storage_get(&holds, socket, 0, 0);
	__u64 cookie = bpf_get_socket_cookie(packet);
	struct drawn *token;

	ends_of(socket, &connection);
	/* This gate is the socket's own, not yet released. gate_syn handles all others. */
	if (gate_of(&connection))
		return 0;
	if (!hold || hold->exempt)
		return 1;
	token = bpf_sk_storage_get(&drawn, socket, 0, 0);
	if (token && token->written)
		return 1;
	COUNT(held);
	tell_held(packet, &connection, hold, cookie, socket->mark);
	return 0;
}

/* Whether a packet is a SYN without data, of a connection whose SYN was reported with this mark of
 * its socket. The SPD then treats the packet like the reported SYN. */
static __always_inline int is_copy(struct __sk_buff *packet, __u32 mark)
{
	struct usher_connection connection __aligned = {};
	struct packet_walk walk;
	const struct tcphdr *tcp;
	struct tcphdr room_of_tcp;
	struct ip_header ip;
	union ip_room room;
	__u32 *of;

	ip = read_packet(packet, 0, 0, &room, &walk);
	if (walk.state || walk.protocol != IPPROTO_TCP)
		return 0;
	if (ip.v4) {
		set_mapped(connection.client_address, ip.v4->saddr);
		set_mapped(connection.server_address, ip.v4->daddr);
	} else if (ip.v6) {
		/* No SYN behind extension headers has been reported with its copy. */
		if (walk.offset != sizeof(*ip.v6))
			return 0;
		set_words(connection.client_address, ip.v6->saddr.in6_u.u6_addr32);
		set_words(connection.server_address, ip.v6->daddr.in6_u.u6_addr32);
	}
	tcp = look(packet, walk.offset, &room_of_tcp, sizeof(room_of_tcp));
	if (!tcp || !tcp->syn || tcp->ack || tcp->rst || packet->len != walk.offset + tcp->doff * 4)
		return 0;
	connection.client_port = tcp->source;
	connection.server_port = tcp->dest;
	of = bpf_map_lookup_elem(&told, &connection);
	return of && *of == mark;
}

/* Whether a packet of a raw socket may leave: any packet, unless the socket is for SYNs. */
static __always_inline int may_be_sent(struct __sk_buff *packet, struct bpf_sock *socket)
{
	if (!bpf_sk_storage_get(&senders, socket, 0, 0) || is_copy(packet, socket->mark))
		return 1;
	return COUNTED(unsent, 0);
}

#endif
