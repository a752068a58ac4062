// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The framework of mandatory access control: one program for each hook, the dispatcher. It asks the
 * policy modules in its slots (slots.h), each of which may refuse. User space attaches a dispatcher
 * only while a loaded module declares its entry point.
 *
 * A dispatcher reads the calling process and the objects of the hook into plain numbers before it
 * asks. It asks nobody about files of BPF file systems: their only files are pins, which bpf/guard
 * and root guard, and a module in force must not keep its own daemon from them.
 *
 * A pointer that may be NULL (of a name without a file, of a mapping without one) is read by
 * BPF_CORE_READ, which yields 0 for it: some kernels take it for a pointer that never is, and
 * remove a comparison.
 *
 * Each hook's first kernel is in usher_mac_policy.h. Slots in LSM programs: tried on 6.18.
 */
#include "slots.h"

#include <linux/magic.h>

#define AF_INET 2
#define AF_INET6 10

/* Modes of inode_permission that are kinds of access: MAY_EXEC to MAY_APPEND. */
#define ACCESS_KINDS 15

/* Modes of an open file. */
#define FMODE_READ 1
#define FMODE_WRITE 2
/* Of f_flags. open(2) and its kind take the second one from nobody. */
#define O_APPEND 02000
#define OPENED_TO_EXECUTE (1 << 5)

/* Bits of struct iattr. */
#define ATTR_MODE (1 << 0)
#define ATTR_UID (1 << 1)
#define ATTR_GID (1 << 2)
#define ATTR_SIZE (1 << 3)
#define ATTR_ATIME_SET (1 << 7)
#define ATTR_MTIME_SET (1 << 8)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct user_namespace___mac {
	int level;
};

struct cred___mac {
	kuid_t uid, suid, euid, fsuid;
	kgid_t gid, sgid, egid, fsgid;
	struct capability_set cap_effective;
	struct user_namespace___mac *user_ns;
};

struct inode___mac {
	unsigned short i_mode;
	kuid_t i_uid;
	kgid_t i_gid;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file___mac {
	struct inode *f_inode;
	unsigned int f_mode;
	unsigned int f_flags;
};

struct iattr {
	unsigned int ia_valid;
	unsigned short ia_mode;
	kuid_t ia_uid;
	kgid_t ia_gid;
};

struct sock_common___mac {
	unsigned short skc_family;
};

struct sock___mac {
	struct sock_common___mac __sk_common;
	__u16 sk_protocol;
};

struct socket___mac {
	short type;
	struct sock___mac *sk;
};

struct kernel_siginfo;

#pragma clang attribute pop

/* What struct sockaddr_in and sockaddr_in6 have in common, and their addresses. */
struct internet_address {
	__u16 family;
	__be16 port;
	__u8 rest[24];
};

/* Reads credentials. Leaves the subject as it is if there are none: NULL. */
static __always_inline void read_credentials(struct usher_mac_subject *subject,
					     const struct cred *credentials)
{
	const struct cred___mac *cred = (const void *)credentials;
	__u32 uid;

	/* A read that fails clears what it should fill. */
	if (bpf_core_read(&uid, sizeof(uid), &cred->uid))
		return;
	subject->uid = uid;
	subject->euid = BPF_CORE_READ(cred, euid.val);
	subject->suid = BPF_CORE_READ(cred, suid.val);
	subject->fsuid = BPF_CORE_READ(cred, fsuid.val);
	subject->gid = BPF_CORE_READ(cred, gid.val);
	subject->egid = BPF_CORE_READ(cred, egid.val);
	subject->sgid = BPF_CORE_READ(cred, sgid.val);
	subject->fsgid = BPF_CORE_READ(cred, fsgid.val);
	subject->capabilities = 0;
	if (BPF_CORE_READ(cred, user_ns, level) == 0)
		bpf_core_read(&subject->capabilities, sizeof(subject->capabilities),
			      &cred->cap_effective);
}

/* The calling process. */
static __always_inline void read_subject(struct usher_mac_subject *subject)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct cred___mac *cred = (const void *)task->cred;

