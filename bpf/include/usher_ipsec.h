/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared between the programs of bpf/ipsec and user space. The Rust side is generated from this
 * header. USHER_IPSEC_LAYOUT goes up with every change of a size, an offset or a meaning, because
 * the tables outlive the protector.
 */
#ifndef USHER_IPSEC_H
#define USHER_IPSEC_H

#include <linux/types.h>

#define USHER_IPSEC_LAYOUT 5

/*
 * Class numbers. The first three are no class. From USHER_CLASS_LOWEST on, each class has two: at
 * its mandatory, then at its optional level.
 */
#define USHER_CLASS_NONE 0
#define USHER_CLASS_BYPASS 1
#define USHER_CLASS_DISCARD 2
#define USHER_CLASS_LOWEST 3
/* A flag beside the class number of a connected datagram socket. Its datagrams may go to other
 * peers as well, so the number is only shown, and decides nothing. */
#define USHER_CLASS_ONLY_SHOWN 0x100

/* The request id of a class's SAs and templates is this number plus the class's index. The class
 * number at the mandatory level is USHER_CLASS_LOWEST plus twice that index. */
#define USHER_REQID 0x7500

/* Kinds of keys in the table of a policy; the comment says what `scope` and `bytes` are. Numbers of
 * applications and lists mean something in one policy only: their keys have its generation. */
#define USHER_POLICY_PROGRAM 1 /* 0; the identity of the program; the generation is 0 */
#define USHER_POLICY_PLACE 2 /* 0; the identity of its place, a name in a directory; likewise */
#define USHER_POLICY_IPV4 4 /* the application; a prefix of addresses */
#define USHER_POLICY_IPV6 6 /* the same */
#define USHER_POLICY_ITEM 8 /* the list; local port, remote port, pattern */
#define USHER_POLICY_SCRIPT 10 /* 0; the identity of the script; the generation is 0 */

/* Places for tables of policies. */
#define USHER_POLICY_PLACES 2

/* Patterns of an item: the ports that it names. Its key has 0 for the others. */
#define USHER_PATTERN_LOCAL 1
#define USHER_PATTERN_REMOTE 2

/* A key of the table of a policy. Addresses and ports are in network byte order. */
struct usher_policy_key {
	__u32 length; /* in bits, of all that follows */
	__u32 kind;
	__u32 generation; /* of the policy */
	__u32 scope;
	__u8 bytes[16];
};

/* An entry of a policy's table. */
struct usher_policy_entry {
	__u32 number; /* a program's application; a network's list; an item's place in its list */
	__u32 class; /* a network's or an item's; 0: the network's list decides */
	__u32 patterns; /* a network's: bit P is set when its list has items of the pattern P */
	__u32 mark_ipv4; /* a program's: the mark of its IPv4 sockets at creation */
	__u32 mark_ipv6; /* a program's: the mark of its IPv6 sockets at creation */
};

/* The state that all programs read. */
struct usher_ipsec_state {
	__u32 generation; /* of the policy; its table is in place before. 0: there is no policy */
	__u32 mask; /* the bits of socket marks that are ours */
	__u32 shift; /* the lowest of them; the class number is in the four from it on */
	__u32 reserved; /* 0 */
};

/* A script. Zeros: none. */
struct usher_script {
	__u64 script; /* its identity */
	__u64 place; /* the identity of its place */
};

#define USHER_EXECUTION_FRESH 1 /* the exec in progress, or the last one, began with `next` */
#define USHER_EXECUTION_PASSED_ON 2 /* the next executed program runs the script `now` */

/* The script that a process executes, or is about to. */
struct usher_execution {
	struct usher_script now;
	struct usher_script next; /* of the exec in progress, or of the last one */
	__u64 flags; /* USHER_EXECUTION_... */
};

/*
 * A socket of a program that was governed when it made the socket. The program is the script that
 * the process executed, if the policy names it, or else the executable. Either is found by its file
 * or, if the file has just been replaced, by its place. In each of the last three fields the high
 * half is the generation for which the low half was found.
 */
struct usher_governed {
	__u64 program; /* the executable's identity */
	__u64 place; /* the identity of its place */
	struct usher_script script; /* zeros: none that the policy named when it was executed */
	__u64 application; /* USHER_UNGOVERNED: none */
	__u64 mark; /* its mark unless it is connected or listens */
	__u64 class; /* of its connection; 0: not known yet */
};

#define USHER_UNGOVERNED 0xffffffff

/* The signature of an application's rules: the first half of their SHA-256. */
struct usher_signature {
	__u8 digest[16];
};

/* A peer that is held to a class at its optional level: plaintext no longer passes. */
struct usher_held {
	__u32 class; /* the number at the optional level */
	__u8 address[16]; /* as in usher_connection */
};

/* A descriptor of a governed socket, as the iterator reports it. */
struct usher_live_socket {
	__u8 local_address[16]; /* as in usher_connection; zeros: any */
	__u8 remote_address[16];
	__u64 program; /* the maker's executable */
	__u64 place; /* and the identity of its place */
	struct usher_script script; /* the maker's; zeros: none */
	__u64 cookie; /* the socket's own number, which no other socket ever has */
	__u32 process; /* one that holds it, in the initial namespace */
	__u32 uid; /* the socket's user, in the initial namespace */
	__u32 application;
	__u32 class; /* the class number of a connection; 0: each packet's own */
	__u32 mark;
	__u16 local_port; /* host byte order; 0: none */
	__u16 remote_port;
	__u16 protocol;
	__u8 state;
	__u8 adopted; /* 1: just now, because it is older than the policy */
	__u32 unheld; /* one of USHER_UNHELD; 0: it is treated as the policy says */
};

