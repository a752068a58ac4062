// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The module `ubns`: the authorization of services, by the `service` blocks of the policy.
 *
 * A process of a service has the service's name as its element. The starter of users' processes
 * sets the element; programs that a service's own account executes get it. The element is for life:
 * neither the process nor the one that starts it can change it.
 *
 * - A service's port is bound by root and the service's account.
 * - Processes of a service with `connect`, but for those that run as its own account, use TCP and
 *   UDP, to its destinations; those of a service that has left the policy connect nowhere.
 * - Sockets that listen for a service, its files on multilabel file systems, and its processes are
 *   used, or traced, by its own processes only. CAP_SYS_ADMIN, by which labels are set, makes up
 *   for that.
 */
#include "kernel_numbers.h"
#include "usher_mac_policy.h"
#include "usher_mac_settings.h"

MAC_POLICY(ubns, .label = USHER_MAC_NAME);
MAC_SETTINGS(struct usher_mac_ubns);

/* The element of files that are no service's. No service has this name. */
#define NOBODYS '-'

/* A search for services by a name, a port or an account. */
struct search {
	const struct usher_mac_ubns *now;
	const __u8 *name;
	__u32 number; /* a port, or an account */
	__u32 found; /* how many */
	__u32 place; /* of the last one found */
};

/* A destination to which a process of a service connects. */
struct passage {
	const struct usher_mac_ubns *now;
	struct usher_mac_address to;
	__u32 port;
	__u32 is_ipv4;
	__u32 first; /* of the service's destinations */
	__u32 is_permitted;
};

static __always_inline int has(const struct usher_mac_subject *subject, __u32 capability)
{
	return subject->capabilities >> capability & 1;
}

static __always_inline int names_equal(const __u8 *one, const __u8 *other)
{
	const __u64 *words = (const __u64 *)one, *others = (const __u64 *)other;
	__u64 differences = 0;

#pragma unroll
	for (__u32 i = 0; i < USHER_MAC_SERVICE_NAME / sizeof(*words); i++)
		differences |= words[i] ^ others[i];
	return !differences;
}

static __always_inline int is_service(const struct usher_mac_element *element)
{
	return element->kind == USHER_MAC_NAME && element->value[0] != NOBODYS;
}

/* Whether both elements are of one service, or neither is of any. */
static __always_inline int belong_together(const struct usher_mac_element *one,
					   const struct usher_mac_element *other)
{
	if (!is_service(one) || !is_service(other))
		return is_service(one) == is_service(other);
	return names_equal(one->value, other->value);
}

/* Notes a service if it is one that is sought. Returns `ends` then. */
static __always_inline long note(struct search *search, __u32 index, int is_sought, long ends)
{
	if (!is_sought)
		return 0;
	search->found++;
	search->place = index;
	return ends;
}

static long seek_name(__u32 index, struct search *search)
{
	if (index >= USHER_MAC_SERVICES)
		return 1;
	return note(search, index, names_equal(search->now->services[index].name, search->name), 1);
}

static long seek_port(__u32 index, struct search *search)
{
	if (index >= USHER_MAC_SERVICES)
		return 1;
	return note(search, index, search->now->services[index].port == search->number, 1);
}

/* Looks at all services, because an account may serve several. */
static long seek_account(__u32 index, struct search *search)
{
	if (index >= USHER_MAC_SERVICES)
		return 1;
	return note(search, index, search->now->services[index].account == search->number, 0);
}

static __always_inline const struct usher_mac_service *found(const struct search *search)
{
	if (!search->found || search->place >= USHER_MAC_SERVICES)
		return NULL;
	return &search->now->services[search->place];
}

/* The service of this name; none if the policy does not have it, or no longer. */
static __always_inline const struct usher_mac_service *
service_of(const struct usher_mac_ubns *now, const struct usher_mac_element *element)
{
	struct search search = { .now = now, .name = element->value };

	MAC_LOOP(now->count, seek_name, &search);
	return found(&search);
}

