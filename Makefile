# Usher. `make help` lists the targets. All of them run as root on Debian 12 or 13 and expect a Rust
# toolchain; scripts/setup installs the rest.

CARGO ?= cargo
# Where `make install` puts things; DESTDIR goes before it. Packages name some of the folders, and strip by themselves.
PREFIX ?= /usr/local
LIBRARY_DIR ?= $(PREFIX)/lib
UNIT_DIR ?= $(PREFIX)/lib/systemd/system
USER_UNIT_DIR ?= $(PREFIX)/lib/systemd/user
STRIP ?= -s
# Seconds each fuzz target runs.
FUZZ_SECONDS ?= 60

# rustup's default place comes first, for shells that have not read its environment file: Debian's own
# cargo may be installed as well.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(CARGO_HOME)/bin:$(PATH)

# The kernel on which `make bench` counts instructions, unless KERNEL names another one.
BENCH_KERNEL = $(or $(KERNEL),6.12)
# The same for mandatory access control.
BENCH_MAC_KERNEL = 6.18

CARGO_TARGET_DIR ?= target
# As tests/vm/suites builds programs: other targets would give crates other features, and everything would
# be built twice.
BUILD_PROGRAMS = $(CARGO) build --quiet --workspace --lib --bins --examples
C_SOURCES = $(shell find bpf crates include bench tests examples -name "*.[ch]" 2>/dev/null)
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

.DEFAULT_GOAL := help
.PHONY: help setup setup-build setup-demo build demo lab demo-attack test test-here test-vm bench check fuzz man book pictures deb test-deb build-release install install-files install-completions install-library install-python install-module-headers install-man uninstall

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

setup: ## install what is missing (apt, by package name)
	@scripts/setup

setup-build:
	@scripts/setup build

setup-demo:
	@scripts/setup demo

build: setup ## build everything
	$(CARGO) build --workspace --all-targets

demo: setup-demo ## show the main job: two hosts, two users, unmodified mail programs (KERNEL=6.12: in a guest, with IPsec)
	@$(if $(KERNEL),scripts/setup-vm $(KERNEL))
	@echo "building; the first time this takes 2 to 15 minutes"
	@$(subst --quiet,,$(BUILD_PROGRAMS))
	@$(if $(KERNEL),echo "booting kernel $(KERNEL) under QEMU; without KVM the demo takes some minutes there")
	@$(if $(KERNEL),tests/vm/run --kernel $(KERNEL) --timeout 1800 --) $(CARGO_TARGET_DIR)/debug/usher-demo

lab: setup-demo ## a playground: the demo's two hosts, with how to open shells in them, until Enter
	@echo "building; the first time this takes 2 to 15 minutes"
	@$(subst --quiet,,$(BUILD_PROGRAMS))
	@$(CARGO_TARGET_DIR)/debug/usher-playground

# Only kernels that run modules of mandatory access control, and ESP, show all of it.
DEMO_ATTACK_KERNEL = $(or $(KERNEL),6.18)
demo-attack: setup-demo ## attack a mail service with and without each part of Usher, in a guest (KERNEL=6.18), and print what was reached (JSON=1: as JSON)
	@scripts/setup-vm $(DEMO_ATTACK_KERNEL) >&2
	@$(subst --quiet,,$(BUILD_PROGRAMS))
	@echo "booting kernel $(DEMO_ATTACK_KERNEL) under QEMU; without KVM this takes about ten minutes" >&2
	@tests/vm/run --kernel $(DEMO_ATTACK_KERNEL) --processors 1 --timeout 3600 -- \
	  $(CARGO_TARGET_DIR)/debug/usher-demo-attack $(if $(JSON),--json)

# Programs here mostly wait for daemons, and guests for processors: both at once.
test: setup ## run all tests, here and on stock kernels
	@scripts/setup-vm
	@tests/vm/suites --here --spread

test-here: setup ## run the tests that need no virtual machine; of the others it prints that they are skipped
	@tests/vm/suites --only-here

test-vm: setup ## boot stock kernels, run all suites in each (KERNEL=6.12: only in that one)
	@scripts/setup-vm $(KERNEL)
	@tests/vm/suites $(KERNEL)

