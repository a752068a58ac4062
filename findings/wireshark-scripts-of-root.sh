#!/bin/bash
# Whether tshark loads a Lua script that root names.
#
# Captures are made as root, and a dissector that is not in Wireshark comes as a Lua script (-X lua_script:FILE).
#
# Guess before the run: the script is loaded, or root is told that it was not. Wireshark 4.0 loads it.
# Seen with tshark 4.4.19: as root the script is not loaded, nothing is said, and the status is 0. As another account
# it is loaded. init.lua, whose run_user_scripts_when_superuser decided in 4.0, is gone.
#
# Needs root, apt and Debian 13. Exit status 0: as seen.
set -euo pipefail

VERSION=4.4.19-0+deb13u1

# Mounts of its own: tshark looks for its parts below /usr.
if [ -z "${FINDING_INSIDE-}" ]; then
    FINDING_INSIDE=1 exec unshare --mount bash "$0"
fi
folder=$(mktemp -d -p /var/tmp)
trap 'umount /usr 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p packages/partial files/usr home
# With what it needs and this machine lacks.
apt-get install --download-only --yes --quiet --quiet --no-install-recommends --reinstall \
    -o "Dir::Cache::archives=$folder/packages" "tshark=$VERSION" >/dev/null 2>&1 ||
    { echo "cannot download tshark $VERSION" >&2; exit 1; }
for package in packages/*.deb; do
    dpkg-deb --extract "$package" files
done
chmod -R a+rX "$folder"
chown nobody home
mount -t overlay overlay -o "lowerdir=$folder/files/usr:/usr" /usr
ldconfig -C "$folder/cache"

echo 'print("the script is loaded")' >script.lua
# The header of a capture without packets.
printf '\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x01\0\0\0' >empty.pcap
# Reads it with the script; prints what the script prints, what is said of scripts, and the exit status.
reads() {
    local status=0 said
    said=$("$@" env "HOME=$folder/home" tshark -X "lua_script:$folder/script.lua" -r "$folder/empty.pcap" 2>&1) ||
        status=$?
    grep -iE 'lua|script' <<<"$said" || echo nothing
    echo "status $status"
}
other=$(reads setpriv --reuid nobody --regid nogroup --clear-groups)
root=$(reads env)
printf 'another account:\n%s\nroot:\n%s\n' "$other" "$root"
[ "$other" = $'the script is loaded\nstatus 0' ] || { echo "others cannot load it either" >&2; exit 1; }
[ "$root" = $'nothing\nstatus 0' ] || { echo "root is told, or can load it" >&2; exit 1; }
echo "as seen: root's script is left out without a word"
