#!/bin/bash
# How dovecot's imap, started alone, gets its settings.
#
# A service that confines a mail program to some files has to know which ones the program needs.
#
# Guess before the run: it reads /etc/dovecot, as 2.3 does, and gets what doveconf(1) has made of it by a pipe or by
# memory; nothing is written outside of the mailbox.
# Seen with dovecot 2.4.1: doveconf makes a file /tmp/doveconf.DIGITS, removes its name and hands its descriptor on.
# TMPDIR does not change the place. Where /tmp cannot be written to, imap ends with status 89 before it says anything.
#
# Needs root, apt and Debian 13. Exit status 0: as seen.
set -euo pipefail

PACKAGES=(dovecot-core dovecot-imapd)
VERSION=1:2.4.1+dfsg1-6+deb13u7

# Mounts of its own: dovecot looks for its parts below /usr/lib and /etc.
if [ -z "${FINDING_INSIDE-}" ]; then
    FINDING_INSIDE=1 exec unshare --mount bash "$0"
fi
folder=$(mktemp -d -p /var/tmp)
trap 'umount /tmp /etc /usr 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]/%/=$VERSION}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]} $VERSION" >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done
mkdir -p home/Maildir/{cur,new,tmp} elsewhere files/etc/dovecot
printf 'dovecot_config_version = 2.4.0\ndovecot_storage_version = 2.4.0\n' >files/etc/dovecot/dovecot.conf
chmod -R 755 "$folder"
chown -R nobody home elsewhere
mount -t overlay overlay -o "lowerdir=$folder/files/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$folder/files/etc:/etc" /etc

# imap as nobody, with a mailbox; prints its greeting or its error, and its exit status.
imap() {
    local status=0 said
    said=$(printf 'a LOGOUT\r\n' | setpriv --reuid nobody --regid nogroup --clear-groups \
        env -i USER=nobody "HOME=$folder/home" "$@" \
        /usr/lib/dovecot/imap -k -o mail_driver=maildir -o "mail_path=$folder/home/Maildir" \
        -o "mail_inbox_path=$folder/home/Maildir" -o stats_writer_socket_path= 2>&1) || status=$?
    echo "${said%%$'\n'*}"
    echo "status $status"
}

permitted=$(imap)
mount -t tmpfs -o ro tmpfs /tmp
refused=$(imap "TMPDIR=$folder/elsewhere")
printf '%s\n' "$permitted" "$refused"
case $permitted in *'PREAUTH'*'status 0'*) ;; *) echo "imap does not serve" >&2; exit 1 ;; esac
case $refused in *'/tmp/doveconf.'*'status 89'*) ;; *) echo "imap does without /tmp" >&2; exit 1 ;; esac
echo "as seen: imap serves only where /tmp can be written to"
