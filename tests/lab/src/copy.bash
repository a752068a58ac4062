# Copies a folder that others may change meanwhile: a file that goes between being listed and being
# read is left out. `cp -a` and `tar` report it alike, and only tar's exit status tells it (1) from
# a copy that failed (2). $1: the folder, $2: the folder that its contents go into.
copy_what_is_there() {
    tar -C "$1" --numeric-owner -cf - . | tar -C "$2" --numeric-owner -xpf -
    local made=("${PIPESTATUS[@]}")
    ((made[0] <= 1 && made[1] == 0))
}
