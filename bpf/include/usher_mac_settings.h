/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Settings of policy modules, shared between them and user space. The Rust side is generated from
 * this header. USHER_MAC_LAYOUT goes up with every change of a size, an offset or a meaning.
 */
#ifndef USHER_MAC_SETTINGS_H
#define USHER_MAC_SETTINGS_H

#include <linux/types.h>

#include "usher_mac_policy.h"

/* The version of the layout of everything that is pinned: tables, dispatchers, modules. */
#define USHER_MAC_LAYOUT 14

/* Words of a set of entry points. */
#define USHER_MAC_POINT_WORDS 2

/* A module in its slot. Written by user space only. */
struct usher_mac_module {
	char name[USHER_MAC_NAME_SIZE]; /* padded with zeros */
	__u64 order; /* the larger, the later it was loaded; 0: the slot is free */
	__u64 points[USHER_MAC_POINT_WORDS]; /* bit i % 64 of word i / 64: it declares entry point i
					      */
	__u32 label; /* enum usher_mac_kind: of its elements */
	__u32 exempts_without_element; /* as in struct usher_mac_declaration */
	__u32 decides_by_labels; /* as in struct usher_mac_declaration */
	__u32 reserved; /* 0 */
};

/* Limit of entry points. */
#define USHER_MAC_MOST_POINTS 128

/*
 * Which modules are in force, and what dispatchers ask first of all. The only entry of the table
 * `in_force`. User space writes all of it at once, and the words appear in any order: what must
 * come first is written before the rest.
 */
struct usher_mac_in_force {
	usher_mac_slots enabled; /* the only word that puts a module in force */
	__u32 reserved; /* 0 */
	struct usher_mac_labelled labelled;
	__u64 multilabel; /* bit i: a multilabel file system has a device whose number is i modulo
			   * 64 */
	__u64 families; /* bit i: the policy permits sockets of family i to processes with a level
			 */
	/* by entry point (enum mac_point): of those that declare it */
	usher_mac_slots declared[USHER_MAC_MOST_POINTS];
};

/* Limit of rules. */
#define USHER_MAC_RULES 256
/* Limit of ranges in a condition. */
#define USHER_MAC_RANGES 4

/* A range of numbers, inclusive; none if it ends before it begins. */
struct usher_mac_range {
	__u32 first;
	__u32 last;
};

/* Conditions that a rule has, in `has`, and those that are inverted. */
enum usher_mac_condition {
	USHER_MAC_SUBJECT_UID = 1,
	USHER_MAC_SUBJECT_GID = 2,
	USHER_MAC_OBJECT_UID = 4,
	USHER_MAC_OBJECT_GID = 8,
	USHER_MAC_OBJECT_DEVICE = 16,
	USHER_MAC_OBJECT_SUID = 32,
	USHER_MAC_OBJECT_SGID = 64,
	USHER_MAC_UID_OF_SUBJECT = 128,
	USHER_MAC_GID_OF_SUBJECT = 256,
	USHER_MAC_OBJECT_TYPE = 512,
};

/* Kinds of access, in `mode` of a rule. */
enum usher_mac_rights {
	USHER_MAC_RIGHT_ADMIN = 1,
	USHER_MAC_RIGHT_READ = 2,
	USHER_MAC_RIGHT_STAT = 4,
	USHER_MAC_RIGHT_WRITE = 8,
	USHER_MAC_RIGHT_EXECUTE = 16,
};

/* A rule of bsdextended. */
struct usher_mac_rule {
	struct usher_mac_range subject_uids[USHER_MAC_RANGES];
	struct usher_mac_range subject_gids[USHER_MAC_RANGES];
	struct usher_mac_range object_uids[USHER_MAC_RANGES];
	struct usher_mac_range object_gids[USHER_MAC_RANGES];
	__u32 has; /* enum usher_mac_condition */
	__u32 inverted; /* enum usher_mac_condition */
	__u32 device; /* as in struct usher_mac_file */
	__u32 types; /* bit i: files whose mode has i in its four bits for the type */
	__u32 mode; /* enum usher_mac_rights */
	__u32 reserved; /* 0 */
};

