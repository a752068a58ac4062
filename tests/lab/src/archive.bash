# Archives a folder that others may change meanwhile: a file that goes between being listed and being
# read is left out. `cp -a` and `tar` report it alike, and only tar's exit status tells it (1) from
# an archive that failed (2). $1: the folder, $2: the archive; the rest: options.
archive_what_is_there() {
    local status=0
    tar -C "$1" --numeric-owner "${@:3}" -cf "$2" . || status=$?
    ((status <= 1))
}
