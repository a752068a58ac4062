// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tickets are a user's right to tokens in the SYNs of connections to one server (docs/PROTOCOL.md,
 * "Token in the SYN").
 *
 * User space puts a ticket for (user, server) and fills blocks of elements of its chain. Then
 *
 *     draw           a process requests authentication of its next connection by our own socket
 *                    option: the next element goes into the socket's storage;
 *     connect_plain  does the same at connect() to destinations in `plain`, and marks the socket;
 *     write_token    writes the option into the SYN and all copies of it, masked for this
 *                    connection, and forgets it when the handshake is over;
 *     write_token    also notes whose a connection to the client proxy is (owners.h);
 *     hold_syn       holds back a marked socket's SYN that carries no token (holding.h);
 *     identify       returns the number that identifies an open file as a program
 *                    (usher_executable.h).
 *
 * If user space lists programs (`listed`), draw and connect_plain draw for those only.
 *
 * An element is drawn once. Any later failure loses it: the connection goes without, and the
 * server's window tolerates the gap.
 *
 * The uid is that of bpf_get_current_uid_gid: the real one, in the initial user namespace, in every
 * namespace of the process. It grants a process no new right, because each may take its real uid
 * for its effective one.
 *
 * Kernel 6.1 or later (header options 5.10, atomic fetch-and-add 5.12, bpf_set_retval 5.18).
 */
#include "drawing.h"
#include "holding.h"

#define SYN_FLAG 0x02
#define ACK_FLAG 0x10

/* The number of SYNs with a token before it is given up, because the path may drop them. */
#define TOKEN_TRIES 2

/* The callbacks that a connection with a token needs. */
#define CALLBACKS (BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

/* The network namespace whose sockets may draw: that of the holder of the tickets, set before
 * loading. A container with its own network is another host. */
const volatile __u64 own_network = 0;

#include "owners.h"

static __always_inline int draw_as_asked(struct bpf_sockopt *context)
{
	struct usher_destination *server = context->optval;
	struct bpf_sock *socket = context->sk;
	struct usher_ticket_key key __aligned = {};
	__u32 list;

	if (context->optname != USHER_OPTION_DRAW)
		return -ENOPROTOOPT;
	if (context->optlen != sizeof(*server) || (void *)(server + 1) > context->optval_end ||
	    server->reserved)
		return -EINVAL;
	if ((socket->family != AF_INET && socket->family != AF_INET6) ||
	    socket->type != SOCK_STREAM || socket->protocol != IPPROTO_TCP)
		return COUNTED(unsuitable, -EOPNOTSUPP);
	if (socket->state != BPF_TCP_CLOSE)
		return COUNTED(unsuitable, -EISCONN);
	if (bpf_get_netns_cookie(context) != own_network)
		return COUNTED(without_ticket, -ENOENT);
	key.uid = (__u32)bpf_get_current_uid_gid();
	key.server = *server;
	list = found_list(bpf_map_lookup_elem(&plain, &key.server));
	if (list && !is_listed(list, own_program()))
		return COUNTED(unlisted, -EACCES);
	return draw_for(socket, &key);
}

static __always_inline int say_program(struct bpf_sockopt *context)
{
	__u32 *nothing = context->optval;
	struct bpf_sock *socket = context->sk;

	if (context->optlen != sizeof(*nothing) || (void *)(nothing + 1) > context->optval_end ||
	    *nothing)
		return -EINVAL;
	if (bpf_get_netns_cookie(context) != own_network)
		return -ENOENT;
	return note_asker(socket);
}

/*
 * Hook: setsockopt of the cgroup, because there a process can make a request about a socket without
 * another descriptor or a privilege, and the caller is known. Options of other levels do not
 * change; values longer than a page, of which the program sees only the first page, are left to the
 * kernel. A 32-bit program on a 64-bit kernel does not reach this hook: it gets ENOPROTOOPT, and
 * its connection is announced. Kernel 5.3.
 */