/* The settings of bsdextended. */
struct usher_mac_bsdextended {
	__u32 count; /* of rules */
	__u32 reserved; /* 0 */
	struct usher_mac_rule rules[USHER_MAC_RULES];
};

/* Limits of the module ubns. */
#define USHER_MAC_SERVICES 512
#define USHER_MAC_DESTINATIONS 1024
/* Bytes of the name of a service, padded with zeros. */
#define USHER_MAC_SERVICE_NAME 64

/* A service of the policy. */
struct usher_mac_service {
	__u8 name[USHER_MAC_SERVICE_NAME];
	__u32 port; /* at which users reach it; TCP */
	__u32 account; /* who binds the port besides root; 0: nobody else */
	__u32 has_destinations; /* 1: its processes connect to its destinations and nowhere else */
	__u32 destination; /* its first one */
	__u32 destinations; /* how many it has */
	__u32 reserved; /* 0 */
};

/* An address as two numbers, the upper half first; of IPv4 as ::ffff:a.b.c.d. */
struct usher_mac_address {
	__u64 high;
	__u64 low;
};

/* Addresses and ports, both from the first to the last one. */
struct usher_mac_destination {
	struct usher_mac_address first;
	struct usher_mac_address last;
	__u32 first_port;
	__u32 last_port;
	__u32 is_ipv4; /* 1: has addresses of IPv4, else of IPv6 */
	__u32 reserved; /* 0 */
};

/* The settings of ubns: the services of the policy in force. */
struct usher_mac_ubns {
	__u32 count; /* of services */
	__u32 reserved; /* 0 */
	struct usher_mac_service services[USHER_MAC_SERVICES];
	struct usher_mac_destination destinations[USHER_MAC_DESTINATIONS];
};

/* Limit of the rules of portacl. */
#define USHER_MAC_PORT_RULES 256

/* The protocol of the ports that a portacl rule is about. */
enum usher_mac_port_protocol {
	USHER_MAC_PORT_TCP = 1,
	USHER_MAC_PORT_UDP = 2,
};

/* A rule of portacl: a user or group that may bind a port. */
struct usher_mac_port_rule {
	__u32 id;
	__u32 is_group; /* 1: `id` is a group's, else a user's */
	__u32 protocol; /* enum usher_mac_port_protocol */
	__u32 port; /* 0: one that the kernel chooses */
};

/* The settings of portacl. */
struct usher_mac_portacl {
	__u32 count; /* of rules */
	__u32 port_high; /* the last port that it is about */
	__u32 suser_exempt; /* 1: root binds every port */
	__u32 autoport_exempt; /* 1: everybody binds port 0 */
	struct usher_mac_port_rule rules[USHER_MAC_PORT_RULES];
};

/* The settings of seeotheruids: which processes reach those of other users. */
struct usher_mac_seeotheruids {
	__u32 primarygroup; /* 1: those with the same real group */
	__u32 suser_privileged; /* 1: those with the capability for it */
	__u32 has_group; /* 1: those in `group` */
	__u32 group;
};

/* Limit of the interfaces that ifoff has by name. */
#define USHER_MAC_SWITCHES 64

/* An interface that ifoff has by name. */
struct usher_mac_switch {
	char name[USHER_MAC_INTERFACE_NAME]; /* padded with zeros */
	__u32 is_on; /* 0: it is silent */
	__u32 reserved; /* 0 */
};

/* The settings of ifoff: which network interfaces are silent. */
struct usher_mac_ifoff {
	__u32 count; /* of switches */
	__u32 network; /* that of the named interfaces, as in struct usher_mac_device */
	__u32 loopback; /* 1: `lo` is on */
	__u32 others; /* 1: those without a switch are on */
	__u32 captures; /* 1: packet sockets receive by all, or none is silent */
	__u32 reserved; /* 0 */
	struct usher_mac_switch switches[USHER_MAC_SWITCHES];
};

