# Usher. `make help` lists the targets. All of them run as root on Debian 12 and expect a Rust
# toolchain; scripts/setup installs the rest.

CARGO ?= cargo
# Where `make install` puts things; DESTDIR goes before it.
PREFIX ?= /usr/local
# Seconds each fuzz target runs.
FUZZ_SECONDS ?= 60

# rustup's default place, for shells that have not read its environment file.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(PATH):$(CARGO_HOME)/bin

CARGO_TARGET_DIR ?= target
C_SOURCES = $(shell find bpf include bench tests examples -name "*.[ch]" 2>/dev/null)
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.DEFAULT_GOAL := help
.PHONY: help setup build demo test bench check fuzz man install

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

setup: ## install what is missing (apt, by package name)
	@scripts/setup

build: setup ## build everything
	$(CARGO) build --workspace --all-targets

demo: setup ## show the main job: two hosts, two users, unmodified mail programs
	$(CARGO) build --quiet --workspace --bins
	@$(CARGO_TARGET_DIR)/debug/usher-demo

# The daemons first: tests run them from beside themselves.
test: setup ## run all tests
	$(CARGO) build --workspace --lib --bins --examples
	$(CARGO) test --workspace --no-fail-fast

bench: setup ## measure; the figures go to target/bench/results.json
	$(CARGO) build --release --workspace --bins
	$(CARGO_TARGET_DIR)/release/usher-bench

check: setup ## formatting and lints, no change
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	clang-format --dry-run -Werror $(C_SOURCES)

fuzz: setup ## run each fuzz target for FUZZ_SECONDS (takes a nightly toolchain and cargo-fuzz)
	@$(CARGO) +nightly fuzz --version >/dev/null || \
	  { echo 'fuzzing takes: rustup toolchain install nightly; cargo install cargo-fuzz' >&2; exit 1; }
	set -e; for target in $(FUZZ_TARGETS); do \
	  seeds=fuzz/corpus/$$target; mkdir -p $$seeds; \
	  if [ $$target = policy ]; then seeds="$$seeds crates/usher-policy/tests/golden"; fi; \
	  $(CARGO) +nightly fuzz run $$target $$seeds -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=9216; \
	done

# Tables are as wide as --columns, and troff adds two. "smart" would make a dash of -- in options.
PANDOC = pandoc --standalone --from markdown-smart --to man --columns 76
MAN_DIR = $(CARGO_TARGET_DIR)/man
MAN_PAGES = $(addprefix $(MAN_DIR)/,$(basename $(notdir $(wildcard docs/man/*.md))))

man: setup $(MAN_PAGES) ## make the manual pages, in target/man

# The policy's page is a frame around the language's own document.
$(MAN_DIR)/usher.policy.5: docs/man/usher.policy.5.md docs/policy.md
	@mkdir -p $(@D)
	$(PANDOC) --output $@ $^

$(MAN_DIR)/%: docs/man/%.md
	@mkdir -p $(@D)
	$(PANDOC) --output $@ $<

install: setup man ## install programs, library, header, manual pages and units below PREFIX
	$(CARGO) build --release --workspace
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(CARGO_TARGET_DIR)/release/usher
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(CARGO_TARGET_DIR)/release/usherd
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include include/usher.h
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib $(CARGO_TARGET_DIR)/release/libusher.so
	for page in $(MAN_PAGES); do \
	  install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man$${page##*.} $$page || exit 1; \
	done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in packaging/systemd/*.service; do \
	  sed 's#/usr/local/#$(PREFIX)/#' $$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit##*/} || exit 1; \
	done
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/sysusers.d packaging/sysusers.d/usher.conf
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/tmpfiles.d packaging/tmpfiles.d/usher.conf