SEC("cgroup/setsockopt")
int draw(struct bpf_sockopt *context)
{
	int failed;

	if (context->level != USHER_OPTION_LEVEL) {
		if (context->optlen > SMALLEST_PAGE)
			context->optlen = 0;
		return 1;
	}
	if (context->optname == USHER_OPTION_PROGRAM)
		failed = say_program(context);
	else
		failed = draw_as_asked(context);
	if (failed) {
		bpf_set_retval(failed);
		return 0;
	}
	/* Skips the kernel's own setsockopt. */
	context->optlen = -1;
	return 1;
}

static __always_inline void connect_plain(struct bpf_sock_addr *context,
					  const struct usher_ticket_key *key)
{
	struct bpf_sock *socket = context->sk;
	struct usher_hold *hold;
	struct drawn *before;
	__u64 program = 0;
	__u32 *found, list;

	if (context->type != SOCK_STREAM || context->protocol != IPPROTO_TCP || !socket ||
	    bpf_get_netns_cookie(context) != own_network)
		return;
	hold = bpf_sk_storage_get(&holds, socket, 0, 0);
	if (hold && hold->exempt)
		return;
	found = bpf_map_lookup_elem(&plain, &key->server);
	if (!found) {
		if (hold)
			bpf_sk_storage_delete(&holds, socket);
		return;
	}
	list = found_list(found);
	if (list)
		program = own_program();
	mark(socket, key->uid, program);
	if (list && !is_listed(list, program)) {
		/* User space checks whether the program has been listed since. */
		COUNT(unlisted);
		bpf_sk_storage_delete(&drawn, socket);
		return;
	}
	if (!bpf_map_lookup_elem(&tickets, key))
		return;
	before = bpf_sk_storage_get(&drawn, socket, 0, 0);
	if (before && !before->begun && before->server.port == key->server.port &&
	    equal_words(before->server.address, key->server.address))
		return;
	draw_for(socket, key);
}

/*
 * Hook: connect of the cgroup, because every connect() passes it, including io_uring, non-blocking
 * ones and sendto(), and the caller is known. Refuses and changes nothing. Kernel 4.17.
 */
SEC("cgroup/connect4")
int connect_plain4(struct bpf_sock_addr *context)
{
	struct usher_ticket_key key __aligned = {};

	key.uid = (__u32)bpf_get_current_uid_gid();
	set_mapped(key.server.address, context->user_ip4);
	key.server.port = context->user_port;
	connect_plain(context, &key);
	return 1;
}

/* Like connect_plain4, for IPv6 sockets, including mapped addresses. Kernel 4.17. */
SEC("cgroup/connect6")
int connect_plain6(struct bpf_sock_addr *context)
{
	struct usher_ticket_key key __aligned = {};

	key.uid = (__u32)bpf_get_current_uid_gid();
	set_words(key.server.address, context->user_ip6);
	key.server.port = context->user_port;
	connect_plain(context, &key);
	return 1;
}

/* The endpoints as the connecting side sees them. The local port comes in host, the remote one in
 * network byte order. */
static __always_inline int connecting(struct bpf_sock_ops *context,
				      struct usher_connection *connection)
{
	if (!SET_ADDRESSES(connection, context, local, remote))
		return 0;
	connection->client_port = bpf_htons(context->local_port);
	connection->server_port = bpf_htons(bpf_ntohl(context->remote_port));
	return 1;
}

/* The endpoints as the connecting side sees them, read at the accepting side. */
static __always_inline int accepting(struct bpf_sock_ops *context,
				     struct usher_connection *connection)
{
	if (!SET_ADDRESSES(connection, context, remote, local))
		return 0;
	connection->client_port = bpf_htons(bpf_ntohl(context->remote_port));
	connection->server_port = bpf_htons(context->local_port);
	return 1;
}

/*
 * Resets the callbacks, and wipes and forgets the token. A connection has one set of callbacks for
 * all sockops programs: if another program requests one of ours at TCP_CONNECT, after `begin`, it
 * loses that callback here.
 */