	subject->uid = cred->uid.val;
	subject->euid = cred->euid.val;
	subject->suid = cred->suid.val;
	subject->fsuid = cred->fsuid.val;
	subject->gid = cred->gid.val;
	subject->egid = cred->egid.val;
	subject->sgid = cred->sgid.val;
	subject->fsgid = cred->fsgid.val;
	subject->capabilities = 0;
	if (cred->user_ns->level == 0)
		bpf_core_read(&subject->capabilities, sizeof(subject->capabilities),
			      &cred->cap_effective);
	subject->process = task->tgid;
	subject->reserved = 0;
}

/*
 * Reads a file that may be NULL. Returns 0 for none, and for one of a BPF file system: no module is
 * asked about either.
 */
static __always_inline int read_file(struct usher_mac_file *file, const void *of)
{
	const struct inode___mac *inode = of;
	struct super_block *system;

	if (bpf_core_read(&system, sizeof(system), &inode->i_sb) ||
	    BPF_CORE_READ(system, s_magic) == BPF_FS_MAGIC)
		return 0;
	file->inode = BPF_CORE_READ(inode, i_ino);
	file->device = BPF_CORE_READ(system, s_dev);
	file->uid = BPF_CORE_READ(inode, i_uid.val);
	file->gid = BPF_CORE_READ(inode, i_gid.val);
	file->mode = BPF_CORE_READ(inode, i_mode);
	return 1;
}

/* Hook: inode_permission, because every look-up of a name and every opening passes it. */
SEC("lsm/inode_permission")
int BPF_PROG(dispatch_inode_permission, struct inode *inode, int mask)
{
	__u64 asked = modules_at(MAC_POINT_inode_permission);
	struct usher_mac_file_access wanted = { .access = mask & ACCESS_KINDS };
	struct usher_mac_subject subject;

	/* access(2) with F_OK. */
	if (!asked || !wanted.access || !read_file(&wanted.file, inode))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_permission(asked, &subject, &wanted);
}

/* Hook: file_open, because it sees the open file, whichever way it was found. */
SEC("lsm/file_open")
int BPF_PROG(dispatch_file_open, struct file *file)
{
	__u64 asked = modules_at(MAC_POINT_file_open);
	const struct file___mac *opened = (const void *)file;
	struct usher_mac_file_access wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, opened->f_inode))
		return 0;
	/* The kernel reads a program that a process may execute but not read. */
	if (opened->f_flags & OPENED_TO_EXECUTE)
		wanted.access |= USHER_MAC_EXECUTE;
	else if (opened->f_mode & FMODE_READ)
		wanted.access |= USHER_MAC_READ;
	if (opened->f_mode & FMODE_WRITE)
		wanted.access |= USHER_MAC_WRITE;
	if (opened->f_flags & O_APPEND)
		wanted.access |= USHER_MAC_APPEND;
	read_subject(&subject);
	return mac_ask_file_open(asked, &subject, &wanted);
}

/* Hook: inode_getattr, because stat(2) and its kind pass it. */
SEC("lsm/inode_getattr")
int BPF_PROG(dispatch_inode_getattr, const struct path *path)
{
	__u64 asked = modules_at(MAC_POINT_inode_getattr);
	struct usher_mac_subject subject;
	struct usher_mac_file wanted = {};

	if (!asked || !read_file(&wanted, BPF_CORE_READ(path, dentry, d_inode)))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_getattr(asked, &subject, &wanted);
}

/* Hook: inode_create, because no file is there yet. */
SEC("lsm/inode_create")
int BPF_PROG(dispatch_inode_create, struct inode *directory, struct dentry *entry,
	     unsigned short mode)
{
	__u64 asked = modules_at(MAC_POINT_inode_create);
	struct usher_mac_creation wanted = { .mode = mode };
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_create(asked, &subject, &wanted);
}

