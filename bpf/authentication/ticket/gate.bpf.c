// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Gates bind an announced connection to one socket.
 *
 * The server admits an announced connection by its two endpoints. A gate stands for these
 * endpoints from before the announcement until the server has withdrawn the announcement, or no
 * longer admits by it. While it stands, only the SYN of the announced socket leaves this host with
 * these endpoints. So another socket that gets the port meanwhile does not get the connection.
 *
 * The signer enters and removes gates. When the signer dies, the kernel closes its duplicates of
 * sockets and frees their ports, while the announcements stand. So this program and its tables are
 * pinned, and each gate expires by the clock. The signer's other program for SYNs (hold_syn,
 * holding.h) ends with the signer: it is in `holding`, an array that the kernel empties when the
 * last process that has it open is gone.
 *
 * Kernel 6.1 or later (tail calls 4.2, boot time 5.8).
 */
#include "gates.h"
#include "usher_layout.h"

/* The program for SYNs that no gate decides about: hold_syn. Key: 0. Not pinned. */
USHER_MAP(holding, PROG_ARRAY, 0, 1, __u32, __u32);

/* The number of dropped SYNs, one copy per CPU. Key: 0. */
CPU_TABLE(kept_back, 1, __u64);

/* Whether the gate was entered for this connection. */
static __always_inline int is_for(const struct usher_gate *gate, struct bpf_sock *socket,
				  __u64 cookie)
{
	struct usher_hold *hold;

	if (gate->attempt.cookie != cookie)
		return 0;
	if (!gate->attempt.begun_ns)
		return 1;
	hold = bpf_sk_storage_get(&holds, socket, 0, 0);
	return hold && hold->begun_ns == gate->attempt.begun_ns;
}

/*
 * Hook: egress of the cgroup, because it is the only place before the wire that knows the socket of
 * a packet and may drop it, without a firewall rule. tcp_connect() takes the drop for a lost packet
 * and sends the SYN again. Packets other than SYNs cost a look at their socket's type and state.
 *
 * The program ignores the network namespace: in another one, a SYN with exactly the endpoints of a
 * gated connection is dropped too. Kernel 4.10.
 */
SEC("cgroup_skb/egress")
int gate_syn(struct __sk_buff *packet)
{
	struct usher_connection connection __aligned = {};
	struct bpf_sock *socket = packet->sk;
	struct usher_gate *gate;

	if (!socket)
		return 1;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return 1;
	/* Raw sockets go on to `holding` in any state, because connect() changes it. */
	if (socket->type != SOCK_RAW) {
		if (!is_connecting(socket))
			return 1;
		ends_of(socket, &connection);
		gate = gate_of(&connection);
		if (gate) {
			if (!is_for(gate, socket, bpf_get_socket_cookie(packet))) {
				count_up(first_of(&kept_back));
				return 0;
			}
			if (gate->released)
				return 1;
		}
	}
	bpf_tail_call(packet, &holding, 0);
	/* Without a signer nothing is held: the server refuses unannounced connections. */
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
