/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What programs read of the kernel's own structures: the members that are read and no others.
 * libbpf puts in their true places when it loads a program (CO-RE), so no vmlinux.h is needed and
 * one object serves every kernel from 6.1 on.
 */
#ifndef USHER_KERNEL_H
#define USHER_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define EPERM 1
#define ENOMEM 12
#define EAGAIN 11

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

struct files_struct {
	atomic_t count;
};

struct fs_struct {
	int users;
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

struct cgroup {
	int level;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	int tgid;
	unsigned int ptrace;
	struct task_struct *real_parent;
	const struct cred *cred;
	struct signal_struct *signal;
	struct fs_struct *fs;
	struct files_struct *files;
	struct nsproxy *nsproxy;
	struct css_set *cgroups;
};

struct super_block {
	unsigned int s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct dentry {
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

struct io_uring_cmd {
	struct file *file;
};

struct linux_binprm {
	struct file *file;
	struct cred *cred;
};

struct bpf_local_storage;

struct sock_common {
	volatile unsigned char skc_state;
};

struct sock {
	struct sock_common __sk_common;
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

#endif