static __always_inline void finish(struct bpf_sock_ops *context, struct bpf_sock *socket,
				   struct drawn *token)
{
	if (token->asked)
		bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags & ~token->asked);
	__builtin_memset(token, 0, sizeof(*token));
	bpf_sk_storage_delete(&drawn, socket);
}

static __always_inline void begin(struct bpf_sock_ops *context, struct bpf_sock *socket,
				  struct drawn *token)
{
	struct usher_connection connection __aligned = {};

	/* A token in use is still here only if another program reset our callbacks. */
	if (!connecting(context, &connection) || token->begun ||
	    token->server.port != connection.server_port ||
	    !equal_words(token->server.address, connection.server_address)) {
		COUNT(other_destination);
		finish(context, socket, token);
		return;
	}
	token->begun = 1;
	token->asked = CALLBACKS & ~context->bpf_sock_ops_cb_flags;
	bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags | CALLBACKS);
}

static __always_inline int is_syn(struct bpf_sock_ops *context)
{
	return (context->skb_tcp_flags & (SYN_FLAG | ACK_FLAG)) == SYN_FLAG;
}

static __always_inline void reserve(struct bpf_sock_ops *context, struct bpf_sock *socket,
				    struct drawn *token, struct usher_hold *hold)
{
	if (!is_syn(context))
		return;
	if (hold && token->written >= TOKEN_TRIES) {
		/* From now on the SYN has no token, so it is held. */
		hold->ticket = token->ticket;
		COUNT(unanswered);
		finish(context, socket, token);
		return;
	}
	if (bpf_reserve_hdr_opt(context, USHER_TOKEN_OPTION_SIZE, 0)) {
		COUNT(no_room);
		finish(context, socket, token);
	}
}

/* Masks the token again in each copy of the SYN: the same bytes for the same endpoints. */
static __always_inline void write(struct bpf_sock_ops *context, struct bpf_sock *socket,
				  struct drawn *token)
{
	struct usher_token_message message __aligned = {};
	struct usher_token_option option = {
		.kind = USHER_TOKEN_KIND,
		.size = USHER_TOKEN_OPTION_SIZE,
		.experiment = bpf_htons(USHER_TOKEN_EXPERIMENT),
	};
	__u64 mask[2];

	if (!is_syn(context) || !connecting(context, &message.connection))
		return;
	for (int byte = 0; byte < 3; byte++)
		message.slot[byte] = option.slot[byte] = token->slot[byte];
	message.position = option.position = token->position;
	usher_token_mask(token->key, (const __u64 *)&message, mask);
	for (int byte = 0; byte < USHER_TOKEN_ELEMENT_SIZE + 1; byte++)
		option.masked[byte] = token->element[byte] ^ ((const __u8 *)mask)[byte];
	if (bpf_store_hdr_opt(context, &option, sizeof(option), 0)) {
		COUNT(no_room);
		finish(context, socket, token);
		return;
	}
	if (token->written < 255)
		token->written++;
	COUNT(written);
}

/* Reports the result of a plain connection. */
static __always_inline void tell_end(struct bpf_sock_ops *context, const struct usher_hold *hold,
				     __u16 event)
{
	struct usher_connection connection __aligned = {};
	struct usher_report *report;

	if (!connecting(context, &connection))
		return;
	report = report_of(&connection, hold, bpf_get_socket_cookie(context), event);
	if (report)
		bpf_ringbuf_submit(report, 0);
}

