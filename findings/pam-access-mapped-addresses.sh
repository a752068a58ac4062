#!/bin/bash
# pam_access and IPv4 addresses that are written as IPv6.
#
# A daemon with one dual-stack listener sees IPv4 clients as ::ffff:192.0.2.7. access.conf(5) has two
# ways to permit a network: a prefix that ends in a dot (`192.0.`) and a netmask (`192.0.0.0/16`).
#
# Guess before the run: neither matches an IPv4-mapped PAM_RHOST.
# Seen with libpam-modules 1.5.2-6+deb12u3: the prefix matches, the netmask does not. So one client
# is permitted or refused by how the administrator wrote the same network. A daemon has to set
# PAM_RHOST in the IPv4 form; then both match.
#
# Needs Debian 12 with its apt sources, and no privilege beyond reading them. Exit status 0: as seen.
set -euo pipefail

PACKAGES=(libpam-modules=1.5.2-6+deb12u3 libpam-wrapper=1.1.4-1+b2 pamtester=0.1.2-4)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]}" >&2; exit 1; }
for package in *.deb; do
    dpkg -x "$package" root
done
libraries=$folder/root/usr/lib/x86_64-linux-gnu
module=$(find root -name pam_access.so)
mkdir services
printf 'account required %s accessfile=%s nodefgroup\n' "$folder/$module" "$folder/access.conf" >services/trial

# Prints whether the user root of a host may be served under a rule.
ask() {
    local rule=$1 host=$2
    printf '+:root:%s\n-:ALL:ALL\n' "$rule" >access.conf
    if LD_PRELOAD=$libraries/libpam_wrapper.so PAM_WRAPPER=1 PAM_WRAPPER_SERVICE_DIR=$folder/services \
        timeout 20 root/usr/bin/pamtester -I rhost="$host" trial root acct_mgmt >answer 2>&1; then
        echo permitted
    elif grep -q 'Permission denied' answer; then
        echo refused
    else
        cat answer
    fi
}

wrong=0
expect() {
    local seen
    seen=$(ask "$1" "$2")
    printf '%-14s %-18s %s\n' "$1" "$2" "$seen"
    [ "$seen" = "$3" ] || { echo "expected: $3" >&2; wrong=1; }
}

expect 192.0. 192.0.2.7 permitted
expect 192.0.0.0/16 192.0.2.7 permitted
expect 192.0. ::ffff:192.0.2.7 permitted
expect 192.0.0.0/16 ::ffff:192.0.2.7 refused
expect 192.1. ::ffff:192.0.2.7 refused
exit $wrong
