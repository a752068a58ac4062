#!/bin/bash
# BPF iterators and the marks of open sockets.
#
# A policy that comes in force has to give open sockets another mark (SO_MARK). For connections of TCP
# an iterator does it: `iter/tcp` may call bpf_setsockopt since kernel 5.16, and holds the lock of the
# socket meanwhile.
#
# Guess before the run: `iter/udp` may do the same, for datagram sockets that are connected.
# Seen with kernel 6.18.44: the verifier refuses it ("program of this type cannot use helper
# bpf_setsockopt#49") and takes the same program for `iter/tcp`. So a connected datagram socket keeps
# its mark until its program connects it again: docs/protection.md names such programs.
#
# Needs root, clang, bpftool, a kernel with BTF, and the headers of libbpf and the kernel (libbpf-dev,
# linux-libc-dev). Nothing is attached. Exit status 0: as seen.
set -euo pipefail

folder=$(mktemp -d)
pins=/sys/fs/bpf/trial-$$
trap 'rm -rf "$folder" "$pins"' EXIT

# Loads a program that sets the marks of all sockets of a protocol, if it were run.
loads() {
    local protocol=$1
    cat >"$folder/$protocol.bpf.c" <<END
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct context {
	void *meta;
	void *socket;
};

SEC("iter/$protocol")
int marks(struct context *context)
{
	int mark = 1;
	void *socket = context->socket;

	if (socket)
		bpf_setsockopt(socket, 1, 36, &mark, sizeof(mark));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
END
    clang -target bpf -O2 -g -idirafter "/usr/include/$(uname -m)-linux-gnu" -c "$folder/$protocol.bpf.c" \
        -o "$folder/$protocol.o"
    bpftool prog loadall "$folder/$protocol.o" "$pins" >"$folder/$protocol.log" 2>&1 || return 1
    rm -rf "$pins"
}

loads tcp || { tail -n 20 "$folder/tcp.log" >&2; echo "tcp: refused" >&2; exit 1; }
echo "tcp: taken"
if loads udp; then
    echo "udp: taken, which is new: connected datagram sockets can be marked here" >&2
    exit 1
fi
grep 'cannot use helper' "$folder/udp.log"