/* Requests the callback at the end of a marked socket's handshake. */
static __always_inline void watch(struct bpf_sock_ops *context, struct usher_hold *hold)
{
	if (hold->exempt)
		return;
	hold->asked = BPF_SOCK_OPS_STATE_CB_FLAG & ~context->bpf_sock_ops_cb_flags;
	bpf_sock_ops_cb_flags_set(context,
				  context->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* The handshake has succeeded or failed: remove the mark. */
static __always_inline void end_hold(struct bpf_sock_ops *context, struct bpf_sock *socket,
				     struct usher_hold *hold)
{
	if (hold->exempt ||
	    (context->args[1] != BPF_TCP_ESTABLISHED && context->args[1] != BPF_TCP_CLOSE))
		return;
	if (hold->told)
		tell_end(context, hold, USHER_EVENT_OVER);
	if (hold->asked)
		bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags & ~hold->asked);
	bpf_sk_storage_delete(&holds, socket);
}

/* Notes that the path lets tokens pass, so that a later lost one does not count against the ticket.
 * If the entry is being replaced, the note may be lost, or count for the next ticket, whose path is
 * the same. */
static __always_inline void note_passed(const struct drawn *token)
{
	struct usher_ticket_key key __aligned = { .uid = token->uid, .server = token->server };
	struct usher_ticket *ticket = bpf_map_lookup_elem(&tickets, &key);

	if (ticket && ticket->mark >> 32 == token->ticket && !ticket->passed)
		ticket->passed = 1;
}

static __always_inline void change_state(struct bpf_sock_ops *context, struct bpf_sock *socket,
					 struct drawn *token, struct usher_hold *hold)
{
	/* Another program requested the callback before the connection began. */
	if (!token->begun)
		return;
	/* The token ends here and not at ACTIVE_ESTABLISHED_CB, which is later: there other
	 * programs set callbacks, which must stay. */
	if (context->args[1] == BPF_TCP_ESTABLISHED) {
		/* The kernel requests no length if the SYN has no room for options. */
		if (token->written)
			note_passed(token);
		else
			COUNT(no_room);
		COUNT(established);
	} else if (context->args[1] == BPF_TCP_CLOSE) {
		COUNT(failed);
		if (hold && token->written && is_refused(socket)) {
			COUNT(refused);
			hold->ticket = token->ticket;
			tell_end(context, hold, USHER_EVENT_REFUSED);
		}
	} else {
		return;
	}
	finish(context, socket, token);
}

/*
 * Hook: sockops of the cgroup, the only place that may write into a SYN, and the one that sees both
 * ends of a connection to the proxy as it is made. A socket without token and mark costs three
 * look-ups when it connects, and one when it is accepted; callbacks are set per connection. Kernel
 * 5.10 (bpf_get_netns_cookie 5.15).
 */
SEC("sockops")
int write_token(struct bpf_sock_ops *context)
{
	struct usher_connection connection __aligned = {};
	struct usher_hold *hold;
	struct bpf_sock *socket;
	struct drawn *token;

	switch (context->op) {
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		/* Counts any connection: one that has lost its token does not come here again. */
		COUNT(asked);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
	case BPF_SOCK_OPS_STATE_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		break;
	default:
		return 1;
	}
	socket = context->sk;
	if (!socket)
		return 1;
	if (context->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		if (accepting(context, &connection))
			note_owner(context, socket, &connection);
		return 1;
	}
	token = bpf_sk_storage_get(&drawn, socket, 0, 0);
	hold = bpf_sk_storage_get(&holds, socket, 0, 0);
	switch (context->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		if (connecting(context, &connection))
			note_connecting(context, socket, &connection);
		/* The mark comes first, so that forgetting the token does not reset the callbacks
		 * requested for it. */
		if (hold)
			watch(context, hold);
		if (token)
			begin(context, socket, token);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (token)
			reserve(context, socket, token, hold);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (token)
			write(context, socket, token);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (token)
			change_state(context, socket, token, hold);
		if (hold)
			end_hold(context, socket, hold);
		break;
	}
	return 1;
}

/*
 * Called by gate_syn (gate.bpf.c), at the cgroup's egress, for the SYNs that no gate decides
 * about. The raw sockets that send the copies pass here too, and send nothing else. Kernel 4.10.
 */
SEC("cgroup_skb/egress")
int hold_syn(struct __sk_buff *packet)
{
	struct bpf_sock *socket = packet->sk;

	if (!socket)
		return 1;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return 1;
	if (socket->type == SOCK_RAW)
		return may_be_sent(packet, socket);
	return is_connecting(socket) ? may_leave(packet, socket) : 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