/* Decides about the ports of services. SCTP has other ports of its own. */
MAC_CHECK(socket_bind)
{
	struct search search = { .now = mac_settings(), .number = request->port };
	const struct usher_mac_service *service;

	if (!search.now)
		return -EACCES;
	if (request->kind != SOCK_STREAM || request->protocol == IPPROTO_SCTP || !request->port ||
	    !subject->uid)
		return 0;
	MAC_LOOP(search.now->count, seek_port, &search);
	service = found(&search);
	return !service || service->account == subject->uid ? 0 : -EACCES;
}

static long seek_destination(__u32 index, struct passage *passage)
{
	const struct usher_mac_destination *permitted;
	struct usher_mac_address *to = &passage->to;
	__u32 place = passage->first + index;

	if (place >= USHER_MAC_DESTINATIONS)
		return 1;
	permitted = &passage->now->destinations[place];
	if (permitted->is_ipv4 != passage->is_ipv4 || to->high < permitted->first.high ||
	    (to->high == permitted->first.high && to->low < permitted->first.low) ||
	    to->high > permitted->last.high ||
	    (to->high == permitted->last.high && to->low > permitted->last.low) ||
	    passage->port < permitted->first_port || passage->port > permitted->last_port)
		return 0;
	passage->is_permitted = 1;
	return 1;
}

static __always_inline int is_internet(__u32 family)
{
	return family == AF_INET || family == AF_INET6;
}

static __always_inline __u64 number_of_bytes(const __u8 *bytes)
{
	__u64 number = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		number = number << 8 | bytes[i];
	return number;
}

/* Whether a process of the service is held to the service's destinations: it is, unless it runs as
 * the service's own account. */
static __always_inline int is_held(const struct usher_mac_service *service,
				   const struct usher_mac_subject *subject)
{
	return service->has_destinations && (!service->account || service->account != subject->uid);
}

/* Whether a process of this service may send to the address in the request, whatever the family of
 * the socket: those of AF_SMC have addresses of IP, too. */
static __always_inline int reach_address(const struct usher_mac_subject *subject,
					 const struct usher_mac_element *own,
					 const struct usher_mac_socket_address *request)
{
	const struct usher_mac_service *service;
	struct passage passage = { .now = mac_settings() };

	if (!is_service(own))
		return 0;
	if (!passage.now)
		return -EACCES;
	service = service_of(passage.now, own);
	if (!service)
		return -EACCES;
	if (!is_held(service, subject))
		return 0;
	passage.to.high = number_of_bytes(request->address);
	passage.to.low = number_of_bytes(request->address + 8);
	passage.is_ipv4 = !passage.to.high && passage.to.low >> 32 == 0xffff;
	passage.port = request->port;
	passage.first = service->destination;
	/* The kernel takes zeros for this host. */
	if (passage.is_ipv4 ? !(__u32)passage.to.low : !passage.to.high && !passage.to.low)
		return -EACCES;
	MAC_LOOP(service->destinations, seek_destination, &passage);
	return passage.is_permitted ? 0 : -EACCES;
}

/* AF_UNSPEC ends a connection. */
MAC_CHECK(socket_connect)
{
	return is_internet(request->address_family) ? reach_address(subject, subject_label, request)
						    : 0;
}

/* Without an address, the socket sends where it is connected, which was asked about. AF_UNSPEC of
 * an IPv4 socket is an address, with the mark of mapped ones. */
MAC_CHECK(socket_sendmsg)
{
	if (is_internet(request->address_family) ||
	    (!request->address_family && request->address[10] == 0xff))
		return reach_address(subject, subject_label, request);
	return 0;
}

/* Other protocols name their destinations in other ways. AF_RXRPC sends UDP. */
MAC_CHECK(socket_create)
{
	const struct usher_mac_ubns *now = mac_settings();
	const struct usher_mac_service *service;

	if (!is_service(subject_label) ||
	    (!is_internet(request->family) && request->family != AF_RXRPC))
		return 0;
	if (request->kind == SOCK_STREAM &&
	    (!request->protocol || request->protocol == IPPROTO_TCP ||
	     request->protocol == IPPROTO_MPTCP))
		return 0;
	if (request->kind == SOCK_DGRAM && (!request->protocol || request->protocol == IPPROTO_UDP))
		return 0;
	if (!now)
		return -EACCES;
	service = service_of(now, subject_label);
	return service && !is_held(service, subject) ? 0 : -EACCES;
}

