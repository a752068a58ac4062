#!/bin/bash
# Whether dovecot's imap compresses a connection that nothing has configured to be compressed.
#
# A test that looks for a mail's text in a capture, to show that IPsec hides what is else in the clear, depends on it.
#
# Guess before the run: no. Dovecot 2.3 offers COMPRESS=DEFLATE only with the plugin imap_zlib.
# Seen with dovecot 2.4.1 and no setting but its versions: the greeting offers COMPRESS=DEFLATE, and the command is
# accepted. mbsync 1.5 of the same release takes the offer unasked; `DisableExtension COMPRESS=DEFLATE` keeps it from
# that.
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
trap 'umount /etc /usr 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]/%/=$VERSION}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]} $VERSION" >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done
mkdir -p home/Maildir/{cur,new,tmp} files/etc/dovecot
printf 'dovecot_config_version = 2.4.0\ndovecot_storage_version = 2.4.0\n' >files/etc/dovecot/dovecot.conf
chmod -R 755 "$folder"
chown -R nobody home
mount -t overlay overlay -o "lowerdir=$folder/files/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$folder/files/etc:/etc" /etc

# What imap answers to nobody, who has a mailbox.
printf 'a COMPRESS DEFLATE\r\n' | setpriv --reuid nobody --regid nogroup --clear-groups \
    env -i USER=nobody "HOME=$folder/home" \
    /usr/lib/dovecot/imap -k -o mail_driver=maildir -o "mail_path=$folder/home/Maildir" \
    -o "mail_inbox_path=$folder/home/Maildir" -o stats_writer_socket_path= >answers 2>/dev/null
greeting=$(sed -n 1p answers)
answer=$(sed -n 2p answers)
printf '%s\n' "${greeting:0:30}..." "$answer"
case $greeting in *COMPRESS=DEFLATE*) ;; *) echo "no compression is offered" >&2; exit 1 ;; esac
case $answer in 'a OK '*) ;; *) echo "COMPRESS is refused" >&2; exit 1 ;; esac
echo "as seen: compression is offered and taken without a setting"