/* Hook: inode_link, because a second name may lie where other rules are. */
SEC("lsm/inode_link")
int BPF_PROG(dispatch_inode_link, struct dentry *former, struct inode *directory,
	     struct dentry *entry)
{
	__u64 asked = modules_at(MAC_POINT_inode_link);
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(former, d_inode)) ||
	    !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_link(asked, &subject, &wanted);
}

/* Hook: inode_unlink, because it knows the file whose name is removed. */
SEC("lsm/inode_unlink")
int BPF_PROG(dispatch_inode_unlink, struct inode *directory, struct dentry *entry)
{
	__u64 asked = modules_at(MAC_POINT_inode_unlink);
	struct usher_mac_naming wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(entry, d_inode)) ||
	    !read_file(&wanted.directory, directory))
		return 0;
	read_subject(&subject);
	return mac_ask_inode_unlink(asked, &subject, &wanted);
}

/*
 * Hook: inode_rename, because it knows the file that is replaced. The kernel calls it a second
 * time, the other way round, for an exchange.
 */
SEC("lsm/inode_rename")
int BPF_PROG(dispatch_inode_rename, struct inode *directory, struct dentry *entry,
	     struct inode *new_directory, struct dentry *new_entry)
{
	__u64 asked = modules_at(MAC_POINT_inode_rename);
	struct usher_mac_renaming wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(entry, d_inode)) ||
	    !read_file(&wanted.directory, directory) ||
	    !read_file(&wanted.new_directory, new_directory))
		return 0;
	wanted.replaces = read_file(&wanted.replaced, BPF_CORE_READ(new_entry, d_inode));
	read_subject(&subject);
	return mac_ask_inode_rename(asked, &subject, &wanted);
}

/* What is changed, by the kernel's bits. */
static __always_inline __u32 changes(__u32 valid)
{
	__u32 found = 0;

	if (valid & ATTR_MODE)
		found |= USHER_MAC_CHANGES_MODE;
	if (valid & ATTR_UID)
		found |= USHER_MAC_CHANGES_UID;
	if (valid & ATTR_GID)
		found |= USHER_MAC_CHANGES_GID;
	if (valid & ATTR_SIZE)
		found |= USHER_MAC_CHANGES_SIZE;
	if (valid & (ATTR_ATIME_SET | ATTR_MTIME_SET))
		found |= USHER_MAC_CHANGES_TIMES;
	return found;
}

/* All attributes of this hook but the file: its first argument has changed between kernels. */
static __always_inline int dispatch_attributes(struct dentry *entry, struct iattr *change)
{
	__u64 asked = modules_at(MAC_POINT_inode_setattr);
	struct usher_mac_attributes wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(entry, d_inode)))
		return 0;
	wanted.changes = changes(BPF_CORE_READ(change, ia_valid));
	wanted.uid = BPF_CORE_READ(change, ia_uid.val);
	wanted.gid = BPF_CORE_READ(change, ia_gid.val);
	wanted.mode = BPF_CORE_READ(change, ia_mode);
	read_subject(&subject);
	return mac_ask_inode_setattr(asked, &subject, &wanted);
}

struct mnt_idmap;

/* Hook: inode_setattr, because every way of changing attributes ends there. Its arguments are those
 * of kernel 6.5 and later. */
SEC("lsm/inode_setattr")
int BPF_PROG(dispatch_inode_setattr, struct mnt_idmap *map, struct dentry *entry,
	     struct iattr *change)
{
	return dispatch_attributes(entry, change);
}

/* Hook: bprm_check_security, because it sees the script and then each interpreter. */
SEC("lsm/bprm_check_security")
int BPF_PROG(dispatch_bprm_check_security, struct linux_binprm *program)
{
	__u64 asked = modules_at(MAC_POINT_bprm_check_security);
	struct usher_mac_execution wanted = {};
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(program, file, f_inode)))
		return 0;
	wanted.euid = BPF_CORE_READ(program, cred, euid.val);
	wanted.egid = BPF_CORE_READ(program, cred, egid.val);
	read_subject(&subject);
	return mac_ask_bprm_check_security(asked, &subject, &wanted);
}