/* Limits of the module te. Names of domains and types, with number 0 for what has none. */
#define USHER_MAC_TE_NAMES 260
/* Bytes of such a name, padded with zeros: those of an element. */
#define USHER_MAC_TE_NAME 64
/* Places of names, by their hash. */
#define USHER_MAC_TE_PLACES 4096
/* USHER_MAC_TE_NAMES twice: a domain and a type. */
#define USHER_MAC_TE_CELLS 67600
/* Pairs of a domain and a type that rules are about, with number 0 for all others. */
#define USHER_MAC_TE_PAIRS 4097
/* Classes whose permissions pairs have. */
#define USHER_MAC_TE_CLASSES 8
#define USHER_MAC_TE_RELABELS 256
#define USHER_MAC_TE_DENIALS 1024
/* Bits for USHER_MAC_TE_NAMES, in words. */
#define USHER_MAC_TE_WORDS 5

/* Classes of objects. */
enum usher_mac_te_class {
	USHER_MAC_TE_FILE = 0,
	USHER_MAC_TE_DIRECTORY = 1,
	USHER_MAC_TE_LINK = 2,
	USHER_MAC_TE_DEVICE = 3,
	USHER_MAC_TE_PIPE = 4,
	USHER_MAC_TE_SOCKET = 5,
	USHER_MAC_TE_IPC = 6,
	USHER_MAC_TE_PROCESS = 7,
	USHER_MAC_TE_CAPABILITY = 8, /* its permissions are those of a domain, not of a pair */
};

/* Permissions, by their bits. A class has some of them. */
enum usher_mac_te_permission {
	USHER_MAC_TE_READ = 1,
	USHER_MAC_TE_WRITE = 2,
	USHER_MAC_TE_APPEND = 4,
	USHER_MAC_TE_EXECUTE = 8,
	USHER_MAC_TE_ENTRYPOINT = 16,
	USHER_MAC_TE_GETATTR = 32,
	USHER_MAC_TE_SETATTR = 64,
	USHER_MAC_TE_CREATE = 128,
	USHER_MAC_TE_UNLINK = 256,
	USHER_MAC_TE_RENAME = 512,
	USHER_MAC_TE_LINKS = 1024,
	USHER_MAC_TE_SEARCH = 2048,
	USHER_MAC_TE_ADD_NAME = 4096,
	USHER_MAC_TE_REMOVE_NAME = 8192,
	USHER_MAC_TE_IOCTL = 16384,
	USHER_MAC_TE_CONNECT = 32768,
	USHER_MAC_TE_BIND = 65536,
	USHER_MAC_TE_LISTEN = 131072,
	USHER_MAC_TE_ACCEPT = 262144,
	USHER_MAC_TE_NETWORK = 524288,
	USHER_MAC_TE_SIGNAL = 1048576,
	USHER_MAC_TE_PTRACE = 2097152,
	USHER_MAC_TE_SETSCHED = 4194304,
	USHER_MAC_TE_TRANSITION = 8388608,
	USHER_MAC_TE_EXECMEM = 16777216,
};

/* The name of a domain or a type. */
struct usher_mac_te_name {
	__u8 text[USHER_MAC_TE_NAME];
};

/* The rules for a domain and a type. */
struct usher_mac_te_pair {
	__u32 allowed[USHER_MAC_TE_CLASSES]; /* enum usher_mac_te_permission */
	/* by class: the type of what the domain makes in directories of the type; 0: that of the
	 * directory */
	__u16 created[USHER_MAC_TE_CLASSES];
	__u16 transition; /* the domain of programs of the type that the domain executes; 0: its own
			   */
	__u16 reserved[3]; /* 0 */
};

