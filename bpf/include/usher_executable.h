/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs as the kernel knows them: the inode object of the executable that a process runs.
 *
 * No chroot, mount namespace or overlay of the process can make it look like another file, and it
 * does not depend on a file system's numbering. User space keeps each file that it names open, so
 * that the object stays and no other file gets its address. User space sees only a keyed hash of
 * the address. The object that includes this has the table of the key and the program `identify`
 * (crates/base/usher-bpf/src/executables.rs).
 */
#ifndef USHER_EXECUTABLE_H
#define USHER_EXECUTABLE_H

#include "usher_kernel.h"
#include "usher_maps.h"
#include "usher_program.h"
#include "usher_token.h"

/* Key: 0. Set before the programs are attached; user space keeps no descriptor of it. */
ARRAY_TABLE(program_keys, 1, struct usher_program_key);

/* `distance`: of the inode from the hash's key, whose address stays as long as the tables exist. */
static __always_inline __u64 program_at(__u64 distance, const struct usher_program_key *key)
{
	const __u64 words[2] = { key->words[0], key->words[1] };
	const __u64 message[5] = { distance };
	__u64 hash[2];

	usher_token_mask(words, message, hash);
	return hash[0] ? hash[0] : 1;
}

/* The executable of a process; none if it has none. Read by types known to the verifier, which also
 * works in lockdown. */
static __always_inline struct inode *executable_of(struct task_struct *task)
{
	struct mm_struct *memory = task->mm;
	struct file *file;

	if (!memory)
		return 0;
	file = memory->exe_file;
	return file ? file->f_inode : 0;
}

static __always_inline __u64 program_of(struct inode *inode)
{
	struct usher_program_key *key = first_of(&program_keys);

	/* The verifier permits only the difference of two pointers. */
	return key ? program_at((char *)inode - (char *)key, key) : 0;
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
	struct file **files, *file = 0;
	struct inode *inode = 0;
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
	return 0;
}

#endif
