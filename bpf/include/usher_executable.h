/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs as the kernel knows them: the inode object of the executable that a process runs.
 *
 * No chroot, mount namespace or overlay of the process can make it look like another file, and it
 * does not depend on a file system's numbering. User space keeps each file that it names open, so
 * that the object stays and no other file gets its address. User space sees only a keyed hash of
 * the address.
 *
 * A place is a name in a directory: the directory's inode object, and the hash that the kernel
 * itself has made of the name for its look-ups. A file has the place as soon as it has the name, so
 * a program is recognised even if its file has just been replaced. User space keeps the directory
 * open. The hash has 32 bits, so another name of the same length in the same directory may have the
 * same place, once in 2^32.
 *
 * A process does not keep its script open, so the object may go while the process runs. A script is
 * known by its numbers instead: the device, the inode and its generation. They outlive the object
 * and user space. A file system that numbers two files alike (overlayfs over several others) makes
 * them one script. So an exec compares its file by object or place, and only then remembers the
 * script by its numbers (bpf/ipsec/scripts.bpf.c).
 *
 * The BPF object that includes this header has the table of the key and the program `identify`
 * (crates/base/usher-bpf/src/executables.rs).
 */
#ifndef USHER_EXECUTABLE_H
#define USHER_EXECUTABLE_H

#include "usher_kernel.h"
#include "usher_maps.h"
#include "usher_program.h"
#include "usher_read.h"
#include "usher_token.h"

/* Key: 0. Set before the programs are attached; user space keeps no descriptor of it. */
ARRAY_TABLE(program_keys, 1, struct usher_program_key);

/* The identity of a file. `distance`: of its inode from the hash's key, which keeps its address. */
static __always_inline __u64 program_at(__u64 distance, const struct usher_program_key *key)
{
	const __u64 words[2] = { key->words[0], key->words[1] };
	const __u64 message[5] = { distance };
	__u64 hash[2];

	usher_token_mask(words, message, hash);
	return hash[0] ? hash[0] : 1;
}

/* The identity of a place. `distance`: of the directory's inode; `name`: its hash and length. */
static __always_inline __u64 place_at(__u64 distance, __u64 name,
				      const struct usher_program_key *key)
{
	const __u64 words[2] = { key->words[0], key->words[1] };
	const __u64 message[5] = { distance, name, 1 };
	__u64 hash[2];

	usher_token_mask(words, message, hash);
	return hash[0] ? hash[0] : 1;
}

static __always_inline __u64 script_at(__u64 device, __u64 number, __u64 generation,
				       const struct usher_program_key *key)
{
	const __u64 words[2] = { key->words[0], key->words[1] };
	const __u64 message[5] = { device, number, generation, 1 };
	__u64 hash[2];

	usher_token_mask(words, message, hash);
	return hash[0] ? hash[0] : 1;
}

static __always_inline __u64 hash_and_length(__u32 hash, __u32 length)
{
	return (__u64)length << 32 | hash;
}

/* The file that a process executes; none if it has none. Read by types known to the verifier, which
 * also works in lockdown. */
static __always_inline struct file *executed_by(struct task_struct *task)
{
	struct mm_struct *memory = READ_ONLY(task, struct task_struct)->mm;

	return memory ? memory->exe_file : 0;
}

/* The executable of a process; none if it has none. */
static __always_inline struct inode *executable_of(struct task_struct *task)
{
	struct file *file = executed_by(task);

	return file ? file->f_inode : 0;
}

/* The place of a file; 0: it has none. */
static __always_inline __u64 place_of(struct file *file)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct dentry *entry = READ_ONLY(file, struct file)->f_path.dentry, *directory;
	struct inode *inode;

	if (!key || !entry)
		return 0;
	directory = entry->d_parent;
	inode = directory ? directory->d_inode : 0;
	if (!inode)
		return 0;
	return place_at((char *)inode - (char *)key,
			hash_and_length(entry->d_name.hash, entry->d_name.len), key);
}

/* The values from which program_at() and place_at() make the identities of a file and its place. */
struct usher_origin {
	__u64 file; /* the distance of its inode from the key */
	__u64 directory; /* the same of its directory's; 0: it has none */
	__u64 name; /* in the directory: hash and length */
};

/* Reads the origin of the identities of a file. Returns 0 if there is no such file. */
static __always_inline int read_origin(struct usher_origin *origin, struct file *file,
				       const struct usher_program_key *key)
{
	struct file *read = READ_ONLY(file, struct file);
	struct inode *inode = file ? read->f_inode : 0;
	struct dentry *entry = file ? read->f_path.dentry : 0;
	struct dentry *directory = entry ? entry->d_parent : 0;
	struct inode *above = directory ? directory->d_inode : 0;

	if (!inode)
		return 0;
	origin->file = (char *)inode - (char *)key;
	origin->directory = above ? (char *)above - (char *)key : 0;
	origin->name = above ? hash_and_length(entry->d_name.hash, entry->d_name.len) : 0;
	return 1;
}

static __always_inline __u64 program_of(struct inode *inode)
{
	struct usher_program_key *key = first_of(&program_keys);

	/* The verifier permits only the difference of two pointers. */
	return key ? program_at((char *)inode - (char *)key, key) : 0;
}

static __always_inline __u64 script_of(struct inode *inode)
{
	struct usher_program_key *key = first_of(&program_keys);

	if (!key)
		return 0;
	return script_at(inode->i_sb->s_dev, inode->i_ino, inode->i_generation, key);
}

/*
 * Run by user space (BPF_PROG_RUN): identifies the file behind a descriptor of the caller. Returns
 * 0 or the error. Only this needs a kernel that lets programs read its memory by address (no
 * lockdown for confidentiality). Kernel 5.14.
 */
SEC("syscall")
int identify(struct usher_program_query *query)
{
	struct usher_program_key *key = first_of(&program_keys);
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 descriptor = query->descriptor;
	struct inode *inode = 0, *directory = 0;
	struct file **files, *file = 0;
	struct dentry *entry = 0;
	__u64 origin = 0;

	if (!key)
		return EINVAL;
	/* The address of the key, which is subtracted in program_of. */
	bpf_probe_read_kernel(&origin, sizeof(origin), &key);
	if (descriptor >= BPF_CORE_READ(task, files, fdt, max_fds))
		return EBADF;
	files = BPF_CORE_READ(task, files, fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + descriptor);
	if (!file)
		return EBADF;
	inode = BPF_CORE_READ(file, f_inode);
	if (!inode)
		return EBADF;
	query->program = program_at((__u64)inode - origin, key);
	query->script = script_at(BPF_CORE_READ(inode, i_sb, s_dev), BPF_CORE_READ(inode, i_ino),
				  BPF_CORE_READ(inode, i_generation), key);
	entry = BPF_CORE_READ(file, f_path.dentry);
	directory = BPF_CORE_READ(entry, d_parent, d_inode);
	if (!directory)
		return 0;
	query->directory = program_at((__u64)directory - origin, key);
	query->place = place_at(
	    (__u64)directory - origin,
	    hash_and_length(BPF_CORE_READ(entry, d_name.hash), BPF_CORE_READ(entry, d_name.len)),
	    key);
	return 0;
}

#endif