/* Reasons that a governed program's socket is not treated as the policy says. */
#define USHER_UNHELD_KIND 1 /* no program sees what a socket of its family or protocol carries */
#define USHER_UNHELD_FULL 2 /* there is no room for its entry */
#define USHER_UNHELD_MARK 3 /* of datagrams, connected before; it lacks the mark of its class */
#define USHER_UNHELD_SEGMENTS 4 /* UDP_SEGMENT is set, which IPsec does not take (EIO) */

/* A service that is reached over protected connections only. */
struct usher_ipsec_service {
	__u8 address[16]; /* of the host, as in usher_connection; zeros: this host */
	__u32 port; /* host byte order */
};

/* The protection that packets of a service need. */
struct usher_ipsec_demand {
	__u32 classes; /* bit N: SAs of class number N are accepted */
	__u32 shift; /* the lowest of the four bits of a mark that hold the class number */
};

/* Counters of the programs that drop plaintext of services. */
struct usher_ipsec_service_counters {
	/* Leaving packets of services that were about to be protected. */
	__u64 service_protected;
	/* Leaving packets of services dropped because no SA of a demanded class was about to
	 * protect them. */
	__u64 service_kept;
	/* Packets from services of other hosts dropped because no SA had protected them. */
	__u64 service_refused;
	/* Packets dropped because their headers could not be read. */
	__u64 service_unreadable;
};

/* Counters of the monitor. */
struct usher_ipsec_counters {
	/* Sockets made by governed programs. */
	__u64 sockets;
	/* Sockets that a governed program could not make (MPTCP, SCTP, no memory), and uses of
	 * sockets of others without memory to govern them: refused, except listen, getpeername
	 * and getsockname. */
	__u64 sockets_refused;
	/* Sockets made by others that a governed program began to use. */
	__u64 adopted;
	/* Connections and datagrams refused at the call because the policy discards them. */
	__u64 discarded;
	/* Marks of sockets that could not be set: a call was refused, or packets with the former
	 * mark are dropped. */
	__u64 unmarked;
	/* Options refused that would change a socket's mark or its own IPsec policy. */
	__u64 options_refused;
	/* Executions of scripts refused, and new threads and children of scripts refused, because
	 * the table `executions` was full. */
	__u64 scripts_refused;
	/* Calls refused on sockets that cannot be protected: of other families, MPTCP or SCTP, or
	 * connections made by another program without the protection that the policy demands. */
	__u64 calls_refused;
	/* Datagram sockets whose mark was corrected at a send. */
	__u64 corrected;
	/* Connections whose mark was changed to that of the policy in force. */
	__u64 remarked;
	/* Listeners with bits of other parties in their mark: answers do not take the class. */
	__u64 listeners_marked;
	/* Arriving packets that were protected as the policy demands. */
	__u64 arrived_protected;
	/* Arriving packets that passed without protection: bypass, or optional. */
	__u64 arrived_plain;
	/* Arriving packets dropped because they were not protected. */
	__u64 refused_plain;
	/* Arriving packets dropped because they were protected by another class. */
	__u64 refused_class;
	/* Arriving packets dropped because the policy discards them. */
	__u64 refused_discard;
	/* Arriving packets dropped because their headers could not be read. */
	__u64 refused_unreadable;
	/* Leaving packets that were protected. */
	__u64 left_protected;
	/* Leaving packets that passed without protection: bypass, or optional. */
	__u64 left_plain;
	/* Leaving packets dropped because they would have left without protection. */
	__u64 kept_plain;
	/* Leaving packets dropped because they were protected by another class. */
	__u64 kept_class;
	/* Leaving packets dropped because the policy discards them. */
	__u64 kept_discard;
	/* Leaving packets dropped because their headers could not be read. */
	__u64 kept_unreadable;
};

_Static_assert(sizeof(struct usher_policy_key) == 32, "usher_policy_key");
_Static_assert(sizeof(struct usher_policy_entry) == 20, "usher_policy_entry");
_Static_assert(sizeof(struct usher_ipsec_state) == 16, "usher_ipsec_state");
_Static_assert(sizeof(struct usher_script) == 16, "usher_script");
_Static_assert(sizeof(struct usher_execution) == 40, "usher_execution");
_Static_assert(sizeof(struct usher_governed) == 56, "usher_governed");
_Static_assert(sizeof(struct usher_signature) == 16, "usher_signature");
_Static_assert(sizeof(struct usher_held) == 20, "usher_held");
_Static_assert(sizeof(struct usher_live_socket) == 104, "usher_live_socket");
_Static_assert(sizeof(struct usher_ipsec_service) == 20, "usher_ipsec_service");
_Static_assert(sizeof(struct usher_ipsec_demand) == 8, "usher_ipsec_demand");
_Static_assert(sizeof(struct usher_ipsec_service_counters) == 32, "usher_ipsec_service_counters");
_Static_assert(sizeof(struct usher_ipsec_counters) == 184, "usher_ipsec_counters");

#endif