bench: setup ## measure; the figures go to target/bench/results.json (KERNEL: the guest's; SESSIONS, WORKERS: of a full host)
	@scripts/setup-vm $(sort $(BENCH_KERNEL) $(BENCH_MAC_KERNEL))
	$(CARGO) build --release --workspace --bins
	$(CARGO_TARGET_DIR)/release/usher-bench --kernel $(BENCH_KERNEL) --mac-kernel $(BENCH_MAC_KERNEL) \
	  $(if $(SESSIONS),--sessions $(SESSIONS)) $(if $(WORKERS),--workers $(WORKERS))

check: setup ## formatting, lints and names in documents, no change
	clang-format --dry-run -Werror $(C_SOURCES)
	$(CARGO) fmt --all --check
	scripts/check-documents --test
	scripts/json-page --check
	scripts/files-page --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fuzz: setup ## run each fuzz target for FUZZ_SECONDS (takes a nightly toolchain and cargo-fuzz)
	@$(CARGO) +nightly fuzz --version >/dev/null || \
	  { echo 'fuzzing takes: rustup toolchain install nightly; cargo install cargo-fuzz' >&2; exit 1; }
	set -e; for target in $(FUZZ_TARGETS); do \
	  seeds=fuzz/corpus/$$target; mkdir -p $$seeds; \
	  if [ $$target = policy ]; then seeds="$$seeds crates/authentication/usher-policy/tests/golden"; fi; \
	  if [ $$target = protection ]; then seeds="$$seeds crates/protection/usher-protection/tests/applications/published"; fi; \
	  $(CARGO) +nightly fuzz run $$target $$seeds -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=9216; \
	done

