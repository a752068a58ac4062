# The first process of the switch: a bridge in a network namespace of its own.
# Output: one line, its process id as seen from outside, when the bridge is there.
set -eu
read -r pid _ </proc/self/stat
ip link add switch type bridge
ip link set switch up
echo "$pid"
exec >/dev/null 2>&1
# The life line: its end is the end of the lab.
while read -r _; do :; done
