# The first process of a host. $1: its name, $2: folder of Usher's programs, $3: archive of its /etc, $4: the
# sources of Usher.
# Output: one line, its process id as seen from outside, when the host is set up.
set -eu
name=$1 programs=$2 etc=$3 sources=$4
umask 022
# /proc is still the machine's, where this process has the number that it has outside.
read -r pid _ </proc/self/stat

mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lab/bin /run/lab/sources /run/lab/notify /run/lab/etc /run/lock /run/user
# Bound before the folders that may hold it are covered.
mount --bind "$programs" /run/lab/bin
mount --bind "$sources" /run/lab/sources
tar -C /run/lab/etc --numeric-owner -xpf "$etc"
cd /run/lab/etc
echo "$name" >hostname
printf '127.0.0.1 localhost\n::1 localhost\n' >hosts
cd /

mount --bind /run/lab/etc /etc
for folder in /home /root /srv /var/lib /var/log /var/mail /var/spool; do
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then
        mount -t tmpfs -o mode=755 tmpfs "$folder"
    fi
done
# A clone in a home folder, which is covered now.
[ -d "$sources" ] || { mkdir -p "$sources" && mount --bind /run/lab/sources "$sources"; }
mount -t proc proc /proc
mount -t bpf bpf /sys/fs/bpf
hostname "$name"
ip link set lo up
# Duplicate address detection would make a new address useless for a second.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad

echo "$pid"
exec >/dev/null 2>&1
# The life line: its end is the end of the lab, and of this process, and so of the host.
while read -r _; do :; done