# Tables are as wide as --columns, and troff adds two. "smart" would make a dash of -- in options.
# Nothing is justified: a cell with one long word cannot be.
PANDOC = pandoc --standalone --from markdown-smart --to man --columns 76 --variable adjusting=l
MAN_DIR = $(CARGO_TARGET_DIR)/man
MAN_PAGES = $(addprefix $(MAN_DIR)/,$(basename $(notdir $(wildcard docs/man/*.md))))

man: setup-build $(MAN_PAGES) ## make the manual pages, in target/man

# The policy's page is a frame around the documents of the language.
$(MAN_DIR)/usher.policy.5: docs/man/usher.policy.5.md docs/policy.md docs/users.md docs/services.md
	@mkdir -p $(@D)
	$(PANDOC) --output $@ $^

$(MAN_DIR)/%: docs/man/%.md
	@mkdir -p $(@D)
	$(PANDOC) --output $@ $<

# mdBook is built by itself, once for each version.
MDBOOK_VERSION = 0.5.4
MDBOOK_ROOT = $(CARGO_TARGET_DIR)/tools/mdbook-$(MDBOOK_VERSION)

book: $(MDBOOK_ROOT)/bin/mdbook ## make the book of the documents, in target/book (the first time this builds mdBook)
	$< build --dest-dir $(abspath $(CARGO_TARGET_DIR)/book)

$(MDBOOK_ROOT)/bin/mdbook:
	$(CARGO) install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search \
	  --root $(MDBOOK_ROOT)

pictures: $(patsubst %.dot,%.svg,$(wildcard docs/pictures/*.dot)) ## draw docs/pictures again, by graphviz

# The digest, by which scripts/check-documents knows the source, stands where dot writes its version.
docs/pictures/%.svg: docs/pictures/%.dot FORCE
	@command -v dot >/dev/null || { echo 'pictures take graphviz: apt install graphviz' >&2; exit 1; }
	dot -Tsvg -o $@.new $<
	sed "s/^<!-- Generated by graphviz.*/<!-- made from $(<F), SHA-256 $$(sha256sum <$< | cut -d ' ' -f 1), by make pictures/" $@.new >$@
	rm $@.new

FORCE:

build-release: setup-build
	# libbpf is built by a make of its own, which is not to install it in these places.
	env -u MAKEFLAGS -u MAKEOVERRIDES -u DESTDIR -u PREFIX \
	  $(CARGO) build --locked --release $(addprefix --package ,usher usherd usher-pam usher-identify libusher usher-label-tools usher-pam-module)

install: build-release man ## install programs, library, header, manual pages and units below PREFIX
	$(MAKE) install-files

install-files:
	install -D $(STRIP) -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILT)/usher
	install -D $(STRIP) -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(addprefix $(BUILT)/,usherd usher-pam usher-identify getfmac setfmac setfsmac getpmac setpmac)
	install -D $(STRIP) -m 644 $(BUILT)/libpam_usher.so $(DESTDIR)$(LIBRARY_DIR)/security/pam_usher.so
	# An administrator's own stays.
	[ -e $(DESTDIR)/etc/pam.d/usher ] || install -D -m 644 -t $(DESTDIR)/etc/pam.d packaging/pam.d/usher
	$(MAKE) install-library install-module-headers install-man install-completions
	install -d $(DESTDIR)$(UNIT_DIR) $(DESTDIR)$(USER_UNIT_DIR)
	for unit in packaging/systemd/*.service; do \
	  sed 's#/usr/local/#$(PREFIX)/#' $$unit >$(DESTDIR)$(UNIT_DIR)/$${unit##*/} || exit 1; \
	done
	sed 's#/usr/local/#$(PREFIX)/#' packaging/systemd/user/usher-agent.service \
	  >$(DESTDIR)$(USER_UNIT_DIR)/usher-agent.service
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/sysusers.d packaging/sysusers.d/usher.conf
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/tmpfiles.d packaging/tmpfiles.d/usher.conf
	# For `tshark -X lua_script:`: not in the folder from which Wireshark loads by itself.
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/usher/wireshark packaging/wireshark/usher.lua

# A package for a Debian release is built in a root of that release.
RELEASE ?= $(shell . /etc/os-release && echo $$VERSION_CODENAME)
deb: ## build Debian packages, in target/packages (RELEASE=bookworm or trixie; this machine's by default)
	@scripts/build-packages $(RELEASE)

test-deb: ## install, upgrade and remove these packages in a copy of the root that built them, also booted in a guest
	@tests/packages/install $(RELEASE)
	@tests/packages/boot $(RELEASE)

# Where the programs and libraries to install are.
BUILT ?= $(CARGO_TARGET_DIR)/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# crates/authentication/libusher/build.rs makes it likewise.
SONAME = libusher.so.$(firstword $(subst ., ,$(VERSION)))

# For programs in C.
install-library:
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include include/usher.h include/usher_mac.h
	install -D -m 644 -t $(DESTDIR)$(LIBRARY_DIR) $(BUILT)/libusher.a
	install $(STRIP) -m 755 $(BUILT)/libusher.so $(DESTDIR)$(LIBRARY_DIR)/libusher.so.$(VERSION)
	ln -sf libusher.so.$(VERSION) $(DESTDIR)$(LIBRARY_DIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBRARY_DIR)/libusher.so
	install -d $(DESTDIR)$(LIBRARY_DIR)/pkgconfig
	sed 's#@PREFIX@#$(PREFIX)#; s#@LIBRARY_DIR@#$(LIBRARY_DIR)#; s#@VERSION@#$(VERSION)#' packaging/pkgconfig/usher.pc.in \
	  >$(DESTDIR)$(LIBRARY_DIR)/pkgconfig/usher.pc
	[ -n "$(DESTDIR)" ] || ldconfig

# Where each shell looks for the completions of a command by its name.
COMPLETIONS = $(PREFIX)/share/bash-completion/completions/usher \
  $(PREFIX)/share/zsh/$(ZSH_FUNCTIONS)/_usher \
  $(PREFIX)/share/fish/vendor_completions.d/usher.fish
# Debian's zsh has a folder of its own for packages.
ZSH_FUNCTIONS = $(if $(filter /usr,$(PREFIX)),vendor-completions,site-functions)
install-completions:
	install -d $(addprefix $(DESTDIR),$(dir $(COMPLETIONS)))
	set -e; set -- $(addprefix $(DESTDIR),$(COMPLETIONS)); \
	for shell in bash zsh fish; do $(BUILT)/usher completions $$shell >$$1; shift; done

# For programs in Python, in packages; from a clone: pip install ./python/usher.
install-python:
	install -D -m 644 -t $(DESTDIR)$(PYTHON_DIR)/usher $(wildcard python/usher/usher/*)

# For policy modules in C: docs/writing-a-module.md.
MODULE_HEADERS = usher_mac_policy.h usher_mac_requests.h usher_mac_label.h usher_mac_levels.h usher_kernel.h usher_maps.h usher_numbers.h
install-module-headers: ## install the headers for writers of policy modules below PREFIX
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/usher-module $(addprefix bpf/include/,$(MODULE_HEADERS))
	install -d $(DESTDIR)$(LIBRARY_DIR)/pkgconfig
	sed "s#@PREFIX@#$(PREFIX)#; s#@VERSION@#$(VERSION)#; s#@MACHINE@#$$(uname -m)#" \
	  packaging/pkgconfig/usher-module.pc.in >$(DESTDIR)$(LIBRARY_DIR)/pkgconfig/usher-module.pc

# A page is found by each name of its NAME section.
install-man: $(MAN_PAGES)
	set -e; for page in $(notdir $(MAN_PAGES)); do \
	  section=$${page##*.}; folder=$(DESTDIR)$(PREFIX)/share/man/man$$section; \
	  install -D -m 644 -t $$folder $(MAN_DIR)/$$page; \
	  for name in $$(sed -n '/^# NAME/{n;n;s/ - .*//;s/,//gp;}' docs/man/$$page.md); do \
	    if [ $$name.$$section != $$page ]; then \
	      echo .so man$$section/$$page >$$folder/$$name.$$section; \
	    fi; \
	  done; \
	done

# Files that the targets above install. Links of pages are found by their text.
INSTALLED = $(addprefix $(PREFIX)/,bin/usher \
    $(addprefix sbin/,usherd usher-pam usher-identify getfmac setfmac setfsmac getpmac setpmac) \
    include/usher.h include/usher_mac.h $(addprefix include/usher-module/,$(MODULE_HEADERS)) \
    lib/sysusers.d/usher.conf lib/tmpfiles.d/usher.conf share/usher/wireshark/usher.lua) \
  $(addprefix $(LIBRARY_DIR)/,security/pam_usher.so libusher.a libusher.so $(SONAME) libusher.so.$(VERSION) \
    pkgconfig/usher.pc pkgconfig/usher-module.pc) \
  $(addprefix $(UNIT_DIR)/,$(notdir $(wildcard packaging/systemd/*.service))) $(USER_UNIT_DIR)/usher-agent.service \
  $(COMPLETIONS)

uninstall: ## remove what `make install` has put there; keeps /etc/usher and /var/lib/usher
	@if [ -z "$(DESTDIR)" ] && systemctl --quiet is-active 'usher-*.service' 2>/dev/null; then \
	  echo 'uninstall: Usher runs. First disable and stop its units, and start usher-release:' \
	    'docs/start.md, step 9' >&2; \
	  exit 1; \
	fi
	@if [ -z "$(DESTDIR)" ] && grep -qRs '^[^#]*pam_usher\.so' /etc/pam.d /etc/pam.conf; then \
	  echo 'uninstall: /etc/pam.d names pam_usher.so, without which sessions are refused: take' \
	    'its lines out first' >&2; \
	  exit 1; \
	fi
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	# An administrator's own stays.
	! cmp -s packaging/pam.d/usher $(DESTDIR)/etc/pam.d/usher || rm $(DESTDIR)/etc/pam.d/usher
	set -e; for page in $(basename $(notdir $(wildcard docs/man/*.md))); do \
	  section=$${page##*.}; folder=$(DESTDIR)$(PREFIX)/share/man/man$$section; \
	  rm -f $$folder/$$page; \
	  for link in $$(grep -lxs ".so man$$section/$$page" $$folder/*); do rm -f $$link; done; \
	done
	[ -n "$(DESTDIR)" ] || { ldconfig; [ ! -d /run/systemd/system ] || systemctl daemon-reload; }
	@echo 'uninstall: keys, policy and log stay in /etc/usher and /var/lib/usher, and the accounts' \
	  'usher-verifier, usher-recorder, usher-signer, usher-courier, usher-proxy, usher-resolver and usher-exporter'