/* Hook: mmap_file, because what is mapped is read, written and executed without a further call. */
SEC("lsm/mmap_file")
int BPF_PROG(dispatch_mmap_file, struct file *file, unsigned long asked_protection,
	     unsigned long protection, unsigned long flags)
{
	__u64 asked = modules_at(MAC_POINT_mmap_file);
	struct usher_mac_mapping wanted = { .protection = protection, .flags = flags };
	struct usher_mac_subject subject;

	if (!asked || !read_file(&wanted.file, BPF_CORE_READ(file, f_inode)))
		return 0;
	read_subject(&subject);
	return mac_ask_mmap_file(asked, &subject, &wanted);
}

/*
 * Hook: task_kill, because kill(2) and its kind pass it. The kernel repeats the call for ever after
 * ESRCH.
 */
SEC("lsm/task_kill")
int BPF_PROG(dispatch_task_kill, struct task_struct *target, struct kernel_siginfo *info,
	     int signal, const struct cred *credentials)
{
	__u64 asked = modules_at(MAC_POINT_task_kill);
	struct usher_mac_signal wanted = { .signal = signal };
	struct usher_mac_subject subject;
	int error;

	if (!asked)
		return 0;
	wanted.uid = BPF_CORE_READ(target, cred, uid.val);
	wanted.suid = BPF_CORE_READ(target, cred, suid.val);
	wanted.process = BPF_CORE_READ(target, tgid);
	read_subject(&subject);
	/* Those under which a device's event was requested; NULL: the calling process's. */
	read_credentials(&subject, credentials);
	error = mac_ask_task_kill(asked, &subject, &wanted);
	return error == -ESRCH ? -EPERM : error;
}

/* Reads a socket and the address that a process names. */
static __always_inline void read_address(struct usher_mac_socket_address *wanted,
					 struct socket *socket, struct sockaddr *address,
					 int length)
{
	const struct socket___mac *own = (const void *)socket;
	struct internet_address named = {};

	wanted->family = BPF_CORE_READ(own, sk, __sk_common.skc_family);
	wanted->kind = BPF_CORE_READ(own, type);
	wanted->protocol = BPF_CORE_READ(own, sk, sk_protocol);
	/* The kernel has room for any address there. */
	bpf_probe_read_kernel(&named, sizeof(named), address);
	if (length < (int)sizeof(named.family))
		return;
	wanted->address_family = named.family;
	/* bind(2) takes AF_UNSPEC for AF_INET, which must not hide a port. */
	if (length >= 8 &&
	    (named.family == AF_INET || (!named.family && wanted->family == AF_INET))) {
		wanted->port = __builtin_bswap16(named.port);
		wanted->address[10] = 0xff;
		wanted->address[11] = 0xff;
		__builtin_memcpy(wanted->address + 12, named.rest, 4);
	} else if (length >= 24 && named.family == AF_INET6) {
		wanted->port = __builtin_bswap16(named.port);
		__builtin_memcpy(wanted->address, named.rest + 4, 16);
	}
}

/* Hook: socket_bind, because the address is copied from the process by then. */
SEC("lsm/socket_bind")
int BPF_PROG(dispatch_socket_bind, struct socket *socket, struct sockaddr *address, int length)
{
	__u64 asked = modules_at(MAC_POINT_socket_bind);
	struct usher_mac_socket_address wanted = {};
	struct usher_mac_subject subject;

	if (!asked)
		return 0;
	read_address(&wanted, socket, address, length);
	read_subject(&subject);
	return mac_ask_socket_bind(asked, &subject, &wanted);
}

/* Hook: socket_connect, because the address is copied from the process by then. */
SEC("lsm/socket_connect")
int BPF_PROG(dispatch_socket_connect, struct socket *socket, struct sockaddr *address, int length)
{
	__u64 asked = modules_at(MAC_POINT_socket_connect);
	struct usher_mac_socket_address wanted = {};
	struct usher_mac_subject subject;

	if (!asked)
		return 0;
	read_address(&wanted, socket, address, length);
	read_subject(&subject);
	return mac_ask_socket_connect(asked, &subject, &wanted);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
