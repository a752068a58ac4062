# Makes an archive of what hosts have in common in /etc: once for many hosts, because it takes hundreds
# of files. $1: an empty folder, $2: the archive.
set -eu
umask 077
cd "$1"

# The machine's own users and its own Usher are not the hosts'.
own=(passwd group shadow)
[ ! -e /etc/gshadow ] || own+=(gshadow)
for file in "${own[@]}"; do cp -p "/etc/$file" "$file"; done
awk -F: '$3 < 1000 || $3 >= 60000' /etc/passwd >passwd
awk -F: '$3 < 1000 || $3 >= 60000' /etc/group >group
awk -F: 'NR == FNR { kept[$1]; next } $1 in kept' passwd /etc/shadow >shadow
if [ -e gshadow ]; then
    awk -F: 'NR == FNR { kept[$1]; next } $1 in kept' group /etc/gshadow >gshadow
fi
# Nor is what no program of a host reads, which is half of the files.
left_out=(usher resolv.conf nologin "${own[@]}" apt fonts 'java*' X11 'alternatives/*.gz' 'ssl/certs/*.0')
archive_what_is_there /etc "$2" --anchored "${left_out[@]/#/--exclude=./}"
tar --numeric-owner -rf "$2" "${own[@]}"
