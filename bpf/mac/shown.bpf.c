// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Shows the labels of processes to every process, by iterators: a read of a pinned iterator runs
 * the program, which writes a struct usher_mac_shown. A reader gets no descriptor of a table: one
 * that is opened for reading only could be pinned anew, and then be opened for writing (tried on
 * 6.18).
 *
 * A process that changes two elements at once can be shown between the two.
 */
#include "usher_kernel.h"
#include "usher_mac_settings.h"
#include "usher_mac_shown.h"
#include "usher_maps.h"

/* Limit of nested PID namespaces, MAX_PID_NS_LEVEL. */
#define DEEPEST 32

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
};

struct upid___mac {
	int nr;
};

struct pid___mac {
	unsigned int level;
	struct upid___mac numbers[1];
};

struct task_struct___mac {
	int pid;
	int tgid;
	struct pid___mac *thread_pid;
};

#pragma clang attribute pop

/* The framework's table (slots.h), which user space puts in the place of this one. Key: the slot.
 */
ARRAY_TABLE(modules, USHER_MAC_MODULES, struct usher_mac_module);

/* These two are replaced by those of labels.h. Key: the number of an element. Full: the framework
 * refuses a new one. */
SPARSE_TABLE(elements, USHER_MAC_ALL_ELEMENTS, __u32, struct usher_mac_numbered);

/* Labels of processes. No room: as in labels.h. */
TASK_TABLE(processes, struct usher_mac_process);

static const struct usher_mac_label no_label;
static const struct usher_mac_element no_element;

/* A table of one entry, so that an iterator over it runs once for each read. Key: 0. */
ARRAY_TABLE(once, 1, __u32);

/* The number of a process in the reader's PID namespace, in which the iterator has found it. */
static __always_inline __u32 number_for_reader(struct task_struct *task)
{
	const struct task_struct___mac *own = (const void *)bpf_get_current_task_btf();
	const struct task_struct___mac *other = (const void *)task;
	struct pid___mac *pid = BPF_CORE_READ(other, thread_pid);
	__u32 level = BPF_CORE_READ(own, thread_pid, level);
	void *numbers;
	__u32 number;

	if (!pid || level > DEEPEST || level > BPF_CORE_READ(pid, level))
		return 0;
	numbers = (void *)pid + bpf_core_field_offset(struct pid___mac, numbers);
	numbers += level * bpf_core_type_size(struct upid___mac);
	if (bpf_probe_read_kernel(&number, sizeof(number),
				  numbers + bpf_core_field_offset(struct upid___mac, nr)))
		return 0;
	return number;
}

/* Writes an element, with the name of the module in the slot. The number may be that of an element
 * of a former module. */
static __noinline int show_element(struct seq_file *seq, __u32 number, __u32 slot)
{
	struct usher_mac_module *module = bpf_map_lookup_elem(&modules, &slot);
	struct usher_mac_numbered *found = bpf_map_lookup_elem(&elements, &number);

	if (!module)
		return 0;
	bpf_seq_write(seq, module->name, sizeof(module->name));
	if (found && found->slot == slot && found->order == module->order)
		bpf_seq_write(seq, &found->element, sizeof(found->element));
	else
		bpf_seq_write(seq, &no_element, sizeof(no_element));
	return 0;
}

/* Writes a row. */
static __always_inline void show(struct seq_file *seq, struct task_struct *leader, __u32 number)
{
	struct usher_mac_process *stored = bpf_task_storage_get(&processes, leader, NULL, 0);
	struct usher_mac_label label = no_label;
	__u32 head[2] = { number, 0 };

	if (stored)
		label = stored->label;
	bpf_seq_write(seq, head, sizeof(head));
	for (__u32 slot = 0; slot < USHER_MAC_MODULES; slot++)
		show_element(seq, label.elements[slot], slot);
}

/* Shows every process that the reader sees. Kernel 5.8; in an iterator, task storage: 5.12. */
SEC("iter/task")
int show_processes(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	const struct task_struct___mac *own;
	__u32 number;

	if (!task)
		return 0;
	/* Only this pointer is one that the verifier knows not to be NULL. */
	asm volatile("" : "+r"(task));
	own = (const void *)task;
	if (own->pid != own->tgid)
		return 0;
	number = number_for_reader(task);
	if (number)
		show(context->meta->seq, task, number);
	return 0;
}

/* Shows the process that reads. Kernel 5.8. */
SEC("iter/bpf_map_elem")
int show_reader(struct bpf_iter__bpf_map_elem *context)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;

	if (context->key)
		show(context->meta->seq, leader, number_for_reader(leader));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
