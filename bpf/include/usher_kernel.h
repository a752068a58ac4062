/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel structures that programs read, with only the members that they read. libbpf fills in
 * the true offsets when it loads a program (CO-RE), so no vmlinux.h is needed and one object serves
 * every kernel from 6.1 on.
 */
#ifndef USHER_KERNEL_H
#define USHER_KERNEL_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	unsigned int val;
} kuid_t;

typedef struct {
	unsigned int val;
} kgid_t;

typedef struct {
	int counter;
} atomic_t;

struct group_info {
	int ngroups;
	kgid_t gid[0];
};

/* 64 bits on every kernel, as one word or as two. */
struct capability_set {
	__u64 bits;
};

struct cred {
	kuid_t uid, suid, euid, fsuid;
	kgid_t gid, sgid, egid, fsgid;
	struct capability_set cap_permitted;
	struct group_info *group_info;
};

struct signal_struct {
	int nr_threads;
};

struct file;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	atomic_t count;
	struct fdtable *fdt;
};

struct super_block {
	unsigned int s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	unsigned int i_nlink;
	kuid_t i_uid;
	struct super_block *i_sb;
	unsigned long i_ino;
	__u32 i_generation;
};

struct qstr {
	unsigned int hash;
	unsigned int len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct vfsmount {
	struct super_block *mnt_sb;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
};

struct fs_struct {
	int users;
	struct path root;
};

struct ns_common {
	unsigned int inum;
};

struct mnt_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
};

/* Contains a vfsmount. */
struct mount {
	struct vfsmount mnt;
	struct mnt_namespace *mnt_ns;
	int mnt_id;
};

struct notification;

struct seccomp_filter {
	struct seccomp_filter *prev;
	struct notification *notif;
};

struct seccomp {
	struct seccomp_filter *filter;
};

struct perf_event_context {
	int nr_events;
};

struct io_uring_task;

struct mm_struct {
	unsigned long flags;
	struct file *exe_file;
};

/* From 6.18 on. */
struct mm_flags {
	unsigned long word;
};

struct mm_struct___bitmap {
	struct mm_flags flags;
};

struct cgroup {
	int level;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	int tgid;
	unsigned int ptrace;
	char comm[16]; /* TASK_COMM_LEN */
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	const struct cred *cred;
	struct signal_struct *signal;
	struct fs_struct *fs;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct css_set *cgroups;
	struct mm_struct *mm;
	struct seccomp seccomp;
	struct io_uring_task *io_uring;
	__u64 self_exec_id;
	__u64 start_boottime;
};

/* Before 6.2: one context for hardware and one for software. */
struct task_struct___two_contexts {
	struct perf_event_context *perf_event_ctxp[2];
};

struct task_struct___one_context {
	struct perf_event_context *perf_event_ctxp;
};

struct io_uring_cmd {
	struct file *file;
};

struct linux_binprm {
	struct file *file;
	struct cred *cred;
	const char *filename;
	const char *interp; /* `filename`, until an interpreter takes its place */
	char buf[256]; /* BINPRM_BUF_SIZE */
	unsigned int secureexec : 1;
};

struct bpf_local_storage;

struct sock_common {
	volatile unsigned char skc_state;
};

struct sock {
	struct sock_common __sk_common;
	int sk_err;
	kuid_t sk_uid;
	struct bpf_local_storage *sk_bpf_storage;
};

struct socket {
	struct sock *sk;
};

struct bpf_map {
	__u32 id;
};

struct bpf_prog_aux {
	__u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct user_namespace;
struct sockaddr;
struct msghdr;

#pragma clang attribute pop

static __always_inline int all_uids_are(const struct cred *cred, __u32 uid)
{
	return cred->uid.val == uid && cred->euid.val == uid && cred->suid.val == uid &&
	       cred->fsuid.val == uid;
}

#endif