/* A change of the type of files that a domain may make. */
struct usher_mac_te_relabel {
	__u16 domain;
	__u16 from;
	__u16 to;
	__u16 reserved; /* 0 */
};

/* Permissions that were refused, or would have been. Written by the module. */
struct usher_mac_te_denial {
	__u64 about; /* 1 << 63 | class << 32 | domain << 16 | type; 0: the place is free */
	__u64 permissions; /* enum usher_mac_te_permission, or bits of capabilities */
};

/*
 * The settings of te. Names have numbers: the domains from 1 on, the first of them that of
 * processes without an element; then the types, the first of them that of files without an element,
 * the next one that of terminals without.
 */
struct usher_mac_te {
	__u64 seed; /* with it no two names have one place */
	__u64 denials_lost; /* written by the module */
	__u32 domains; /* how many */
	__u32 relabel_count;
	__u64 permissive[USHER_MAC_TE_WORDS]; /* bit i % 64 of word i / 64: domain i */
	__u64 capabilities[USHER_MAC_TE_NAMES]; /* of domains */
	struct usher_mac_te_name names[USHER_MAC_TE_NAMES];
	__u16 places[USHER_MAC_TE_PLACES]; /* numbers of names by hash; 0: of none */
	/* by domain * USHER_MAC_TE_NAMES + type: the number of a pair */
	__u16 cells[USHER_MAC_TE_CELLS];
	struct usher_mac_te_pair pairs[USHER_MAC_TE_PAIRS];
	struct usher_mac_te_relabel relabels[USHER_MAC_TE_RELABELS];
	struct usher_mac_te_denial denials[USHER_MAC_TE_DENIALS];
};

/* The settings of the module test. */
struct usher_mac_test {
	__u32 uid; /* the module refuses processes with this real one */
	__u32 reserved; /* 0 */
	__u32 errors[128]; /* by entry point: the number of the error; 0: permitted */
};

_Static_assert(sizeof(struct usher_mac_in_force) == 568, "usher_mac_in_force");
_Static_assert(sizeof(struct usher_mac_module) == 72, "usher_mac_module");
_Static_assert(sizeof(struct usher_mac_range) == 8, "usher_mac_range");
_Static_assert(sizeof(struct usher_mac_rule) == 152, "usher_mac_rule");
_Static_assert(sizeof(struct usher_mac_bsdextended) == 38920, "usher_mac_bsdextended");
_Static_assert(sizeof(struct usher_mac_service) == 88, "usher_mac_service");
_Static_assert(sizeof(struct usher_mac_address) == 16, "usher_mac_address");
_Static_assert(sizeof(struct usher_mac_destination) == 48, "usher_mac_destination");
_Static_assert(sizeof(struct usher_mac_ubns) == 94216, "usher_mac_ubns");
_Static_assert(sizeof(struct usher_mac_port_rule) == 16, "usher_mac_port_rule");
_Static_assert(sizeof(struct usher_mac_portacl) == 4112, "usher_mac_portacl");
_Static_assert(sizeof(struct usher_mac_seeotheruids) == 16, "usher_mac_seeotheruids");
_Static_assert(sizeof(struct usher_mac_switch) == 24, "usher_mac_switch");
_Static_assert(sizeof(struct usher_mac_ifoff) == 1560, "usher_mac_ifoff");
_Static_assert(sizeof(struct usher_mac_te_name) == 64, "usher_mac_te_name");
_Static_assert(sizeof(struct usher_mac_te_pair) == 56, "usher_mac_te_pair");
_Static_assert(sizeof(struct usher_mac_te_relabel) == 8, "usher_mac_te_relabel");
_Static_assert(sizeof(struct usher_mac_te_denial) == 16, "usher_mac_te_denial");
_Static_assert(sizeof(struct usher_mac_te) == 410040, "usher_mac_te");
_Static_assert(sizeof(struct usher_mac_test) == 520, "usher_mac_test");

#endif
