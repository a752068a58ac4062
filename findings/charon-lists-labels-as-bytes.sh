#!/bin/bash
# How charon lists a connection that it has been given over VICI.
#
# A program that gives charon connections has to notice when somebody else replaces them by ones of the same
# name. `list-conns` is the only question about them.
#
# Guess before the run: it answers with what was loaded, so with the security label of a child (RFC 9478) as the text
# that was written, and with its reqid and its marks.
# Seen with strongSwan 5.9.8: the label is listed as hexadecimal digits of its bytes, the zero behind them included
# (`sample-label` is 73616d706c652d6c6162656c00). A reqid and marks are not listed at all: two connections whose SAs
# have other marks, which decide what is sent by them, are listed alike.
#
# Needs root, apt and Debian 12. Exit status 0: as seen.
set -euo pipefail

PACKAGES=(charon-systemd strongswan-swanctl strongswan-libcharon libstrongswan libstrongswan-standard-plugins)
VERSION=5.9.8-5+deb12u6

# Mounts of its own: charon looks for its parts below /usr/lib.
if [ -z "${FINDING_INSIDE-}" ]; then
    FINDING_INSIDE=1 exec unshare --mount bash "$0"
fi
folder=$(mktemp -d)
charon=
trap '[ -z "$charon" ] || kill "$charon" 2>/dev/null || true; wait; umount /usr/lib 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]/%/=$VERSION}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]} $VERSION" >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done
mount -t overlay overlay -o "lowerdir=$folder/files/usr/lib:/usr/lib" /usr/lib

cat >strongswan.conf <<END
charon-systemd {
  load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac kdf kernel-netlink socket-default vici
  plugins { vici { socket = unix://$folder/vici } }
}
END
export STRONGSWAN_CONF=$folder/strongswan.conf
# It takes the ports 500 and 4500.
unshare --net files/usr/sbin/charon-systemd >charon.out 2>&1 &
charon=$!
for _ in {1..100}; do
    [ ! -S vici ] || break
    sleep 0.1
done

# Loads a connection with these lines in its child, and prints what charon lists.
listed() {
    cat >swanctl.conf <<END
connections { sample {
  local_addrs = 192.0.2.1
  remote_addrs = 192.0.2.2
  children { one {
    mode = transport
    $1
  } }
} }
END
    files/usr/sbin/swanctl --load-conns --file swanctl.conf --uri "unix://$folder/vici" >load.out 2>&1 ||
        { cat load.out >&2; exit 1; }
    files/usr/sbin/swanctl --list-conns --raw --uri "unix://$folder/vici"
}

plain=$(listed 'label = sample-label
    label_mode = simple')
marked=$(listed 'label = sample-label
    label_mode = simple
    reqid = 77
    set_mark_out = 0x100000')
printf '%s\n' "$plain"
bytes=$(printf 'sample-label\0' | od -An -v -tx1 | tr -d ' \n')
case $plain in
    *" label=$bytes "*) ;;
    *) echo "expected the label as $bytes" >&2; exit 1 ;;
esac
[ "$marked" = "$plain" ] || { echo "expected no difference by reqid and mark" >&2; exit 1; }
