/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tells user space what modules have done: each refusal, and each process that was lowered. Nothing
 * waits for the reader; what finds no room is lost, and counted.
 */
#ifndef USHER_MAC_EVENTS_H
#define USHER_MAC_EVENTS_H

#include "labels.h"
#include "precedence.h"

/* struct usher_mac_event, for user space. Full: the event is lost, and `lost_events` counts it. */
RING_BUFFER(events, USHER_MAC_EVENTS_SIZE);

/* Events that found no room, one copy per CPU. Key: 0. */
CPU_TABLE(lost_events, 1, __u64);

/* Processes that were lowered, one copy per CPU. Key: the slot. */
CPU_TABLE(lowered, USHER_MAC_MODULES, __u64);

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct inode___mac_names {
	struct hlist_head i_dentry;
};

struct dentry___mac_names {
	struct qstr d_name;
	struct hlist_node d_u; /* a union with a name, in 6.18 */
	struct hlist_node d_alias; /* in a union without one, in 7.3 */
};

#pragma clang attribute pop

/* The outcome of an access for one module. */
struct mac_outcome {
	__u32 point; /* enum mac_point */
	__u32 slot; /* the module's */
	int answer; /* the module's; 0: the process was lowered */
	__u32 reason; /* enum usher_mac_reason */
	__u32 element; /* as in struct usher_mac_event */
};

/* A name of a file: the first of those that the kernel remembers. A longer one is cut off. */
static __always_inline void read_a_name(char *name, __u32 size, __u64 inode)
{
	void *first = NULL, *text = NULL;

	bpf_probe_read_kernel(
	    &first, sizeof(first),
	    (void *)(inode + bpf_core_field_offset(struct inode___mac_names, i_dentry)));
	if (!first)
		return;
	first -= bpf_core_field_exists(struct dentry___mac_names, d_u)
		     ? bpf_core_field_offset(struct dentry___mac_names, d_u)
		     : bpf_core_field_offset(struct dentry___mac_names, d_alias);
	first += bpf_core_field_offset(struct dentry___mac_names, d_name.name);
	bpf_probe_read_kernel(&text, sizeof(text), first);
	bpf_probe_read_kernel_str(name, size, text);
}

/*
 * Writes an event. `labels` and `file` may be NULL. Global, so that the verifier goes through it
 * once.
 */
__attribute__((noinline)) int mac_tell(const struct usher_mac_subject *subject,
				       const struct mac_labels *labels,
				       const struct usher_mac_file *file,
				       const struct mac_outcome *outcome __arg_nonnull)
{
	const struct task_struct *task =
	    bpf_core_cast(bpf_get_current_task_btf(), struct task_struct);
	__u32 slot = outcome->slot & (USHER_MAC_MODULES - 1), key = slot;
	struct usher_mac_module *module = bpf_map_lookup_elem(&modules, &key);
	struct usher_mac_event *event = NULL;

	if (labels && labels->told == UNTOLD)
		return 0;
	/* Events about packets may take half of the room only: senders must not crowd out the
	 * events about processes. */
	if (!(subject && !subject->process &&
	      bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > USHER_MAC_EVENTS_SIZE / 2))
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_up(first_of(&lost_events));
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->order = module ? module->order : 0;
	event->point = outcome->point;
	event->slot = slot;
	event->error = -mac_error_of(outcome->answer);
	event->reason = outcome->reason;
	event->element = outcome->element;
	if (subject) {
		event->process = subject->process;
		event->uid = subject->uid;
	}
	/* Not by a helper: programs at leaving packets may not call it. */
	if (event->process == task->tgid)
		bpf_probe_read_kernel_str(event->command, sizeof(event->command), task->comm);
	if (file) {
		event->device = file->device;
		event->inode = file->inode;
	}
	if (labels) {
		if (labels->slots >> slot & 1) {
			event->subject = element_of(&labels->subject, slot);
			event->object = element_of(&labels->object, slot);
		}
		if (file && labels->told)
			read_a_name(event->name, sizeof(event->name), labels->told);
	}
	/* The reader looks once a second. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The file that a request begins with; NULL for requests without one. */
#define MAC_WITH_FILE(type, wanted) const struct type * : (const struct usher_mac_file *)(wanted)

/* Versions of clang-format indent this in different ways. */
/* clang-format off */
#define MAC_FILE_OF(wanted)                                                                        \
	_Generic((wanted), MAC_WITH_FILE(usher_mac_file, wanted),                                  \
		 MAC_WITH_FILE(usher_mac_file_access, wanted),                                     \
		 MAC_WITH_FILE(usher_mac_file_command, wanted),                                    \
		 MAC_WITH_FILE(usher_mac_attribute, wanted),                                       \
		 MAC_WITH_FILE(usher_mac_attributes, wanted),                                      \
		 MAC_WITH_FILE(usher_mac_creation, wanted),                                        \
		 MAC_WITH_FILE(usher_mac_execution, wanted),                                       \
		 MAC_WITH_FILE(usher_mac_mapping, wanted), MAC_WITH_FILE(usher_mac_mount, wanted), \
		 MAC_WITH_FILE(usher_mac_naming, wanted), MAC_WITH_FILE(usher_mac_node, wanted),   \
		 MAC_WITH_FILE(usher_mac_protection, wanted),                                      \
		 MAC_WITH_FILE(usher_mac_replacing, wanted), default                               \
		 : (const struct usher_mac_file *)NULL)
/* clang-format on */

#endif