/* Whether a process may use an object with this element. Everybody uses an object of no service. */
static __always_inline int may_use(const struct usher_mac_subject *subject,
				   const struct usher_mac_element *own,
				   const struct usher_mac_element *object)
{
	return !is_service(object) || belong_together(own, object) || has(subject, CAP_SYS_ADMIN);
}

MAC_CHECK(socket_listen)
{
	return may_use(subject, subject_label, object_label) ? 0 : -EACCES;
}

MAC_CHECK(socket_accept)
{
	return may_use(subject, subject_label, object_label) ? 0 : -EACCES;
}

/* In both directions: a tracer does what the traced process may do, which may ask to be traced. */
MAC_CHECK(ptrace_access_check)
{
	if (!(request->argument & PTRACE_MODE_ATTACH) || has(subject, CAP_SYS_ADMIN))
		return 0;
	return belong_together(subject_label, object_label) ? 0 : -EACCES;
}

MAC_CHECK(ptrace_traceme)
{
	return belong_together(subject_label, object_label) ? 0 : -EACCES;
}

#define USES_FILES(point)                                                                          \
	MAC_CHECK(point)                                                                           \
	{                                                                                          \
		return may_use(subject, subject_label, object_label) &&                            \
			       may_use(subject, subject_label, directory_label)                    \
			   ? 0                                                                     \
			   : -EACCES;                                                              \
	}

USES_FILES(file_open)
USES_FILES(inode_create)
USES_FILES(inode_mkdir)
USES_FILES(inode_symlink)
USES_FILES(inode_mknod)
USES_FILES(inode_link)
USES_FILES(inode_unlink)
USES_FILES(inode_rmdir)
USES_FILES(inode_rename)
USES_FILES(inode_rename_to)
USES_FILES(inode_setattr)
USES_FILES(inode_set_acl)
USES_FILES(inode_remove_acl)

/* A process becomes one of a service once: if it may become any user, or is of its account. */
MAC_RELABEL(relabel_process)
{
	const struct usher_mac_ubns *now = mac_settings();
	const struct usher_mac_service *service;

	if (!now || former->kind != USHER_MAC_NONE || !is_service(wanted) ||
	    !has(subject, CAP_SETUID))
		return -EPERM;
	if (!subject->euid)
		return 0;
	service = service_of(now, wanted);
	return service && service->account && service->account == subject->uid ? 0 : -EPERM;
}

/* A program that an account of one service alone executes is that service's. */
MAC_DECISION(new_program)
{
	struct search search = { .now = mac_settings(), .number = subject->uid };
	const struct usher_mac_service *service;

	if (!search.now)
		return -EACCES;
	if (element->kind != USHER_MAC_NONE || !subject->uid)
		return 0;
	MAC_LOOP(search.now->count, seek_account, &search);
	service = found(&search);
	if (!service || search.found > 1)
		return 0;
	element->kind = USHER_MAC_NAME;
	__builtin_memcpy(element->value, service->name, sizeof(service->name));
	return 0;
}

MAC_RELABEL(relabel_file)
{
	return has(subject, CAP_SYS_ADMIN) ? 0 : -EPERM;
}

/* A new file belongs to the service of its directory, not to that of its maker. So users and
 * services can share files that belong to no service. */
MAC_DECISION(new_file)
{
	if (object_label->kind == USHER_MAC_UNKNOWN)
		return -EACCES;
	if (object_label->kind == USHER_MAC_NAME) {
		*element = *object_label;
		return 0;
	}
	*element = (struct usher_mac_element){ .kind = USHER_MAC_NAME, .value = { NOBODYS } };
	return 0;
}
